"""ElevenLabs' requests and their translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from service.audio.containers import RestartingEncoder
from service.audio.encoder import AudioEncoder
from service.audio.factory import make_stream_encoder
from service.contexts.options import speech_request
from service.runtime import Runtime
from streaming.errors import ErrorCode
from streaming.protocol import messages as wire
from streaming.protocol.field_errors import invalid_field, unsupported

NAME = "elevenlabs"
#: ElevenLabs' default ``output_format``.
DEFAULT_FORMAT = "mp3_44100_128"
_FORMAT = re.compile(r"(mp3|pcm|ulaw|alaw|opus|wav)_(\d{4,6})(?:_(\d{1,3}))?")
_ENCODINGS = {
    "mp3": "mp3",
    "pcm": "pcm_s16le",
    "ulaw": "pcm_mulaw",
    "alaw": "pcm_alaw",
    "opus": "ogg_opus",
    "wav": "wav",
}
_TIMEOUT_S, _MAX_TIMEOUT_S = 20.0, 180.0


class OutputFormat(NamedTuple):
    """A parsed ``codec_rate_bitrate``. ``sample_rate`` None: the encoder's default."""

    encoding: str
    sample_rate: int | None
    bit_rate: int | None

    @property
    def is_file(self) -> bool:
        """Whether a flush ends a file, which is audible."""
        return self.encoding in ("mp3", "ogg_opus")

    def make_encoder(self, runtime: Runtime, speed: float) -> AudioEncoder:
        """Create the encoder of a context. Raises RequestError (``unsupported``)."""
        codec_rate, (name, rate, bit_rate) = runtime.codec.spec.sample_rate, self
        make = partial(make_stream_encoder, name, codec_rate, rate, bit_rate=bit_rate, speed=speed)
        return RestartingEncoder(make) if self.is_file else make()


def parse_format(name: str) -> OutputFormat:
    """Parse an ``output_format``. Raises RequestError (``unsupported``)."""
    match = _FORMAT.fullmatch(name)
    if match is None or (match[3] is not None) != (match[1] in ("mp3", "opus")):
        raise invalid_field(
            "output_format",
            name,
            "mp3_<rate>_<kbit/s>, opus_48000_<kbit/s>, pcm_<rate>, ulaw_8000, alaw_8000 or, over "
            "HTTP, wav_<rate>",
            ErrorCode.UNSUPPORTED,
        )
    kind, rate = match[1], int(match[2])
    bit_rate = 1000 * int(match[3]) if match[3] else None
    if kind == "opus" and rate != 48_000:
        allowed = "opus_48000_<kbit/s> for Opus"
        raise invalid_field("output_format", name, allowed, ErrorCode.UNSUPPORTED)
    return OutputFormat(_ENCODINGS[kind], None if kind == "opus" else rate, bit_rate)


class VoiceSettings(BaseModel):
    """Settings of ElevenLabs' models, of which only ``speed`` is supported."""

    speed: Annotated[float, Field(ge=0.25, le=4)] | None = Field(
        None, description="How many times as fast, at the same pitch."
    )


class SpeechBody(BaseModel):
    """The body of HTTP requests. ElevenLabs' other fields are accepted, without effect."""

    text: str = Field(description="The text to speak.")
    model_id: str | None = Field(None, description="Any name; the served model speaks.")
    language_code: str | None = Field(None, description="Without effect, and named as ignored.")
    voice_settings: VoiceSettings | None = Field(None, description="Only `speed` has an effect.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = Field(
        None, description="The same seed and text give the same audio."
    )
    pronunciation_dictionary_locators: list[Any] | None = Field(
        None, description="Only an empty list is served."
    )
    audio_effects: dict[str, Any] | None = Field(None, description="Not served.")


def speech_create(
    body: SpeechBody, voice: str, runtime: Runtime, *, timestamps: bool
) -> wire.ContextCreate:
    """Translate ``body`` to a context. Raises RequestError."""
    refuse_dictionaries(body.pronunciation_dictionary_locators)
    if body.audio_effects:
        raise unsupported("audio_effects", "This server has no audio effects.")
    speed = body.voice_settings.speed if body.voice_settings else None
    return wire.ContextCreate(
        NAME,
        voice=voice,
        audio=wire.AudioOptions(speed=speed or 1.0),
        sampling=wire.SamplingOptions(seed=body.seed),
        max_lead_ms=runtime.settings.max_lead_ms,
        timestamps=timestamps and runtime.talker.has_word_timings,
    )


class StreamOptions(NamedTuple):
    """Options of a socket, from its URL. ``voice`` is the client's name for it."""

    voice: str
    format: OutputFormat
    seed: int | None
    auto_mode: bool
    sync_alignment: bool
    inactivity_s: float

    def create(self, runtime: Runtime, speed: float) -> wire.ContextCreate:
        """Translate the options to a context of this socket."""
        return wire.ContextCreate(
            NAME,
            voice=self.voice,
            audio=wire.AudioOptions(speed=speed),
            sampling=wire.SamplingOptions(seed=self.seed),
            timestamps=runtime.talker.has_word_timings,
        )


def stream_options(voice: str, query: Mapping[str, str], runtime: Runtime) -> StreamOptions:
    """Parse a socket's URL. Raises RequestError if no context with it could be served."""
    if _is_true(query, "enable_ssml_parsing"):
        raise unsupported("enable_ssml_parsing", "This server reads no SSML.")
    options = StreamOptions(
        voice,
        parse_format(query.get("output_format", DEFAULT_FORMAT)),
        _whole(query, "seed"),
        _is_true(query, "auto_mode"),
        _is_true(query, "sync_alignment"),
        min(_MAX_TIMEOUT_S, _whole(query, "inactivity_timeout") or _TIMEOUT_S),
    )
    if options.format.encoding == "wav":
        raise unsupported("output_format", "A socket has no WAV files.")
    options.format.make_encoder(runtime, 1.0)
    runtime.talker.check_options(speech_request(runtime, options.create(runtime, 1.0), NAME))
    return options


def refuse_dictionaries(locators: list[Any] | None) -> None:
    """Raise RequestError if there are any."""
    if locators:
        message = "This server has no pronunciation dictionaries."
        raise unsupported("pronunciation_dictionary_locators", message)


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _whole(query: Mapping[str, str], name: str) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise invalid_field(name, value, "a whole number", ErrorCode.INVALID_PARAMETER)
    return int(value)

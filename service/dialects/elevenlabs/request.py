"""ElevenLabs' requests and their translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from service.audio.formats import AudioFormat
from service.contexts.options import (
    FlushEncoder,
    SpeechOptions,
    check_options,
    chosen_language,
)
from service.dialects.elevenlabs.pronunciations import Locators, located
from service.runtime import Runtime
from streaming.errors import ErrorCode
from streaming.ports import Sampling
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


def parse_format(name: str) -> AudioFormat:
    """Parse an ``output_format``, ``codec_rate_bitrate``. Raises RequestError (``unsupported``)."""
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
    return AudioFormat(
        _ENCODINGS[kind],
        None if kind == "opus" else rate,
        bit_rate=bit_rate,
        is_chained=kind in ("mp3", "opus"),  # a flush ends a file
    )


class VoiceSettings(BaseModel):
    """Settings of ElevenLabs' models, of which only ``speed`` is supported."""

    speed: Annotated[float, Field(ge=0.25, le=4)] | None = Field(
        None, description="How many times as fast, at the same pitch."
    )


class SpokenBody(BaseModel):
    """What the bodies of all HTTP requests have. ElevenLabs' other fields are accepted, without
    effect.
    """

    model_id: str | None = Field(None, description="Any name; the served model speaks.")
    language_code: str | None = Field(
        None,
        description="A language that the model reads, such as `en`. Without effect, and named as "
        "ignored, where the model follows the text.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = Field(
        None, description="The same seed and text give the same audio."
    )
    pronunciation_dictionary_locators: Locators | None = Field(
        None, description="Dictionaries to speak by; an earlier one comes first."
    )
    audio_effects: dict[str, Any] | None = Field(None, description="Not served.")


class SpeechBody(SpokenBody):
    """The body of a request for a text."""

    text: str = Field(description="The text to speak.")
    voice_settings: VoiceSettings | None = Field(None, description="Only `speed` has an effect.")


def speech_options(
    body: SpokenBody, voice: str, format_: AudioFormat, runtime: Runtime, *, timestamps: bool
) -> SpeechOptions:
    """Translate ``body``, in a format at its speed. Raises RequestError."""
    if body.audio_effects:
        raise unsupported("audio_effects", "This server has no audio effects.")
    return SpeechOptions(
        format=format_,
        voice=voice,
        language=chosen_language(runtime, {"language_code": body.language_code}),
        sampling=Sampling(seed=body.seed),
        pronunciations=located(body.pronunciation_dictionary_locators, runtime),
        timestamps=timestamps,
        may_be_silent=True,
    )


def at_speed(format_: AudioFormat, settings: VoiceSettings | None) -> AudioFormat:
    """Return the format with the speed of a voice's settings."""
    speed = None if settings is None else settings.speed
    return replace(format_, speed=speed or 1.0)


class StreamOptions(NamedTuple):
    """Options of a socket, from its URL. Its contexts may have other speeds."""

    speech: SpeechOptions
    auto_mode: bool
    sync_alignment: bool
    inactivity_s: float


def stream_options(voice: str | None, query: Mapping[str, str], runtime: Runtime) -> StreamOptions:
    """Parse a socket's URL. Raises RequestError if no context with it could be served."""
    if _is_true(query, "enable_ssml_parsing"):
        raise unsupported("enable_ssml_parsing", "This server reads no SSML.")
    format_ = parse_format(query.get("output_format", DEFAULT_FORMAT))
    seed, inactivity_s = _whole(query, "seed"), _whole(query, "inactivity_timeout") or _TIMEOUT_S
    if format_.name == "wav":
        raise unsupported("output_format", "A socket has no WAV files.")
    speech = SpeechOptions(
        format=format_,
        voice=voice,
        language=chosen_language(runtime, {"language_code": query.get("language_code")}),
        sampling=Sampling(seed=seed),
        timestamps=runtime.engines.talker.spec.has_word_timings,
        # the end of a file is audible
        flush_encoder=(
            FlushEncoder.EACH_PAUSE if format_.is_chained else FlushEncoder.EACH_UTTERANCE
        ),
        may_be_silent=True,
    )
    check_options(runtime, speech)
    return StreamOptions(
        speech,
        _is_true(query, "auto_mode"),
        _is_true(query, "sync_alignment"),
        min(_MAX_TIMEOUT_S, inactivity_s),
    )


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _whole(query: Mapping[str, str], name: str) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise invalid_field(name, value, "a whole number", ErrorCode.INVALID_PARAMETER)
    return int(value)

"""What Cartesia's clients ask for, checked and put into the core's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.audio.factory import MEDIA_TYPES, make_stream_encoder
from service.audio.packet import AudioEncoder
from service.runtime import Runtime
from service.voices_map import resolve_voice
from streaming import wire
from streaming.errors import ErrorCode, RequestError

NAME = "cartesia"
_WAV = {
    "pcm_s16le": "wav",
    "pcm_f32le": "wav_f32le",
    "pcm_mulaw": "wav_mulaw",
    "pcm_alaw": "wav_alaw",
}
_SPEED_WORDS = (None, "normal", 0)
_CALM = (None, "neutral")
_ContextId = Annotated[str, Field(min_length=1, max_length=128)]


class OutputFormat(BaseModel):
    """Container, encoding and rate."""

    model_config = ConfigDict(extra="ignore")
    container: Literal["raw", "wav", "mp3"] = Field(description="On the socket and as SSE: `raw`.")
    encoding: Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] = Field(
        "pcm_s16le", description="Of `raw` and `wav`."
    )
    sample_rate: Annotated[int, Field(ge=1, le=2**31)]
    bit_rate: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Of `mp3`, in bits per second."
    )

    @property
    def name(self) -> str:
        """The encoder's."""
        if self.container == "raw":
            return self.encoding
        return "mp3" if self.container == "mp3" else _WAV[self.encoding]

    @property
    def media_type(self) -> str:
        """Of the bytes over HTTP."""
        return MEDIA_TYPES[self.name]

    def make_encoder(self, codec_rate: int, speed: float) -> AudioEncoder:
        """For one context. Raises RequestError (``unsupported``)."""
        bit_rate = self.bit_rate if self.container == "mp3" else None
        try:
            return make_stream_encoder(
                self.name, codec_rate, self.sample_rate, bit_rate=bit_rate, speed=speed
            )
        except RequestError as error:
            param = "generation_config.speed" if error.param == "speed" else "output_format"
            raise RequestError(error.code, error.message, param=param) from error


class VoiceObject(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(extra="ignore")
    id: str | None = None
    mode: str = "id"


class GenerationConfig(BaseModel):
    """Knobs of Cartesia's models. Of them, only ``speed`` is one here."""

    model_config = ConfigDict(extra="ignore")
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = Field(
        None, description="How many times as fast, at the same pitch."
    )
    volume: float | None = Field(None, description="Only 1 is served.")
    emotion: Any = Field(None, description="Only `neutral` is served.")


class SpeechBody(BaseModel):
    """The body of the HTTP requests. Cartesia's other fields are taken, without effect."""

    model_config = ConfigDict(extra="ignore")

    transcript: str = Field("", description="The text to speak.")
    voice: str | VoiceObject | None = Field(None, description='A name, or `{"id": name}`.')
    output_format: OutputFormat | None = None
    model_id: str | None = Field(None, description="Any name; the served model speaks.")
    language: str | None = Field(None, description="The text's language, as a hint.")
    locale: str | None = Field(None, description="The same.")
    generation_config: GenerationConfig | None = Field(
        None, description="Only `speed` has an effect."
    )
    speed: Any = Field(None, description="Only `normal`; see `generation_config`.")
    pronunciation_dict_id: str | None = Field(None, description="Not served.")
    add_timestamps: bool | None = Field(
        None, description="Words with their times, where the model has them."
    )
    add_phoneme_timestamps: bool | None = Field(None, description="Not served.")
    save: bool | None = Field(None, description="Not served.")
    context_id: _ContextId | None = None

    @property
    def pace(self) -> float:
        """How many times as fast as the voice's own."""
        config = self.generation_config
        return config.speed if config is not None and config.speed else 1.0

    def require_format(self, *containers: str) -> OutputFormat:
        """Raises RequestError unless one of ``containers`` is asked for."""
        if self.output_format is None:
            raise RequestError(
                ErrorCode.INVALID_MESSAGE, "A field is missing.", param="output_format"
            )
        if self.output_format.container not in containers:
            raise _unsupported("output_format", f"The containers here are {', '.join(containers)}.")
        return self.output_format


class ContextRequest(SpeechBody):
    """A message on the socket: text for a context, or its cancelling."""

    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    cancel: bool | None = None
    max_buffer_delay_ms: Annotated[int, Field(ge=0, le=5000)] | None = None


def context_create(
    body: SpeechBody, runtime: Runtime, context_id: str, max_lead_ms: int | None = None
) -> wire.ContextCreate:
    """What ``body`` asks for. Raises RequestError."""
    _refuse_what_is_not_served(body)
    return wire.ContextCreate(
        context_id,
        voice=resolve_voice(_voice(body.voice), runtime),
        language=body.language or body.locale or None,
        audio=wire.AudioOptions(speed=body.pace),
        max_lead_ms=max_lead_ms,
        timestamps=bool(body.add_timestamps) and runtime.talker.has_word_timings,
    )


def _voice(voice: str | VoiceObject | None) -> str:
    if isinstance(voice, VoiceObject):
        if voice.mode != "id":
            raise _unsupported("voice", "A voice is named by its id.")
        voice = voice.id
    if not voice:
        raise RequestError(ErrorCode.INVALID_MESSAGE, "A field is missing.", param="voice")
    return voice


def _refuse_what_is_not_served(body: SpeechBody) -> None:
    config = body.generation_config
    if body.speed not in _SPEED_WORDS:
        raise _unsupported("speed", "The speed is set in generation_config.")
    if config is not None and config.volume not in (None, 1):
        raise _unsupported("generation_config.volume", "This server speaks at one volume.")
    if config is not None and config.emotion not in _CALM:
        raise _unsupported("generation_config.emotion", "This server's voices have no emotions.")
    if body.pronunciation_dict_id:
        raise _unsupported("pronunciation_dict_id", "This server has no dictionaries.")
    if body.add_phoneme_timestamps:
        raise _unsupported("add_phoneme_timestamps", "This server has no phonemes.")
    if body.save:
        raise _unsupported("save", "This server keeps no audio.")


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)

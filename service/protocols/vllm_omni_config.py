"""The ``session.config`` of vLLM-Omni's clients, checked and put into the core's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from service.audio.factory import make_stream_encoder
from service.audio.packet import AudioEncoder
from service.audio.restart import RestartingEncoder
from service.context_settings import speech_request
from service.http_route import request_fault
from service.runtime import Runtime
from service.voices_map import resolve_voice
from streaming import wire
from streaming.errors import ErrorCode, RequestError

NAME = "vllm-omni"
_FORMATS = {
    "wav": "wav",
    "pcm": "pcm_s16le",
    "flac": "flac",
    "mp3": "mp3",
    "opus": "ogg_opus",
    "aac": "aac",
}
_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]
_Bool = Annotated[bool, Field(strict=True)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
#: Fields that vLLM-Omni knows and this server does not serve unless they say nothing.
_UNSERVED = (
    "instructions", "ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding",
    "word_timestamps", "extra_params",
)  # fmt: skip


class SessionConfig(BaseModel):
    """What holds for the texts that follow. Fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")

    model: _Name | None = None
    voice: _Name | None = Field(None, validation_alias=AliasChoices("voice", "speaker"))
    task_type: Literal["CustomVoice"] | None = None
    language: _Name | None = None
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] = "wav"
    sample_rate: _Int | None = None
    speed: _Float | None = Field(None, ge=0.25, le=4.0)
    seed: _Int | None = Field(None, ge=0, lt=2**53)
    temperature: _Float | None = Field(None, ge=0, le=2)
    top_p: _Float | None = Field(None, gt=0, le=1)
    top_k: _Int | None = Field(None, ge=1, le=1024)
    max_new_tokens: _Int | None = Field(None, ge=1)
    initial_codec_chunk_frames: _Int | None = Field(None, ge=0)
    #: About the prompt of another model; without effect.
    non_streaming_mode: _Bool | None = None
    stream_audio: _Bool = False
    split_granularity: Literal["none", "sentence"] = "none"

    def encoder(self, codec_rate: int) -> AudioEncoder:
        """Samples as they come, or a file for each sentence. Raises RequestError."""

        def make() -> AudioEncoder:
            return make_stream_encoder(
                _FORMATS[self.response_format],
                codec_rate,
                self.sample_rate,
                speed=self.speed or 1.0,
            )

        return make() if self.response_format == "pcm" else RestartingEncoder(make)

    def create(self, context_id: str, runtime: Runtime) -> wire.ContextCreate:
        """A context in the core's words. A token of vLLM-Omni's is a frame here."""
        most = wire.SamplingOptions(
            self.temperature,
            self.top_p,
            self.top_k,
            self.seed,
            None if self.max_new_tokens is None else min(self.max_new_tokens, 8192),
        )
        first = self.initial_codec_chunk_frames or None
        return wire.ContextCreate(
            context_id,
            voice=resolve_voice(self.voice, runtime),
            language=None if self.language in (None, "Auto") else self.language,
            audio=wire.AudioOptions(speed=self.speed or 1.0),
            sampling=most,
            mode="chunked" if self.stream_audio else "whole",
            chunking=wire.ChunkingOptions(first_chunk_frames=first and min(first, 4096)),
        )


def parse_config(message: dict[str, Any], runtime: Runtime) -> SessionConfig:
    """Read a ``session.config`` and check that it can be served. Raises RequestError."""
    fields = {name: value for name, value in message.items() if name != "type"}
    for name in _UNSERVED:
        if fields.pop(name, None):
            raise _unsupported(name, f"{name} is not served here.")
    if fields.get("split_granularity") == "clause":
        raise _unsupported("split_granularity", "Text is split at sentences, or not at all.")
    try:
        config = SessionConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise request_fault({**fault, "loc": ("body", *fault["loc"])}) from None
    if config.stream_audio and config.response_format != "pcm":
        raise _unsupported("response_format", "stream_audio needs the response_format pcm.")
    known = (runtime.settings.model_name, *runtime.settings.openai_model_aliases)
    if config.model is not None and config.model not in known:
        raise RequestError(
            ErrorCode.UNKNOWN_MODEL, "This server does not serve that model.", param="model"
        )
    config.encoder(runtime.codec.spec.sample_rate)
    request = speech_request(runtime, config.create("probe", runtime), "probe")
    runtime.talker.check_options(request)
    return config


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)

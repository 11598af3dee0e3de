"""vLLM-Omni's ``session.config``, checked and translated to the core's terms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from service.audio.containers import RestartingEncoder
from service.audio.encoder import AudioEncoder
from service.audio.factory import make_stream_encoder
from service.contexts.options import Prepare, require_model, speech_request
from service.dialects.errors import validation_error
from service.dialects.openai.references import TaskType, check_task_type, prepare_ref_audio
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError
from streaming.protocol import messages as wire

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
    "instructions", "x_vector_only_mode", "speaker_embedding", "word_timestamps", "extra_params",
)  # fmt: skip
#: Fields that its clients send empty where they mean nothing by them.
_CLIP = ("ref_audio", "ref_text")


class SessionConfig(BaseModel):
    """What holds for the texts that follow. Fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")

    model: _Name | None = None
    voice: _Name | None = Field(None, validation_alias=AliasChoices("voice", "speaker"))
    task_type: TaskType | None = None
    ref_audio: str | None = None
    ref_text: Annotated[str, Field(max_length=4000)] | None = None
    language: _Name | None = None
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] = "wav"
    sample_rate: _Int | None = None
    speed: _Float | None = Field(None, ge=0.25, le=4.0)
    seed: _Int | None = Field(None, ge=0, lt=2**53)
    temperature: _Float | None = Field(None, ge=0, le=2)
    top_p: _Float | None = Field(None, gt=0, le=1)
    top_k: _Int | None = Field(None, ge=1, le=1024)
    ras_win_len: _Int | None = Field(None, ge=0, le=wire.MAX_RAS)
    ras_max_repeat: _Int | None = Field(None, ge=1, le=wire.MAX_RAS)
    max_new_tokens: _Int | None = Field(None, ge=1)
    scene: Annotated[str, Field(min_length=1, max_length=wire.MAX_SCENE_CHARS)] | None = None
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

    def prepare(self, runtime: Runtime) -> Prepare | None:
        """How to make the reference of the clip, if there is one. Raises RequestError."""
        check_task_type(self.task_type, self.ref_audio)
        return prepare_ref_audio(self.ref_audio, self.ref_text, self.voice, runtime)

    def warning(self, runtime: Runtime) -> str | None:
        """A warning: why the likeness will be poorer than it could be."""
        return None if self.ref_audio is None else runtime.cloner.text_warning(self.ref_text)

    def create(self, context_id: str) -> wire.ContextCreate:
        """A context in the core's words. A token of vLLM-Omni's is a frame here."""
        most = wire.SamplingOptions(
            self.temperature,
            self.top_p,
            self.top_k,
            self.seed,
            None if self.max_new_tokens is None else min(self.max_new_tokens, 8192),
            self.ras_win_len,
            self.ras_max_repeat,
        )
        first = self.initial_codec_chunk_frames or None
        return wire.ContextCreate(
            context_id,
            voice=self.voice,
            language=None if self.language in (None, "Auto") else self.language,
            audio=wire.AudioOptions(speed=self.speed or 1.0),
            sampling=most,
            mode="chunked" if self.stream_audio else "whole",
            chunking=wire.ChunkingOptions(first_chunk_frames=first and min(first, 4096)),
            scene=self.scene,
        )


def parse_config(message: dict[str, Any], runtime: Runtime) -> SessionConfig:
    """Read a ``session.config`` and check that it can be served. Raises RequestError."""
    fields = {name: value for name, value in message.items() if name != "type"}
    for name in _UNSERVED:
        if fields.pop(name, None):
            raise _unsupported(name, f"{name} is not served here.")
    fields = {name: value for name, value in fields.items() if value or name not in _CLIP}
    if fields.get("split_granularity") == "clause":
        raise _unsupported("split_granularity", "Text is split at sentences, or not at all.")
    try:
        config = SessionConfig.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error.errors(), SessionConfig.model_fields, rooted=False) from None
    if config.stream_audio and config.response_format != "pcm":
        raise _unsupported("response_format", "stream_audio needs the response_format pcm.")
    require_model(runtime, config.model)
    config.encoder(runtime.codec.spec.sample_rate)
    request = speech_request(runtime, config.create("probe"), "probe")
    runtime.talker.check_options(request)
    config.prepare(runtime)
    return config


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)

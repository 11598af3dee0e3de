"""vLLM-Omni's ``session.config``, checked and translated to the core's terms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from service.audio.containers import RestartingEncoder
from service.audio.encoder import AudioEncoder
from service.audio.factory import make_stream_encoder
from service.contexts.options import Prepare, require_model, speech_request
from service.dialects.errors import validation_error
from service.dialects.openai.references import check_task_type, prepare_ref_audio
from service.dialects.openai.request import FORMATS, SpeechOptions
from service.runtime import Runtime
from streaming.protocol import messages as wire
from streaming.protocol.field_errors import unsupported

NAME = "vllm-omni"
_Name = Annotated[str, Field(min_length=1, max_length=256)]
#: Fields that vLLM-Omni knows and this server does not serve unless they say nothing.
_UNSERVED = (
    "instructions", "x_vector_only_mode", "speaker_embedding", "word_timestamps", "extra_params",
)  # fmt: skip
#: Fields that its clients send empty where they mean nothing by them.
_CLIP = ("ref_audio", "ref_text")


class SessionConfig(SpeechOptions):
    """What holds for the texts that follow. Fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")

    model: _Name | None = None
    voice: _Name | None = Field(None, validation_alias=AliasChoices("voice", "speaker"))
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] = "wav"
    sample_rate: StrictInt | None = None
    max_new_tokens: StrictInt | None = Field(None, ge=1)
    initial_codec_chunk_frames: StrictInt | None = Field(None, ge=0)
    #: About the prompt of another model; without effect.
    non_streaming_mode: StrictBool | None = None
    stream_audio: StrictBool = False
    split_granularity: Literal["none", "sentence"] = "none"

    def encoder(self, codec_rate: int) -> AudioEncoder:
        """Samples as they come, or a file for each sentence. Raises RequestError."""

        def make() -> AudioEncoder:
            return make_stream_encoder(
                FORMATS[self.response_format], codec_rate, self.sample_rate, speed=self.pace
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
        first = self.initial_codec_chunk_frames or None
        return wire.ContextCreate(
            context_id,
            voice=self.voice,
            language=None if self.language in (None, "Auto") else self.language,
            audio=wire.AudioOptions(speed=self.pace),
            sampling=self.sampling(self.max_new_tokens),
            mode="chunked" if self.stream_audio else "whole",
            chunking=wire.ChunkingOptions(first_chunk_frames=first and min(first, 4096)),
            scene=self.scene,
        )


def parse_config(message: dict[str, Any], runtime: Runtime) -> SessionConfig:
    """Read a ``session.config`` and check that it can be served. Raises RequestError."""
    fields = {name: value for name, value in message.items() if name != "type"}
    for name in _UNSERVED:
        if fields.pop(name, None):
            raise unsupported(name, f"{name} is not served here.")
    fields = {name: value for name, value in fields.items() if value or name not in _CLIP}
    if fields.get("split_granularity") == "clause":
        raise unsupported("split_granularity", "Text is split at sentences, or not at all.")
    try:
        config = SessionConfig.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error.errors(), SessionConfig.model_fields, rooted=False) from None
    if config.stream_audio and config.response_format != "pcm":
        raise unsupported("response_format", "stream_audio needs the response_format pcm.")
    require_model(runtime, config.model)
    config.encoder(runtime.codec.spec.sample_rate)
    request = speech_request(runtime, config.create("probe"), "probe")
    runtime.talker.check_options(request)
    config.prepare(runtime)
    return config

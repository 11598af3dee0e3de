"""Settings: command line over environment (``TALKWIRE_*``) over a TOML file over defaults."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.origin import parse_origins

PREFIX = "TALKWIRE_"
#: The speaking checkpoint that ships with the project.
EMBEDDED_MODEL = Path(__file__).resolve().parent.parent / "embedded" / "checkpoint"
_EMBEDDED_SEGMENT, _SEGMENT = 90, 300
#: Names that OpenAI's clients send where they do not let one choose.
_OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
#: Web origins; the environment has them with commas between them.
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_origins)]


class SettingsError(Exception):
    """A setting is unknown or out of range; the text says which."""


class Settings(BaseSettings):
    """Everything an operator can set. docs/settings.md lists them with their meaning."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"

    model: str = "embedded"
    served_model_name: str | None = None
    openai_model_aliases: Annotated[tuple[str, ...], NoDecode] = _OPENAI_MODELS
    talker_engine: Literal["auto", "inprocess", "async"] = "auto"
    talker_threads: Annotated[int, Field(ge=1)] = 1
    talker_max_num_seqs: Annotated[int, Field(ge=1)] = 16
    talker_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    talker_tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    talker_data_parallel_size: Annotated[int, Field(ge=1)] = 1
    talker_gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    codec_threads: Annotated[int, Field(ge=1)] = 1
    codec_device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"

    max_contexts: Annotated[int, Field(ge=1)] | None = None
    max_contexts_per_session: Annotated[int, Field(ge=1)] = 8
    max_connections: Annotated[int, Field(ge=1)] = 256
    allowed_origins: Origins = ()
    max_message_bytes: Annotated[int, Field(ge=1024)] = 65_536
    max_text_chars: Annotated[int, Field(ge=1)] = 20_000
    max_segment_chars: Annotated[int, Field(ge=20)] | None = None
    default_lead_ms: Annotated[int, Field(ge=100)] = 10_000
    max_lead_ms: Annotated[int, Field(ge=100)] = 120_000
    max_outbox_bytes: Annotated[int, Field(ge=65_536)] = 16 << 20
    context_idle_s: Annotated[float, Field(gt=0)] = 60.0
    session_idle_s: Annotated[float, Field(gt=0)] = 300.0
    drain_s: Annotated[float, Field(ge=0)] = 30.0
    slow_consumer_s: Annotated[float, Field(gt=0)] = 10.0

    first_chunk_frames: Annotated[int, Field(ge=1)] | None = None
    max_chunk_frames: Annotated[int, Field(ge=1)] = 50
    left_context_frames: Annotated[int, Field(ge=0)] | None = None
    first_lookahead_frames: Annotated[int, Field(ge=0)] = 2
    lookahead_frames: Annotated[int, Field(ge=0)] = 4
    network_guard_ms: Annotated[int, Field(ge=0)] = 0

    @field_validator("openai_model_aliases", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        """The environment has no lists: names with commas between them."""
        if isinstance(value, str):
            return tuple(name for part in value.split(",") if (name := part.strip()))
        return value

    @field_validator("talker_data_parallel_size")
    @classmethod
    def _check_spread(cls, value: int, info: ValidationInfo) -> int:
        """What the talker process would refuse is better said before anything starts."""
        if value > 1 and info.data.get("talker_engine") == "inprocess":
            raise ValueError("data parallelism needs talker_engine async or auto")
        return value

    @property
    def model_path(self) -> str:
        """The folder or hub id that ``model`` stands for."""
        return str(EMBEDDED_MODEL) if self.model == "embedded" else self.model

    @property
    def segment_chars(self) -> int:
        """The longest text that the talker is given at once; the embedded voice's is in its
        model card.
        """
        default = _EMBEDDED_SEGMENT if self.model == "embedded" else _SEGMENT
        return self.max_segment_chars or default

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.served_model_name or Path(self.model.rstrip("/")).name


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings. ``overrides`` that are None count as not given. Raises SettingsError."""
    known = set(Settings.model_fields)
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX) and name[len(PREFIX) :].lower() not in known
    )
    if unknown:
        raise SettingsError(f"unknown settings in the environment: {', '.join(unknown)}")
    values = _read_file(config) if config else {}
    values |= {
        field: os.environ[name]
        for name in os.environ
        if name.upper().startswith(PREFIX) and (field := name[len(PREFIX) :].lower()) in known
    }
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors()
        )
        raise SettingsError("; ".join(faults)) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error

"""Settings: command line over environment (``TALKWIRE_*``) over a TOML file over defaults."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.hosts import is_loopback, parse_hosts
from service.origin import parse_origins

PREFIX = "TALKWIRE_"
#: The speaking checkpoint that ships with the project.
EMBEDDED_MODEL = Path(__file__).resolve().parent.parent / "embedded" / "checkpoint"
_EMBEDDED_SEGMENT, _SEGMENT = 90, 300
#: Names that OpenAI's clients send where they do not let one choose.
_OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
#: Web origins; the environment has them with commas between them.
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_origins)]
#: Names that the service goes by, in the same way.
Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_hosts)]
#: What the environment may hold beside settings: the clients' own.
_CLIENTS_OWN = frozenset((f"{PREFIX}URL", f"{PREFIX}API_KEY"))


def parse_aliases(value: object) -> object:
    """Names and what they stand for, from a file (a table) or the environment (a JSON object)."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError('not a JSON object like {"their id": "our voice"}') from error


Aliases = Annotated[dict[str, str], NoDecode, BeforeValidator(parse_aliases)]


#: A time that one might wait for. Longer ones are slips, and overflow where they are counted in ms.
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]


def _check_path(value: object) -> object:
    """An empty text is the folder that the service happens to be started in."""
    if value == "":
        raise ValueError("empty; leave it out to have none")
    return value


File = Annotated[Path, BeforeValidator(_check_path)]


class SettingsError(Exception):
    """A setting is unknown or out of range; the text says which."""


class Settings(BaseSettings):
    """Everything an operator can set. docs/settings.md lists them with their meaning."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    tls_certificate: File | None = None
    tls_key: File | None = None
    auth: Literal["auto", "off"] = "auto"
    api_keys_file: File | None = None
    max_failed_keys_per_minute: Annotated[int, Field(ge=1)] = 30
    allowed_hosts: Hosts = ()
    admin_host: str = "127.0.0.1"
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    metrics_public: bool | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    tracing: bool = False

    model: str = "embedded"
    served_model_name: str | None = None
    openai_model_aliases: Annotated[tuple[str, ...], NoDecode] = _OPENAI_MODELS
    voice_aliases: Aliases = {}
    unknown_voice: Literal["error", "default"] = "error"
    talker_engine: Literal["auto", "inprocess", "async"] = "auto"
    talker_threads: Annotated[int, Field(ge=1)] = 1
    talker_max_num_seqs: Annotated[int, Field(ge=1)] = 16
    talker_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    talker_quantization: Literal["none", "int8", "fp8"] = "none"
    talker_continuity: Literal["auto", "on", "off"] = "auto"
    talker_tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    talker_data_parallel_size: Annotated[int, Field(ge=1)] = 1
    talker_distributed_executor: Literal["auto", "mp", "ray"] = "auto"
    talker_gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    codec_threads: Annotated[int, Field(ge=1)] = 1
    codec_device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    codec_graphs: Literal["auto", "off"] = "auto"
    codec_max_batch: Annotated[int, Field(ge=1, le=64)] = 8

    admission: Literal["measured", "fixed"] = "measured"
    max_contexts: Annotated[int, Field(ge=1)] | None = None
    max_contexts_per_session: Annotated[int, Field(ge=1)] = 8
    max_connections: Annotated[int, Field(ge=1)] = 256
    allowed_origins: Origins = ()
    voices_dir: File | None = None
    max_voices: Annotated[int, Field(ge=0, le=10_000)] = 1000
    asr_model: File | None = None
    max_message_bytes: Annotated[int, Field(ge=1024)] = 65_536
    max_text_chars: Annotated[int, Field(ge=1)] = 20_000
    max_segment_chars: Annotated[int, Field(ge=20)] | None = None
    default_lead_ms: Annotated[int, Field(ge=100)] = 10_000
    max_lead_ms: Annotated[int, Field(ge=100)] = 120_000
    max_outbox_bytes: Annotated[int, Field(ge=65_536)] = 16 << 20
    max_batch_items: Annotated[int, Field(ge=1)] = 32
    max_batch_contexts: Annotated[int, Field(ge=1)] = 4
    context_idle_s: Seconds = 60.0
    session_idle_s: Seconds = 300.0
    max_session_s: Seconds | None = None
    handshake_s: Seconds = 10.0
    drain_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 30.0
    slow_consumer_s: Seconds = 10.0

    first_chunk_frames: Annotated[int, Field(ge=1)] | None = None
    max_chunk_frames: Annotated[int, Field(ge=1)] = 50
    left_context_frames: Annotated[int, Field(ge=0)] | None = None
    first_lookahead_frames: Annotated[int, Field(ge=0)] = 2
    lookahead_frames: Annotated[int, Field(ge=0)] = 4
    incomplete_lookahead: bool = True
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

    @field_validator("talker_distributed_executor")
    @classmethod
    def _check_executor(cls, value: str, info: ValidationInfo) -> str:
        if value == "ray" and info.data.get("talker_engine") == "inprocess":
            raise ValueError("workers under Ray need talker_engine async or auto")
        return value

    @field_validator("tls_key")
    @classmethod
    def _check_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        """A key without its certificate would leave the service without TLS, unnoticed."""
        if value is not None and info.data.get("tls_certificate") is None:
            raise ValueError("a key needs its certificate: tls_certificate")
        return value

    @property
    def metrics_are_public(self) -> bool:
        """Whether ``/metrics`` is for everybody on the public listener."""
        if self.metrics_public is not None:
            return self.metrics_public
        return self.api_keys_file is None and is_loopback(self.host)

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
        return self.served_model_name or Path(self.model).name or Path(self.model).resolve().name


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings. ``overrides`` that are None count as not given. Raises SettingsError."""
    known = set(Settings.model_fields)
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX)
        and name[len(PREFIX) :].lower() not in known
        and name.upper() not in _CLIENTS_OWN
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
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error

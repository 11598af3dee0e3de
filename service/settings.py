"""Settings, by precedence: command line, environment (``TALKWIRE_*``), TOML file, defaults."""

from __future__ import annotations

import difflib
import json
import os
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from codec.worker_count import workers_for
from service.hosts import is_loopback, parse_host, parse_origin
from streaming.gpu_limits import connections_for
from talker.settings import TalkerSettings

PREFIX = "TALKWIRE_"
#: The speaking checkpoint that ships with the project.
EMBEDDED_MODEL = Path(__file__).resolve().parent.parent / "embedded" / "checkpoint"
#: Model names that OpenAI's clients send when the user cannot choose one.
_OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
#: Old and new hub ids of a renamed checkpoint.
_RENAMED = (
    ("bosonai/higgs-audio-v3-tts-4b", "bosonai/higgs-tts-3-4b"),
    ("bosonai/higgs-audio-v2-generation-3B-base", "bosonai/higgs-tts-2-3b-base"),
)
#: Environment variables of the clients, which are not settings.
_CLIENTS_OWN = frozenset((f"{PREFIX}URL", f"{PREFIX}API_KEY"))


def _split(value: object) -> object:
    """Split a list from the environment at its commas."""
    if isinstance(value, str):
        return tuple(entry for part in value.split(",") if (entry := part.strip()))
    return value


_Split = BeforeValidator(_split)
#: Names of any kind, web origins, and host names of the service.
Names = Annotated[tuple[str, ...], _Split]
Origins = Annotated[tuple[Annotated[str, AfterValidator(parse_origin)], ...], _Split]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(parse_host)], ...], _Split]


def parse_aliases(value: object) -> object:
    """Parse names by name, a table in a file or JSON in the environment. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError('not a JSON object like {"their id": "our voice"}') from error


Aliases = Annotated[dict[str, str], BeforeValidator(parse_aliases)]


_MAX_CODEC_WORKERS = 64


def _parse_workers(value: object) -> object:
    """Parse a number of workers, or ``auto``. Raises ValueError."""
    if value == "auto":
        return value
    if str(value).isdecimal() and 1 <= (count := int(str(value)[:4])) <= _MAX_CODEC_WORKERS:
        return count
    raise ValueError(f"auto, or a number from 1 to {_MAX_CODEC_WORKERS}, not {reprlib.repr(value)}")


Workers = Annotated[int | Literal["auto"], BeforeValidator(_parse_workers)]
Count = Annotated[int, Field(ge=1)]
#: An empty host would be all addresses, and an empty model the working directory.
NonEmpty = Annotated[str, Field(min_length=1)]
#: Durations of at most a week. Longer ones are mistakes, and overflow when converted to ms.
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]
Milliseconds = Annotated[int, Field(ge=0, le=604_800_000)]


def _check_path(value: object) -> object:
    """Refuse an empty path, which would be the working directory."""
    if value == "":
        raise ValueError("empty; leave it out to have none")
    return value


File = Annotated[Path, BeforeValidator(_check_path)]


_SECRET_FILES = ("api_keys_file", "token_secret_file", "tls_key")

#: Characters of an unknown name that are compared; the comparison of long ones takes long.
_MAX_NAME = 100


class SettingsError(Exception):
    """A setting is unknown or out of range; the text names it."""


class Settings(BaseModel):
    """All settings of an operator; docs/reference/settings.md explains them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: NonEmpty = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    tls_certificate: File | None = None
    tls_key: File | None = None
    auth: Literal["auto", "off"] = "auto"
    api_keys_file: File | None = None
    token_secret_file: File | None = None
    max_failed_keys_per_minute: Count = 30
    allowed_hosts: Hosts = ()
    admin_host: NonEmpty = "127.0.0.1"
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    wyoming_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    metrics_public: bool | None = None
    public_lists: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    tracing: bool = False

    model: NonEmpty = "embedded"
    served_model_name: str | None = None
    served_model_names: Names = ()
    openai_model_aliases: Names = _OPENAI_MODELS
    voice_aliases: Aliases = {}
    unknown_voice: Literal["auto", "error", "default"] = "auto"
    unknown_model: Literal["auto", "error", "default"] = "auto"
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    default_response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    unspeakable_text: Literal["silence", "error"] = "silence"
    talker_engine: Literal["auto", "inprocess", "async"] = "auto"
    talker_runner: Literal["auto", "v1", "v2"] = "auto"
    talker_threads: Count = 1
    talker_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    talker_quantization: Literal["none", "int8", "fp8"] = "none"
    talker_attention_backend: Annotated[str, Field(pattern="^[A-Z][A-Z0-9_]*$")] | None = None
    talker_kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8"] = "auto"
    talker_max_num_seqs: Count | None = None
    talker_max_positions: Count | None = None
    talker_max_batched_positions: Count | None = None
    talker_kv_positions: Count | None = None
    talker_frame_slots: Count | None = None
    talker_prefix_caching: bool = True
    talker_compile: Literal["auto", "on", "off"] = "auto"
    talker_graphs: Literal["auto", "mixed", "full", "piecewise", "off"] = "auto"
    talker_graph_positions: Count = 512
    talker_step_kernels: Literal["auto", "on", "off"] = "auto"
    talker_batch_invariant: bool = False
    talker_continuity: Literal["auto", "on", "off"] = "auto"
    talker_max_conversations: Count = 1024
    talker_max_outstanding: Count | None = None
    talker_hold_rows: Count = 64
    talker_statistics: bool = False
    talker_tensor_parallel_size: Count = 1
    talker_data_parallel_size: Count = 1
    talker_distributed_executor: Literal["auto", "mp", "ray"] = "auto"
    talker_gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    codec_model: NonEmpty | None = None
    codec_threads: Count = 1
    codec_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    codec_graphs: Literal["auto", "off"] = "auto"
    codec_precision: Literal["auto", "float32", "tf32"] = "auto"
    codec_max_batch: Annotated[int, Field(ge=1, le=64)] | None = None
    codec_state_bytes: Annotated[int, Field(ge=0)] | None = None
    codec_workers: Workers = "auto"
    codec_spare: bool = False

    admission: Literal["measured", "fixed"] = "measured"
    max_contexts: Count | None = None
    max_client_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    slot_rest_s: Seconds = 5.0
    max_contexts_per_session: Count = 8
    max_connections: Count | None = None
    allowed_origins: Origins = ()
    voices_dir: File | None = None
    max_voices: Annotated[int, Field(ge=0, le=10_000)] = 1000
    references_dir: File | None = None
    pronunciations_dir: File | None = None
    shipped_voices: Literal["auto", "off"] = "auto"
    asr_model: NonEmpty | None = None
    asr_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    asr_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    asr_threads: Count = 1
    max_message_bytes: Annotated[int, Field(ge=1024)] = 65_536
    max_text_chars: Count = 20_000
    max_segment_chars: Annotated[int, Field(ge=20)] | None = None
    default_lead_ms: Annotated[Milliseconds, Field(ge=100)] = 10_000
    max_lead_ms: Annotated[Milliseconds, Field(ge=100)] = 120_000
    max_outbox_bytes: Annotated[int, Field(ge=65_536)] = 16 << 20
    max_batch_items: Count = 32
    max_batch_contexts: Count = 4
    context_idle_s: Seconds = 60.0
    session_idle_s: Seconds = 300.0
    max_session_s: Seconds | None = None
    handshake_s: Seconds = 10.0
    hold_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 8.0
    drain_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 150.0
    slow_consumer_s: Seconds = 10.0

    first_chunk_frames: Count | None = None
    max_chunk_frames: Count = 50
    left_context_frames: Annotated[int, Field(ge=0)] | None = None
    first_lookahead_frames: Annotated[int, Field(ge=0)] = 2
    lookahead_frames: Annotated[int, Field(ge=0)] = 4
    incomplete_lookahead: bool = True
    network_guard_ms: Milliseconds = 0
    trim_silence_ms: Annotated[int, Field(ge=0, le=2000)] = 100
    end_silence_ms: Annotated[int, Field(ge=0, le=60_000)] | None = None
    mask_silence_frames: Annotated[int, Field(ge=0, le=16)] = 0

    @model_validator(mode="after")
    def _check_talker(self) -> Self:
        """Refuse settings that the talker process would refuse, before anything starts."""
        try:
            self.for_talker()
        except ValueError as error:
            raise ValueError(f"talker_{error}") from error
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false for numbers, which would be 1 and 0: port 1, or one context."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind is not bool and bool not in get_args(kind):
            raise ValueError(f"not a setting that is on or off, so not {str(value).lower()}")
        return value

    @field_validator("tls_key")
    @classmethod
    def _check_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        """Refuse a key without its certificate, which would silently disable TLS."""
        if value is not None and info.data.get("tls_certificate") is None:
            raise ValueError("a key needs its certificate: tls_certificate")
        return value

    def for_talker(self) -> TalkerSettings:
        """Return the talker process's settings, all those whose names begin with ``talker_``."""
        fields = TalkerSettings.__struct_fields__
        return TalkerSettings(**{name: getattr(self, f"talker_{name}") for name in fields})

    def connections(self, contexts: int = 0) -> int:
        """Return the maximum number of open sockets; by default it follows from the maximum number
        of contexts, once that is known.
        """
        return self.max_connections or connections_for(contexts)

    def count_codec_workers(self, cores: int, *, has_gpu_build: bool) -> int:
        """Return the number of codec workers on so many cores; with ``auto`` one on a GPU, which
        a build for GPUs uses unless ``codec_device`` is the CPU.
        """
        if self.codec_workers != "auto":
            return self.codec_workers
        if self.codec_device != "cpu" and (self.codec_device != "auto" or has_gpu_build):
            return 1
        return workers_for(cores, self.talker_threads, self.codec_threads)

    @property
    def accepts_unknown_voices(self) -> bool:
        """Whether the default voice speaks for unknown ones; by default for the embedded model."""
        return self._accepts(self.unknown_voice)

    @property
    def accepts_unknown_models(self) -> bool:
        """Whether the served model speaks for unknown ones; by default the embedded one does."""
        return self._accepts(self.unknown_model)

    def _accepts(self, unknown: str) -> bool:
        return self.model == "embedded" if unknown == "auto" else unknown == "default"

    @property
    def metrics_are_public(self) -> bool:
        """Whether ``/metrics`` on the public listener needs no key."""
        if self.metrics_public is not None:
            return self.metrics_public
        return self.api_keys_file is None and is_loopback(self.host)

    @property
    def model_path(self) -> str:
        """The folder or hub id of ``model``."""
        return str(EMBEDDED_MODEL) if self.model == "embedded" else self.model

    @property
    def model_name(self) -> str:
        """The model's name in responses to clients."""
        return self.served_model_name or Path(self.model).name or Path(self.model).resolve().name

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model: the served one, those of other settings, and its hub ids."""
        folder = Path(self.model).name
        hub_ids = [id for ids in _RENAMED if folder in [i.split("/")[1] for i in ids] for id in ids]
        if self.model.count("/") == 1 and not Path(self.model).exists():
            hub_ids.insert(0, self.model)
        named = (self.model_name, *self.served_model_names, *hub_ids, *self.openai_model_aliases)
        return tuple(dict.fromkeys(named))


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings. ``overrides`` that are None count as not given. Raises SettingsError."""
    environment = {
        name.upper().removeprefix(PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and name.upper() not in _CLIENTS_OWN
    }
    if unknown := sorted(environment.keys() - Settings.model_fields.keys()):
        names = (PREFIX + name.upper() + _hint(name, in_environment=True) for name in unknown)
        raise SettingsError(f"unknown settings in the environment: {', '.join(names)}")
    values = _read_file(config) if config else {}
    values |= environment
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_describe, error.errors()))) from error


def _describe(fault: Mapping[str, Any]) -> str:
    """Return a setting's name, and what is wrong with its value. The value is not shown where it
    may be a secret: of an unknown setting, and of a file of secrets that was given in place. The
    validators of this module show it themselves.
    """
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{name}: no such setting{_hint(name)}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "value_error" and name not in _SECRET_FILES:
        message += f", not {reprlib.repr(fault['input'])}"
    return f"{name}: {message}".removeprefix(": ")


def _hint(unknown: str, *, in_environment: bool = False) -> str:
    """Return a question with the setting whose name is the nearest; empty if none is near."""
    near = difflib.get_close_matches(unknown[:_MAX_NAME], Settings.model_fields, 1)
    if not near:
        return ""
    meant = PREFIX + near[0].upper() if in_environment else near[0]
    return f" (did you mean {meant}?)"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error

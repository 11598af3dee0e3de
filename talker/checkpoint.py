"""Finds a checkpoint and reads what the gateway needs of it: shape, defaults, tokenizer file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talker.shape import ARCHITECTURE, CheckpointError, TalkerShape, read_shape
from talker.weights import check_weights

#: What a talker needs of a repository on the hub; code files are never fetched.
_HUB_FILES = ("*.json", "*.safetensors")


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How a checkpoint wants its codes drawn when the client does not say.

    These values are the family's (published with vLLM-Omni's pipeline for Higgs Audio v3);
    a checkpoint's generation_config.json overrides them one by one.
    """

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 50
    max_frames: int = 2048


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked checkpoint in a local folder. ``name`` is what the operator asked for."""

    name: str
    folder: Path
    shape: TalkerShape
    defaults: SamplingDefaults

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer in the ``tokenizers`` library's own format."""
        return self.folder / "tokenizer.json"


def open_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """Resolve a local folder or a hub id, and check it. Blocks; may download.

    Raises CheckpointError before anything heavy is started.
    """
    folder = resolve_folder(model, revision)
    config = _read_json(folder / "config.json")
    if ARCHITECTURE not in (config.get("architectures") or [ARCHITECTURE]):
        raise CheckpointError(f"architectures are {config['architectures']}, not {ARCHITECTURE}")
    shape = read_shape(config)
    check_weights(folder, shape)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json")
    return Checkpoint(model, folder, shape, read_defaults(folder, shape))


def resolve_folder(model: str, revision: str | None = None) -> Path:
    """A folder with the checkpoint's files: ``model`` itself, or a snapshot from the hub."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise CheckpointError(f"there is no folder {model}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_HUB_FILES)))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise CheckpointError(f"cannot get {model} from the hub{offline}") from error


def read_defaults(folder: Path, shape: TalkerShape) -> SamplingDefaults:
    """The family's defaults with generation_config.json over them. Raises CheckpointError."""
    family = SamplingDefaults()
    file = folder / "generation_config.json"
    own = _read_json(file) if file.is_file() else {}
    sampled = own.get("do_sample", True)
    defaults = SamplingDefaults(
        temperature=_number(own, "temperature", family.temperature) if sampled else 0.0,
        top_p=_number(own, "top_p", family.top_p),
        top_k=int(_number(own, "top_k", family.top_k)) or shape.codebook_size,
        max_frames=int(_number(own, "max_new_tokens", family.max_frames)),
    )
    sane = (
        0 <= defaults.temperature <= 2
        and 0 < defaults.top_p <= 1
        and defaults.top_k > 0
        and defaults.max_frames > shape.num_codebooks
    )
    if not sane:
        raise CheckpointError(f"{file}: sampling defaults out of range: {defaults}")
    return defaults


def _number(section: Mapping[str, Any], name: str, fallback: float) -> float:
    value = section.get(name)
    if value is None:
        return fallback
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CheckpointError(f"generation_config.json: {name} must be a number, not {value!r}")
    return value


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: missing or not JSON") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return content

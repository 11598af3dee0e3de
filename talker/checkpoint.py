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
#: Temperatures below this divide logits into infinities; 0 itself means greedy.
MIN_TEMPERATURE = 0.01


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
    """A checked checkpoint in a local folder. ``name`` is what the operator asked for.

    ``alignment_heads`` are (layer, head) pairs that look at the text being spoken; without
    any there are no word timings. ``text_frontend`` names what puts writing into words for it.
    ``has_continuity``: it was trained on talks, on prompts with earlier turns before the text,
    of at most ``continuation_positions`` if that is said.
    """

    name: str
    folder: Path
    shape: TalkerShape
    defaults: SamplingDefaults
    alignment_heads: tuple[tuple[int, int], ...] = ()
    text_frontend: str | None = None
    has_continuity: bool = False
    continuation_positions: int | None = None

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
    heads = read_alignment_heads(folder, shape)
    continuity, longest = read_continuity(folder), read_continuation_positions(folder)
    defaults, front_end = read_defaults(folder, shape), read_text_frontend(folder)
    return Checkpoint(model, folder, shape, defaults, heads, front_end, continuity, longest)


def resolve_folder(model: str, revision: str | None = None) -> Path:
    """A folder with the checkpoint's files: ``model`` itself, or a snapshot from the hub.

    Blocks; may download. Raises CheckpointError.
    """
    folder = local_folder(model)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        # Whatever it is, there is no model: what the hub's package raises when a connection
        # breaks off belongs to the HTTP package that it happens to use.
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise CheckpointError(f"cannot get {model} from the hub{offline}") from error


def local_folder(model: str) -> Path | None:
    """The real folder that ``model`` names, symbolic links resolved; None if it is a hub id.

    Raises CheckpointError if it is neither.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise CheckpointError(f"there is no folder {model}")
    return None


def read_defaults(folder: Path, shape: TalkerShape) -> SamplingDefaults:
    """The family's defaults with generation_config.json over them. A temperature that is nearly 0
    is read as 0, and a ``top_k`` of 0 or -1 as none. Raises CheckpointError.
    """
    family = SamplingDefaults()
    file = folder / "generation_config.json"
    own = _read_json(file) if file.is_file() else {}
    sampled = own.get("do_sample", True)
    temperature = _number(own, "temperature", family.temperature) if sampled else 0.0
    top_k = int(_number(own, "top_k", family.top_k))
    defaults = SamplingDefaults(
        temperature=0.0 if 0 < temperature < MIN_TEMPERATURE else temperature,
        top_p=_number(own, "top_p", family.top_p),
        top_k=shape.codebook_size if top_k in (0, -1) else top_k,
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


def read_alignment_heads(folder: Path, shape: TalkerShape) -> tuple[tuple[int, int], ...]:
    """``alignment_heads`` of generation_config.json, as Whisper's checkpoints have it; empty
    where there is none. Raises CheckpointError.
    """
    file, body = folder / "generation_config.json", shape.backbone
    named = _read_json(file).get("alignment_heads") if file.is_file() else None
    if not isinstance(named, list | None):
        raise CheckpointError(f"{file}: alignment_heads must be a list, not {named!r}")
    heads = []
    for pair in named or []:
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(i) is int for i in pair)
        if not whole or not (0 <= pair[0] < body.num_layers and 0 <= pair[1] < body.num_heads):
            raise CheckpointError(f"{file}: alignment_heads: {pair!r} is not a [layer, head] here")
        heads.append((pair[0], pair[1]))
    return tuple(heads)


def read_text_frontend(folder: Path) -> str | None:
    """``text_frontend`` of generation_config.json: the name of what puts writing into words for
    a model that reads letters alone; None where there is none. Raises CheckpointError.
    """
    file = folder / "generation_config.json"
    name = _read_json(file).get("text_frontend") if file.is_file() else None
    if name is not None and not isinstance(name, str):
        raise CheckpointError(f"{file}: text_frontend must be a name, not {name!r}")
    return name


def read_continuity(folder: Path) -> bool:
    """``continuation`` of generation_config.json; false where it is not there."""
    file = folder / "generation_config.json"
    value = _read_json(file).get("continuation", False) if file.is_file() else False
    if not isinstance(value, bool):
        raise CheckpointError(f"{file}: continuation must be true or false, not {value!r}")
    return value


def read_continuation_positions(folder: Path) -> int | None:
    """``continuation_positions`` of generation_config.json: the longest prompt, in positions,
    with which the model was taught to go on from earlier turns; None where it is not there.
    """
    file = folder / "generation_config.json"
    value = _read_json(file).get("continuation_positions") if file.is_file() else None
    if value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(f"{file}: continuation_positions must be a number, not {value!r}")
    return value


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

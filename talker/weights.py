"""Check of a checkpoint's weights by their safetensors headers: names, shapes, float types.

No weight is read, so a mistake in a checkpoint of 4 billion parameters is found in milliseconds
instead of at the end of a load.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from talker.families.family import Family
from talker.shape import CheckpointError, TalkerShape

_FLOATS = frozenset({"F32", "BF16", "F16"})
#: For layers of a quantised checkpoint: types that weights of the original shape may have, names of
#: packed weights, and names of the tensors that come with either.
_QUANTISED = _FLOATS | {"F8_E4M3", "F8_E5M2", "I8"}
_PACKED = ("weight_packed", "qweight")
_BESIDE = frozenset(
    {
        *_PACKED, "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point",
        "weight_g_idx", "weight_global_scale", "input_scale", "input_global_scale", "scales",
        "qzeros", "g_idx",
    }
)  # fmt: skip
#: Bits in safetensors' name of a type, such as F8_E4M3; BOOL has none.
_BITS = re.compile(r"[A-Z]+(\d+)")
_NAMED_AT_MOST = 5


class Header(NamedTuple):
    """A tensor's entry in a file: its type, as safetensors writes it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def check_weights(
    folder: Path, family: Family, shape: TalkerShape, *, is_quantised: bool = False
) -> tuple[Path, ...]:
    """Compare the tensors in ``folder`` with those that the family needs. Returns the files.

    If the checkpoint ``is_quantised``, the layers' matrices may be quantised. Embeddings and heads
    must be floats, because vLLM has no method for those and drift in them is audible. Raises
    CheckpointError, naming the first few missing, unexpected or misshapen weights, or one that two
    files have.
    """
    files = weight_files(folder)
    found: dict[str, Header] = {}
    files_of: dict[str, Path] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if (known := family.canonical_name(name)) is not None:
                if (other := files_of.setdefault(name, file)) != file:  # the last read would win
                    raise CheckpointError(f"{name} is both in {other} and in {file}")
                found[known] = entry
    expected = family.expected_weights(shape)
    layers = layer_matrices(expected) if is_quantised else frozenset()
    missing = [
        name
        for name in expected
        if name not in found and not (name in layers and _is_packed(name, found))
    ]
    extra = [
        name
        for name in found
        if name not in expected
        and not (_suffix(name) in _BESIDE and f"{_stem(name)}.weight" in layers)
    ]
    wrong = [
        f"{name} is {entry.dtype} {list(entry.shape)}, not float {list(expected[name])}"
        for name, entry in found.items()
        if name in expected
        and (
            entry.shape != expected[name]
            or entry.dtype not in (_QUANTISED if name in layers else _FLOATS)
        )
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", extra), ("misshapen", wrong))
        if names
    ]
    if problems:
        raise CheckpointError(f"weights in {folder}: " + "; ".join(problems))
    return files


def layer_matrices(expected: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Names of the matrices in layers, which may be quantised. Embeddings and heads are not among
    them.
    """
    return frozenset(
        name for name, size in expected.items() if len(size) == 2 and ".layers." in f".{name}"
    )


def backbone_matrices(family: Family, shape: TalkerShape) -> frozenset[str]:
    """Names of the matrices in the backbone's layers, which are vLLM's linear layers. A fast AR's
    layers are plain ones, which are never quantised (``talker.families.fast_ar``).
    """
    expected = family.expected_weights(shape)
    stacks: dict[str, list[str]] = {}
    for name in layer_matrices(expected):
        stacks.setdefault(name.partition("layers.")[0], []).append(name)

    def likeness(at: str) -> tuple[bool, int]:
        layers = {name.removeprefix(at).split(".")[1] for name in stacks[at]}
        has_all = len(layers) == shape.backbone.num_layers
        return has_all, sum(math.prod(expected[name]) for name in stacks[at])

    return frozenset(stacks[max(stacks, key=likeness)])


def stored_bytes(folder: Path, family: Family, shape: TalkerShape, float_bytes: int) -> int:
    """Bytes of a quantised checkpoint's tensors in memory: what is quantised, and its scales, as
    stored; the family's own floats with ``float_bytes`` each. Raises CheckpointError.
    """
    expected = family.expected_weights(shape)
    total = 0
    for file in weight_files(folder):
        for name, entry in read_header(file).items():
            if (known := family.canonical_name(name)) is not None:
                bits = _BITS.match(entry.dtype)
                each = int(bits[1]) // 8 if bits else 1
                is_float = known in expected and entry.dtype in _FLOATS
                total += (float_bytes if is_float else each) * math.prod(entry.shape)
    return total


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files: the index's shards, or one file. Raises CheckpointError."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(_read_index(index).values())) if index.is_file() else ["model.safetensors"]
    files = tuple(folder / name for name in names)
    for file in files:
        if not os.path.isfile(file):  # unlike is_file it takes names too long for the system
            raise CheckpointError(f"{file} is missing")
    return files


def read_header(file: Path) -> dict[str, Header]:
    """Return the types and shapes of a safetensors file's tensors by name. No weight is read.

    Raises CheckpointError, also if the file is shorter than its header says.
    """
    try:
        with safe_open(file, "np") as stored:
            slices = ((name, stored.get_slice(name)) for name in stored.keys())  # noqa: SIM118
            return {name: Header(one.get_dtype(), tuple(one.get_shape())) for name, one in slices}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from error


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


def _is_packed(name: str, found: Container[str]) -> bool:
    return any(f"{_stem(name)}.{packed}" in found for packed in _PACKED)


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index}: not a readable index") from error
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in weight_map.values()
    ):
        raise CheckpointError(f"{index}: weight_map must name files of the same folder")
    return weight_map


def _some(names: Iterable[str]) -> str:
    names = list(names)
    rest = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + rest

"""Checks a checkpoint's weights by their safetensors headers: names, shapes, float types.

No weight is read: a header is a u64 length and that many bytes of JSON. A mistake in a
4-billion-parameter checkpoint is thus found in milliseconds instead of at the end of a load.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from talker.shape import BackboneShape, CheckpointError, TalkerShape

TEXT_EMBEDDING = "tied.embedding.text_embedding.weight"
CODE_EMBEDDING = "tied.embedding.modality_embeddings.0.embedding.weight"
FINAL_NORM = "body.norm.weight"
#: The bundled codec, which the codec worker reads, and copies of the tied embeddings.
NOT_THE_TALKERS = ("tied.embedding.modality_embeddings.0.model.", "tied.head.")

Shape = tuple[int, ...]
_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100 << 20
_FLOATS = frozenset({"F32", "BF16", "F16"})
_NAMED_AT_MOST = 5


def expected_weights(shape: TalkerShape) -> dict[str, Shape]:
    """Every weight that the talker needs, and its shape."""
    body = shape.backbone
    expected: dict[str, Shape] = {
        TEXT_EMBEDDING: (body.vocab_size, body.hidden_size),
        CODE_EMBEDDING: (shape.num_codebooks * shape.codebook_rows, body.hidden_size),
        FINAL_NORM: (body.hidden_size,),
    }
    for layer in range(body.num_layers):
        for name, size in _layer_weights(body).items():
            expected[f"body.layers.{layer}.{name}.weight"] = size
    return expected


def check_weights(folder: Path, shape: TalkerShape) -> tuple[Path, ...]:
    """Compare what is in ``folder`` with what ``shape`` asks for; return the files.

    Raises CheckpointError, naming the first few missing, unexpected or misshapen weights.
    """
    files = weight_files(folder)
    found: dict[str, Any] = {}
    for file in files:
        found.update(read_header(file))
    expected = expected_weights(shape)
    missing = [name for name in expected if name not in found]
    extra = [
        name for name in found if name not in expected and not name.startswith(NOT_THE_TALKERS)
    ]
    wrong = [
        f"{name} is {entry.get('dtype')} {entry.get('shape')}, not float {list(expected[name])}"
        for name, entry in found.items()
        if name in expected
        and (tuple(entry.get("shape", ())) != expected[name] or entry.get("dtype") not in _FLOATS)
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", extra), ("misshapen", wrong))
        if names
    ]
    if problems:
        raise CheckpointError(f"weights in {folder}: " + "; ".join(problems))
    return files


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files: the index's shards, or the single file. Raises CheckpointError."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(_read_index(index).values())) if index.is_file() else ["model.safetensors"]
    files = tuple(folder / name for name in names)
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
    return files


def read_header(file: Path) -> Mapping[str, Any]:
    """A safetensors file's header: name -> {dtype, shape, data_offsets}.

    Raises CheckpointError, also when the file is shorter than its header says.
    """
    try:
        with file.open("rb") as stream:
            (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
            if length > _MAX_HEADER_BYTES:
                raise CheckpointError(f"{file}: the header claims {length} bytes")
            header = json.loads(stream.read(length))
        if not isinstance(header, dict):
            raise CheckpointError(f"{file}: the header is not an object")
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, ValueError, struct.error, LookupError, TypeError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file") from error
    if _HEADER_LENGTH.size + length + end > file.stat().st_size:
        raise CheckpointError(f"{file}: cut short")
    return header


def _layer_weights(body: BackboneShape) -> dict[str, Shape]:
    hidden, inner = body.hidden_size, body.intermediate_size
    queries, keys = body.num_heads * body.head_dim, body.num_kv_heads * body.head_dim
    return {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (body.head_dim,),
        "self_attn.k_norm": (body.head_dim,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
    except (OSError, ValueError, LookupError, TypeError) as error:
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

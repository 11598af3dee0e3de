"""Checkpoint folders on disk or from the hub, and the tensors in them.

Tensors have been renamed over time, so each is looked up under every name that it has had. Weight
norm is undone while reading. Only safetensors is read: no code from a checkpoint can run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from codec.family import CheckpointError

#: Names of tensors and their shapes.
Shapes = dict[str, tuple[int, ...]]
#: Yields the names under which a tensor may be stored, each as the tensors to merge.
StoredNames = Callable[[str], Iterator[tuple[str, ...]]]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAMED_AT_MOST = 6
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def weight_norm_names(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of a tensor that may be stored whole or weight-normed, old style or new."""
    yield (name,)
    if name.endswith(".weight"):
        stem = name.removesuffix("weight")
        yield (f"{stem}weight_g", f"{stem}weight_v")
        stem += "parametrizations.weight."
        yield (f"{stem}original0", f"{stem}original1")


def biased(name: str, *weight: int, outputs: int | None = None) -> Shapes:
    """Return the shapes of a layer's weight and bias. The bias has ``outputs`` values, or as many
    as the weight's first dimension.
    """
    return {f"{name}.weight": weight, f"{name}.bias": (outputs or weight[0],)}


def convnext_shapes(name: str, dim: int, kernel: int = 7) -> Shapes:
    """Return the shapes of a ConvNeXt block (``codec.layers.ConvNeXt``)."""
    wide = 4 * dim
    shapes = biased(f"{name}.dwconv.conv", dim, 1, kernel)
    shapes |= biased(f"{name}.norm", dim) | {f"{name}.gamma": (dim,)}
    shapes |= biased(f"{name}.pwconv1", wide, dim)
    return shapes | biased(f"{name}.pwconv2", dim, wide)


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """The safetensors files of a folder.

    ``files`` maps each key to its file; keys begin with ``prefix``. ``metadata`` is that of the
    file, if there is only one.
    """

    folder: Path
    files: Mapping[str, str]
    prefix: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, file: str = "model.safetensors", prefix: str = "") -> TensorFiles:
        """Read the keys of ``file``, or of the files that its index names.

        Raises CheckpointError.
        """
        index = folder / f"{file}.index.json"
        if index.is_file():
            files = _read_json(index).get("weight_map")
            if not isinstance(files, dict) or not all(
                isinstance(file, str) and Path(file).name == file for file in files.values()
            ):
                raise CheckpointError(f"{index} maps no keys to files of its folder")
            return cls(folder, files, prefix)
        with _opened(folder / file) as handle:
            return cls(folder, dict.fromkeys(handle.keys(), file), prefix, handle.metadata() or {})

    def has(self, key: str, names: StoredNames = weight_norm_names) -> bool:
        """Whether a tensor is stored, under any of its names."""
        return any(all(self.prefix + name in self.files for name in parts) for parts in names(key))

    def load(self, shapes: Shapes, names: StoredNames = weight_norm_names) -> dict[str, Tensor]:
        """Read these tensors as float32.

        Raises CheckpointError, which names keys that are missing, misshapen, quantised or not
        finite.
        """
        sources = find_sources(shapes, names, lambda name: self.prefix + name in self.files)
        raw = self._read({name for parts in sources.values() for name in parts})
        tensors = {key: merged([raw[name] for name in parts]) for key, parts in sources.items()}
        check_tensors(tensors, shapes)
        return tensors

    def _read(self, names: set[str]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        by_file: dict[str, list[str]] = {}
        for name in sorted(names):
            by_file.setdefault(self.files[self.prefix + name], []).append(name)
        for file, wanted in by_file.items():
            with _opened(self.folder / file) as handle:
                for name in wanted:
                    try:
                        tensor = handle.get_tensor(self.prefix + name)
                    except SafetensorError as error:  # the index is of another file
                        raise CheckpointError(f"{file} lacks {self.prefix + name}") from error
                    if tensor.dtype not in _FLOATS:  # quantised: as it stands it would be noise
                        raise CheckpointError(f"{name} in {file} is {tensor.dtype}, not a float")
                    tensors[name] = tensor.to(torch.float32)
        return tensors


def find_sources(
    shapes: Shapes, names: StoredNames, is_stored: Callable[[str], bool]
) -> dict[str, tuple[str, ...]]:
    """Find each tensor under one of its names. Raises CheckpointError, which names missing ones."""
    sources = {}
    for key in shapes:
        found = (parts for parts in names(key) if all(map(is_stored, parts)))
        if parts := next(found, None):
            sources[key] = parts
    if missing := [key for key in shapes if key not in sources]:
        raise CheckpointError(f"the codec's checkpoint lacks {_some(missing)}")
    return sources


def check_tensors(tensors: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Raise CheckpointError, which names them, for tensors that are misshapen or not finite."""
    wrong = [
        f"{key} {tuple(tensors[key].shape)} instead of {shape}"
        for key, shape in shapes.items()
        if tensors[key].shape != shape
    ]
    if wrong:
        raise CheckpointError(f"the codec's checkpoint has the wrong shapes: {_some(wrong)}")
    if broken := [key for key in shapes if not bool(tensors[key].isfinite().all())]:
        raise CheckpointError(f"the codec's checkpoint is not finite in {_some(broken)}")


def merged(parts: list[Tensor]) -> Tensor:
    """Return the stored tensor, or undo weight norm: ``g * v / |v|``, with norms over all
    dimensions except that of ``g`` (the first, unless its shape says otherwise).
    """
    if len(parts) == 1:
        return parts[0]
    scale, direction = (part.double() for part in parts)
    if scale.ndim != direction.ndim:
        scale = scale.reshape(-1, *[1] * (direction.ndim - 1))
    over = [dim for dim, size in enumerate(scale.shape) if size == 1]
    norms = direction.square().sum(over, keepdim=True).sqrt()
    weight: Tensor = direction * (scale / norms)
    return weight.float()


def resolve_folder(model: str) -> Path:
    """Return the folder of ``model``: a path that exists, else a hub id of the form org/name.

    Of a hub id only safetensors and JSON are downloaded, unless they are in the cache. Raises
    CheckpointError.
    """
    path = Path(os.path.expanduser(model))  # which returns an unknown "~name" as it is
    if model and os.path.isdir(path):  # unlike is_dir it takes names too long for the system
        return path
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(f"{model!r} is neither a folder nor a hub id of the form org/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError("downloading a model needs the package huggingface_hub") from error
    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:
        # Any error means that there is no model. If a connection breaks off, the hub's package
        # raises errors of whatever HTTP package it uses.
        raise CheckpointError(f"{model!r} is no folder and cannot be downloaded") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``; return an empty dict without one. Raises CheckpointError."""
    path = folder / "config.json"
    return _read_json(path) if path.is_file() else {}


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable JSON file") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return raw


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")

"""Find a codec's weights in a checkpoint folder and read the ones that decoding needs.

Two kinds of folder are known: a v3 talker checkpoint with the codec bundled under a prefix,
and a standalone v2 tokenizer with bare keys. Both have gone through renamings, so each
tensor is looked for under every name it has had:

- decoder layers: ``acoustic_decoder.block.{n}.conv_t1`` or, in the older descript layout,
  ``acoustic_decoder.model.{n + 1}.block.1``;
- weights: ``weight``, or weight-normed ``weight_g`` and ``weight_v``, or
  ``parametrizations.weight.original0`` and ``original1``;
- codebooks: ``codebook.embed`` or ``codebook.weight``.

Only safetensors is read: nothing here can run code from a checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from codec.config import CodecConfig, parse_config
from codec.errors import CheckpointError
from codec.trim import DILATIONS, KERNEL

BUNDLED_PREFIX = "tied.embedding.modality_embeddings.0.model."
_STANDALONE_TYPE = "higgs_audio_v2_tokenizer"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAMED_AT_MOST = 6


@dataclass(frozen=True, slots=True)
class CodecCheckpoint:
    """Where a codec lies: its files, by key, and its architecture."""

    folder: Path
    prefix: str
    config: CodecConfig
    files: Mapping[str, str]


def resolve_folder(model: str) -> Path:
    """Return the folder of ``model``: a path that exists, else a hub id of the form org/name.

    A hub id is downloaded (or found in the cache) without anything but safetensors and
    JSON. Raises CheckpointError.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(f"{model!r} is neither a folder nor a hub id of the form org/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError("downloading a model needs the package huggingface_hub") from error
    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model!r} is no folder and cannot be downloaded") from error


def find_codec(folder: Path) -> CodecCheckpoint:
    """Recognise the checkpoint in ``folder``. Raises CheckpointError."""
    raw = _read_json(folder / "config.json")
    files = _files_by_key(folder)
    if raw.get("model_type") == _STANDALONE_TYPE:
        return CodecCheckpoint(folder, "", parse_config(raw), files)
    bundle = raw.get("audio_encoder_config")
    if not isinstance(bundle, dict):
        raise CheckpointError(f"{folder} is neither a v3 talker nor a v2 tokenizer checkpoint")
    config = parse_config(bundle.get("codec_config") or {}, bundle.get("num_codebooks"))
    return CodecCheckpoint(folder, BUNDLED_PREFIX, config, files)


def decoder_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that decoding needs, by its newest name, and its shape."""
    wide, shapes = config.quantizer_dim, dict[str, tuple[int, ...]]()
    for index in range(config.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        shapes[f"{name}.codebook.embed"] = (config.codebook_size, config.codebook_dim)
        shapes[f"{name}.project_out.weight"] = (wide, config.codebook_dim)
        shapes[f"{name}.project_out.bias"] = (wide,)
    shapes["fc2.weight"] = (config.latent_dim, wide)
    shapes["fc2.bias"] = (config.latent_dim,)
    width, decoder = config.decoder_dim, "acoustic_decoder"
    shapes[f"{decoder}.conv1.weight"] = (width, config.latent_dim, KERNEL)
    shapes[f"{decoder}.conv1.bias"] = (width,)
    for index, ratio in enumerate(config.ratios):
        name, half = f"{decoder}.block.{index}", width // 2
        shapes[f"{name}.snake1.alpha"] = (1, width, 1)
        shapes[f"{name}.conv_t1.weight"] = (width, half, 2 * ratio)
        shapes[f"{name}.conv_t1.bias"] = (half,)
        for unit in range(1, len(DILATIONS) + 1):
            for part, kernel in ((1, KERNEL), (2, 1)):
                shapes[f"{name}.res_unit{unit}.snake{part}.alpha"] = (1, half, 1)
                shapes[f"{name}.res_unit{unit}.conv{part}.weight"] = (half, half, kernel)
                shapes[f"{name}.res_unit{unit}.conv{part}.bias"] = (half,)
        width = half
    shapes[f"{decoder}.snake1.alpha"] = (1, width, 1)
    shapes[f"{decoder}.conv2.weight"] = (1, width, KERNEL)
    shapes[f"{decoder}.conv2.bias"] = (1,)
    return shapes


def load_decoder_tensors(checkpoint: CodecCheckpoint) -> dict[str, Tensor]:
    """Read the tensors of ``decoder_shapes`` as float32.

    Raises CheckpointError that names keys which are missing, misshapen or not finite.
    """
    shapes = decoder_shapes(checkpoint.config)
    sources, missing = {}, []
    for key in shapes:
        found = next((c for c in _candidates(checkpoint, key) if _all_in(checkpoint, c)), None)
        if found is None:
            missing.append(key)
        else:
            sources[key] = found
    if missing:
        raise CheckpointError(f"the codec's checkpoint lacks {_some(missing)}")
    raw = _read_tensors(checkpoint, {name for names in sources.values() for name in names})
    tensors = {key: _merge([raw[name] for name in names]) for key, names in sources.items()}
    wrong = [
        f"{key} {tuple(tensors[key].shape)} instead of {shape}"
        for key, shape in shapes.items()
        if tensors[key].shape != shape
    ]
    if wrong:
        raise CheckpointError(f"the codec's checkpoint has the wrong shapes: {_some(wrong)}")
    if broken := [key for key in shapes if not bool(tensors[key].isfinite().all())]:
        raise CheckpointError(f"the codec's checkpoint is not finite in {_some(broken)}")
    return tensors


def _candidates(checkpoint: CodecCheckpoint, key: str) -> Iterator[tuple[str, ...]]:
    """The names under which ``key`` may be stored, each as the tensors to merge."""
    for name in (key, _descript_name(key, len(checkpoint.config.ratios))):
        yield (name,)
        if name.endswith(".codebook.embed"):
            yield (name.removesuffix("embed") + "weight",)
        if name.endswith(".weight"):
            stem = name.removesuffix("weight")
            yield (f"{stem}weight_g", f"{stem}weight_v")
            stem += "parametrizations.weight."
            yield (f"{stem}original0", f"{stem}original1")


def _descript_name(key: str, blocks: int) -> str:
    """``key`` in the older layout, which numbers layers instead of naming them."""
    outer = {"conv1": 0, "snake1": blocks + 1, "conv2": blocks + 2}
    parts = key.split(".")
    if parts[0] != "acoustic_decoder":
        return key
    if parts[1] != "block":
        return f"acoustic_decoder.model.{outer[parts[1]]}.{parts[2]}"
    name = f"acoustic_decoder.model.{int(parts[2]) + 1}.block"
    if not parts[3].startswith("res_unit"):
        return f"{name}.{('snake1', 'conv_t1').index(parts[3])}.{parts[4]}"
    inner = ("snake1", "conv1", "snake2", "conv2").index(parts[4])
    return f"{name}.{int(parts[3].removeprefix('res_unit')) + 1}.block.{inner}.{parts[5]}"


def _all_in(checkpoint: CodecCheckpoint, names: tuple[str, ...]) -> bool:
    return all(checkpoint.prefix + name in checkpoint.files for name in names)


def _merge(parts: list[Tensor]) -> Tensor:
    """One stored tensor, or weight norm undone: ``g * v / |v|``, norms over all but dim 0."""
    if len(parts) == 1:
        return parts[0]
    scale, direction = (part.double() for part in parts)
    norms = direction.flatten(1).norm(dim=1)
    shape = (-1, *[1] * (direction.ndim - 1))
    weight: Tensor = direction * (scale.flatten() / norms).reshape(shape)
    return weight.float()


def _read_tensors(checkpoint: CodecCheckpoint, names: set[str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    by_file: dict[str, list[str]] = {}
    for name in sorted(names):
        by_file.setdefault(checkpoint.files[checkpoint.prefix + name], []).append(name)
    for file, wanted in by_file.items():
        with _opened(checkpoint.folder / file) as handle:
            for name in wanted:
                tensors[name] = handle.get_tensor(checkpoint.prefix + name).to(torch.float32)
    return tensors


def _files_by_key(folder: Path) -> dict[str, str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = _read_json(index).get("weight_map")
        if not isinstance(files, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in files.values()
        ):
            raise CheckpointError(f"{index} maps no keys to files of its folder")
        return files
    with _opened(folder / "model.safetensors") as handle:
        return dict.fromkeys(handle.keys(), "model.safetensors")


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable JSON file") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return raw


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")

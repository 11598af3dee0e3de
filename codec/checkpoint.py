"""Find a codec's weights in a checkpoint folder and read the ones that are needed.

Two kinds of folder are known: a v3 talker checkpoint with the codec bundled under a prefix,
and a standalone v2 tokenizer with bare keys. Both have gone through renamings, so each
tensor is looked for under every name it has had (``codec.key_names``).

Only safetensors is read: nothing here can run code from a checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from codec.config import CodecConfig, parse_config
from codec.encoder_config import EncoderConfig, parse_encoder_config
from codec.errors import CheckpointError
from codec.key_names import merged, stored_names
from codec.trim import DILATIONS, KERNEL

BUNDLED_PREFIX = "tied.embedding.modality_embeddings.0.model."
_STANDALONE_TYPE = "higgs_audio_v2_tokenizer"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAMED_AT_MOST = 6


@dataclass(frozen=True, slots=True)
class CodecCheckpoint:
    """Where a codec lies: its files, by key, and its architecture.

    ``raw`` are the configuration's own words, for what only the encoder needs.
    """

    folder: Path
    prefix: str
    config: CodecConfig
    files: Mapping[str, str]
    raw: Mapping[str, Any] = field(default_factory=dict)

    def encoder_config(self) -> EncoderConfig:
        """The encoder's sizes. Raises CheckpointError."""
        return parse_encoder_config(self.raw, self.config)

    def has(self, key: str) -> bool:
        """Whether a tensor is stored, under any of its names."""
        return any(_all_in(self, names) for names in stored_names(key, len(self.config.ratios)))


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
    except Exception as error:
        # Whatever it is, there is no model: what the hub's package raises when a connection
        # breaks off belongs to the HTTP package that it happens to use.
        raise CheckpointError(f"{model!r} is no folder and cannot be downloaded") from error


def find_codec(folder: Path) -> CodecCheckpoint:
    """Recognise the checkpoint in ``folder``. Raises CheckpointError."""
    raw = _read_json(folder / "config.json")
    files = _files_by_key(folder)
    if raw.get("model_type") == _STANDALONE_TYPE:
        return CodecCheckpoint(folder, "", parse_config(raw), files, raw)
    bundle = raw.get("audio_encoder_config")
    if not isinstance(bundle, dict):
        raise CheckpointError(f"{folder} is neither a v3 talker nor a v2 tokenizer checkpoint")
    own = bundle.get("codec_config") or {}
    config = parse_config(own, bundle.get("num_codebooks"))
    return CodecCheckpoint(folder, BUNDLED_PREFIX, config, files, own)


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
    """Read the tensors of ``decoder_shapes`` as float32. Raises CheckpointError."""
    return load_tensors(checkpoint, decoder_shapes(checkpoint.config))


def load_tensors(
    checkpoint: CodecCheckpoint, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Read these tensors as float32.

    Raises CheckpointError that names keys which are missing, misshapen or not finite.
    """
    sources, missing, blocks = {}, [], len(checkpoint.config.ratios)
    for key in shapes:
        found = next((c for c in stored_names(key, blocks) if _all_in(checkpoint, c)), None)
        if found is None:
            missing.append(key)
        else:
            sources[key] = found
    if missing:
        raise CheckpointError(f"the codec's checkpoint lacks {_some(missing)}")
    raw = _read_tensors(checkpoint, {name for names in sources.values() for name in names})
    tensors = {key: merged([raw[name] for name in names]) for key, names in sources.items()}
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


def _all_in(checkpoint: CodecCheckpoint, names: tuple[str, ...]) -> bool:
    return all(checkpoint.prefix + name in checkpoint.files for name in names)


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

"""A checkpoint of random weights in the published format, made on the device.

It is as fast as a real one of its shape. Its tokenizer is the embedded voice's; its codec is the
embedded one or, for the full-size talker, a random full-size one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.gpu_check.arithmetic import Model
from benchmarks.random_weights import random_tensors
from codec.families.higgs.checkpoint import BUNDLED_PREFIX
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.tensors import decoder_shapes
from talker.checkpoint import open_checkpoint
from talker.families import find_family

EMBEDDED = Path(__file__).resolve().parents[2] / "embedded" / "checkpoint"
#: Standard deviations of the embeddings.
_DEVIATIONS = {
    "tied.embedding.text_embedding.weight": 1.0,
    "tied.embedding.modality_embeddings.0.embedding.weight": 0.35,
}
#: Tensors per file of the checkpoint: about nine layers, 2 GB of the full-size model.
_TENSORS_EACH = 100
_MAX_POSITIONS = 8192


def make(folder: Path, model: Model, device: str, *, full_codec: bool) -> Path:
    """Write the checkpoint into ``folder``, unless it is there already, and return it.

    Raises CheckpointError if the service would not load the result.
    """
    done = folder / "complete"
    if not done.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write(folder, model, device, full_codec=full_codec)
        done.touch()
    open_checkpoint(str(folder))
    return folder


def _write(folder: Path, model: Model, device: str, *, full_codec: bool) -> None:
    raw = json.loads((EMBEDDED / "config.json").read_text())
    raw["text_config"] |= {
        "hidden_size": model.hidden,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.text_rows,
        "max_position_embeddings": _MAX_POSITIONS,
    }
    raw["audio_encoder_config"]["out_dim"] = model.hidden
    if full_codec:
        raw["audio_encoder_config"]["codec_config"] = {}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 1.0, "top_k": 50}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, folder / name)
    weight_map: dict[str, str] = {}

    def save(file: str, tensors: dict[str, Tensor]) -> None:
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, folder / file)
        weight_map.update(dict.fromkeys(tensors, file))

    family = find_family(raw)
    expected = family.expected_weights(family.read_shape(raw))
    generator = torch.Generator(device).manual_seed(2)
    dtype = torch.bfloat16 if model.width == 2 else torch.float32
    names = list(expected)
    for first in range(0, len(names), _TENSORS_EACH):
        some = names[first : first + _TENSORS_EACH]
        drawn = {name: _drawn(name, expected[name], generator).to(dtype) for name in some}
        save(f"talker-{first:03d}.safetensors", drawn)
    save("codec.safetensors", _random_codec() if full_codec else _embedded_codec())
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _drawn(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw a weight, scaled so that hidden states keep their magnitude."""
    made = torch.randn(size, generator=generator, device=generator.device)
    if len(size) == 1:  # a norm
        return made.mul_(0.1).add_(1)
    return made.mul_(_DEVIATIONS.get(name, size[1] ** -0.5))


def _embedded_codec() -> dict[str, Tensor]:
    with safe_open(EMBEDDED / "model.safetensors", framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith(BUNDLED_PREFIX)]
        return {name: file.get_tensor(name) for name in names}


def _random_codec() -> dict[str, Tensor]:
    made = random_tensors(decoder_shapes(CodecConfig()))
    return {f"{BUNDLED_PREFIX}{name}": value for name, value in made.items()}

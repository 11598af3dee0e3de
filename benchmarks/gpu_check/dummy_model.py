"""A checkpoint of random weights in the published format, made on the device.

It is as fast as a real one of its shape. Its tokenizer is the embedded voice's; its codec is the
embedded one or, for the full-size talker, a random full-size one. Unless it ``ends``, its streams
end with their last row only: if a code could end them by chance, the shortest of 64 would have
about nine rows.
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
_WORDS = "tied.embedding.text_embedding.weight"
#: Vectors of codes, as inputs and as outputs, ``[codebooks * codes, hidden]``.
_CODES = "tied.embedding.modality_embeddings.0.embedding.weight"
#: Standard deviation of the logits: an entropy of six bits a code. The embedded voice's codebooks
#: have three to eight. With a wide spread, rounding errors never change a code, so that streams
#: look more reproducible than they are.
_SPREAD = 2.5
#: Tensors per file of the checkpoint: about nine layers, 2 GB of the full-size model.
_TENSORS_EACH = 100
_MAX_POSITIONS = 8192


def make(folder: Path, model: Model, device: str, *, full_codec: bool, ends: bool = False) -> Path:
    """Write the checkpoint into ``folder``, unless it is there already, and return it.

    Raises CheckpointError if the service would not load the result.
    """
    done = folder / "complete"
    if not done.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write(folder, model, device, full_codec=full_codec, ends=ends)
        done.touch()
    open_checkpoint(str(folder))
    return folder


def _write(folder: Path, model: Model, device: str, *, full_codec: bool, ends: bool) -> None:
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
    generation = {"temperature": 1.0, "top_k": 50} | ({} if ends else {"end_codebooks": 1})
    (folder / "generation_config.json").write_text(json.dumps(generation))
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
        if (
            _CODES in drawn and not ends
        ):  # among the logits of a thousand codes, zero is never one of the top 50
            drawn[_CODES][raw["audio_encoder_config"]["vocab_size"] - 1] = 0
        save(f"talker-{first:03d}.safetensors", drawn)
    save("codec.safetensors", _random_codec() if full_codec else _embedded_codec())
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _drawn(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw a weight, scaled so that hidden states keep their magnitude."""
    tensor = torch.randn(size, generator=generator, device=generator.device)
    if len(size) == 1:  # a norm
        return tensor.mul_(0.1).add_(1)
    if name == _WORDS:
        return tensor
    return tensor.mul_(size[1] ** -0.5 * (_SPREAD if name == _CODES else 1))


def _embedded_codec() -> dict[str, Tensor]:
    with safe_open(EMBEDDED / "model.safetensors", framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith(BUNDLED_PREFIX)]
        return {name: file.get_tensor(name) for name in names}


def _random_codec() -> dict[str, Tensor]:
    tensors = random_tensors(decoder_shapes(CodecConfig()))
    return {f"{BUNDLED_PREFIX}{name}": value for name, value in tensors.items()}

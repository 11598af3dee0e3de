"""A checkpoint of random weights in the published format, made on the device.

Its speed is that of a real one of its shape. Its tokenizer is the embedded voice's; the codec with
it is the embedded one or, beside the full-size talker, a random full-size one.
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

EMBEDDED = Path(__file__).resolve().parents[2] / "embedded" / "checkpoint"
_CODES = "tied.embedding.modality_embeddings.0.embedding.weight"
_WORDS = "tied.embedding.text_embedding.weight"
#: Layers in one file of the checkpoint: about 2 GB of the full-size model.
_LAYERS_EACH = 9
_MAX_POSITIONS = 8192


def make(folder: Path, model: Model, device: str, *, full_codec: bool) -> Path:
    """Write the checkpoint into ``folder``, unless it is there already, and return it.

    Raises CheckpointError if the result is not one that the service would load.
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

    draw = _Random(model, device)
    save("embeddings.safetensors", draw.embeddings())
    for first in range(0, model.layers, _LAYERS_EACH):
        layers = range(first, min(first + _LAYERS_EACH, model.layers))
        save(f"layers-{first:02d}.safetensors", draw.layers(layers))
    save("codec.safetensors", _random_codec() if full_codec else _embedded_codec())
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


class _Random:
    """Draws a talker's weights, scaled so that hidden states keep their size."""

    def __init__(self, model: Model, device: str) -> None:
        self._model, self._device = model, device
        self._generator = torch.Generator(device).manual_seed(2)
        self._dtype = torch.bfloat16 if model.width == 2 else torch.float32

    def embeddings(self) -> dict[str, Tensor]:
        """The two embeddings and the last norm."""
        model = self._model
        return {
            _WORDS: self._matrix(model.text_rows, model.hidden, 1.0),
            _CODES: self._matrix(model.books * model.codebook_rows, model.hidden, 0.35),
            "body.norm.weight": self._norm(model.hidden),
        }

    def layers(self, numbers: range) -> dict[str, Tensor]:
        """The blocks with these numbers."""
        model, made = self._model, dict[str, Tensor]()
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        for number in numbers:
            at = f"body.layers.{number}."
            for name, size in (
                ("input_layernorm", model.hidden),
                ("post_attention_layernorm", model.hidden),
                ("self_attn.q_norm", model.head_dim),
                ("self_attn.k_norm", model.head_dim),
            ):
                made[f"{at}{name}.weight"] = self._norm(size)
            for name, out, width in (
                ("self_attn.q_proj", queries, model.hidden),
                ("self_attn.k_proj", keys, model.hidden),
                ("self_attn.v_proj", keys, model.hidden),
                ("self_attn.o_proj", model.hidden, queries),
                ("mlp.gate_proj", model.inner, model.hidden),
                ("mlp.up_proj", model.inner, model.hidden),
                ("mlp.down_proj", model.hidden, model.inner),
            ):
                made[f"{at}{name}.weight"] = self._matrix(out, width, width**-0.5)
        return made

    def _matrix(self, rows: int, columns: int, std: float) -> Tensor:
        made = torch.randn(rows, columns, generator=self._generator, device=self._device)
        return made.mul_(std).to(self._dtype)

    def _norm(self, size: int) -> Tensor:
        made = torch.randn(size, generator=self._generator, device=self._device)
        return made.mul_(0.1).add_(1).to(self._dtype)


def _embedded_codec() -> dict[str, Tensor]:
    with safe_open(EMBEDDED / "model.safetensors", framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith(BUNDLED_PREFIX)]
        return {name: file.get_tensor(name) for name in names}


def _random_codec() -> dict[str, Tensor]:
    made = random_tensors(decoder_shapes(CodecConfig()))
    return {f"{BUNDLED_PREFIX}{name}": value for name, value in made.items()}

"""Tiny random checkpoints of the Fish codec, in the published format or converted.

Names, weight norm of both kinds and additional buffers are those of the published ``codec.pth``;
only the sizes are small. No tensor is near zero, so that every path affects the output.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from codec.checkpoint import Shapes
from codec.families.fish.checkpoint import CODEC_FILE, METADATA_KEY
from codec.families.fish.config import FishConfig, decoder_shapes, encoder_shapes

#: A frame depends on 14 earlier ones through the transformer.
TINY = FishConfig(
    semantic_size=64, residual_size=16, residual_books=9, dim=32, layers=2, head_dim=8,
    feed_forward=48, window=8, decoder_dim=48, decoder_rates=(4, 2, 2), encoder_dim=4,
    encoder_rates=(2, 2, 4), encoder_layers=2, encoder_head_dim=16, encoder_window=10,
)  # fmt: skip


def random_tensors(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    """Draw weights that keep the signal's size about the same from layer to layer."""
    dice = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=dice)
        if name.endswith(("alpha", "gamma")):
            tensors[name] = 0.3 + 0.5 * torch.rand(shape, generator=dice)
        elif name.endswith("norm.weight"):
            tensors[name] = 1 + 0.2 * drawn
        elif name.endswith("codebook.weight"):
            tensors[name] = drawn
        elif name.endswith("bias"):
            tensors[name] = 0.1 * drawn
        else:
            fan_in = shape[1] * (shape[2] if len(shape) > 2 else 1)
            gain = 0.3 if ".block." in name and ".block.1.conv" not in name else 0.8
            gain = 2.0 if name.startswith("encoder.") and ".4.conv" in name else gain
            tensors[name] = drawn * gain / fan_in**0.5
    return tensors


def published_state(config: FishConfig = TINY, seed: int = 0) -> dict[str, Tensor]:
    """Return the state of a ``codec.pth``: with weight norm, and buffers among the weights."""
    plain = random_tensors(decoder_shapes(config) | encoder_shapes(config), seed)
    state: dict[str, Tensor] = {}
    for name, tensor in plain.items():
        stem = name.removesuffix("weight")
        norms = tensor.flatten(1).norm(dim=1) if tensor.ndim > 1 else tensor
        if name.endswith(("in_proj.weight", "out_proj.weight")):
            state[f"{stem}weight_g"] = norms[:, None, None]
            state[f"{stem}weight_v"] = tensor * 1.7
        elif name.endswith("conv.weight") and name.startswith(("encoder.", "decoder.")):
            state[f"{stem}parametrizations.weight.original0"] = norms[:, None, None]
            state[f"{stem}parametrizations.weight.original1"] = tensor * 0.6
        else:
            state[name] = tensor
    last = len(config.encoder_rates)
    for name, head_dim in (
        ("quantizer.post_module", config.head_dim),
        ("quantizer.pre_module", config.head_dim),
        (f"encoder.block.{last}.block.5", config.encoder_head_dim),
    ):
        state[f"{name}.freqs_cis"] = torch.zeros(64, head_dim // 2, 2, dtype=torch.bfloat16)
        state[f"{name}.causal_mask"] = torch.ones(64, 64, dtype=torch.bool).tril()
    return state


def write_codec_pth(folder: Path, config: FishConfig = TINY, seed: int = 0) -> Path:
    """Write ``codec.pth`` into ``folder``; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(published_state(config, seed), folder / "codec.pth")
    return folder / "codec.pth"


def write_codec_safetensors(folder: Path, config: FishConfig = TINY, seed: int = 0) -> Path:
    """Write ``codec.safetensors`` into ``folder`` as ``talkwire convert`` would; return its path.

    Its attention windows are those of ``config``; a converted file has the published ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(decoder_shapes(config) | encoder_shapes(config), seed)
    metadata = {METADATA_KEY: json.dumps(config.as_dict())}
    save_file(tensors, folder / CODEC_FILE, metadata)
    return folder / CODEC_FILE

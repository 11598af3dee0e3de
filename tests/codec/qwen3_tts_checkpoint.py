"""Tiny random checkpoints of the Qwen3-TTS codec, in the published format.

Only sizes are small, and heads times their width is not the hidden size. No tensor is near zero, so
that every path affects the output.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from codec.checkpoint import Shapes
from codec.families.qwen3_tts.config import (
    ACOUSTIC,
    SEMANTIC,
    DecoderSizes,
    EncoderSizes,
    Qwen3TTSCodecConfig,
    decoder_shapes,
    encoder_shapes,
)

#: A frame depends on 17 earlier ones through transformer and first convolution, and on 10 more.
TINY = Qwen3TTSCodecConfig(
    DecoderSizes(
        codebook_size=64, codebook_dim=32, latent_dim=32, hidden_size=16, intermediate_size=24,
        num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        sliding_window=6, decoder_dim=48,
    ),
    EncoderSizes(
        num_filters=4, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, sliding_window=10,
        codebook_size=64, codebook_dim=16, vector_quantization_hidden_dimension=16,
    ),
)  # fmt: skip
#: Codebooks in the encoder, of which most have no use.
STORED_BOOKS = 32


def published_config(config: Qwen3TTSCodecConfig = TINY) -> dict[str, Any]:
    """Return the content of ``config.json``, with fields that have no effect among the others."""
    decoder = asdict(config.decoder) | {
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
        "num_semantic_quantizers": 1, "semantic_codebook_size": 4096,
        "vector_quantization_hidden_dimension": 512,
    }  # fmt: skip
    encoder = asdict(config.encoder) | {
        "audio_channels": 1, "num_residual_layers": 1, "dilation_growth_rate": 2,
        "use_causal_conv": True, "pad_mode": "constant", "trim_right_ratio": 1.0,
        "use_conv_shortcut": False, "num_quantizers": STORED_BOOKS, "num_semantic_quantizers": 1,
        "upsample_groups": config.encoder.hidden_size, "hidden_act": "gelu",
        "attention_bias": False, "attention_dropout": 0.0, "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000, "sampling_rate": config.sample_rate, "frame_rate": 12.5,
        "use_streaming": False, "use_cache": False, "model_type": "mimi",
    }  # fmt: skip
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": config.decoder.num_quantizers,
        "input_sample_rate": config.sample_rate, "output_sample_rate": config.sample_rate,
        "decode_upsample_rate": config.hop_length, "encode_downsample_rate": config.hop_length,
        "decoder_config": {
            name: list(v) if isinstance(v, tuple) else v for name, v in decoder.items()
        },
        "encoder_config": {
            name: list(v) if isinstance(v, tuple) else v for name, v in encoder.items()
        },
    }  # fmt: skip


def published_shapes(config: Qwen3TTSCodecConfig = TINY) -> Shapes:
    """Return the shapes of all tensors in ``model.safetensors``, those without any use too."""
    shapes = decoder_shapes(config) | encoder_shapes(config)
    wide = config.decoder.codebook_dim
    for group in ("rvq_first", "rvq_rest"):
        shapes[f"decoder.quantizer.{group}.input_proj.weight"] = (wide // 2, wide, 1)
    sizes = config.encoder
    for group, books in ((SEMANTIC, 1), (ACOUSTIC, STORED_BOOKS - 1)):
        shapes[f"{group}.output_proj.weight"] = (sizes.hidden_size, sizes.codebook_dim, 1)
        for index in range(books):
            name = f"{group}.layers.{index}.codebook"
            shapes[f"{name}.initialized"] = (1,)
            shapes[f"{name}.cluster_usage"] = (sizes.codebook_size,)
            shapes[f"{name}.embed_sum"] = (sizes.codebook_size, sizes.codebook_dim)
    return shapes


def random_tensors(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    """Draw weights that keep the signal's size about the same from layer to layer."""
    dice = torch.Generator().manual_seed(seed)
    return {name: _draw(name, shape, dice) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...], dice: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=dice)
    if name.endswith("initialized"):
        return torch.ones(shape)
    if name.endswith("cluster_usage"):
        usage = 0.5 + 3 * torch.rand(shape, generator=dice)
        usage[0] = 0  # never used in training
        return usage
    if name.endswith(("embedding_sum", "embed_sum")):
        drawn[0] *= 1e-5
        return 1.5 * drawn
    if name.endswith((".alpha", ".beta")):
        return 0.3 * drawn
    if name.endswith((".scale", ".gamma")):
        return 0.5 + 0.1 * drawn
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.2 * drawn
    if name.endswith("bias"):
        return 0.1 * drawn
    fan_in = shape[1] * (shape[2] if len(shape) > 2 else 1)
    gain = 1.0
    if name.startswith("decoder.decoder."):
        gain = 0.6  # samples stay within [-1, 1], or clamping would hide the rest
    if name.startswith("encoder.encoder."):
        gain = 1.6
    scaled: Tensor = drawn * gain / fan_in**0.5
    return scaled


def write_codec(folder: Path, config: Qwen3TTSCodecConfig = TINY, seed: int = 0) -> Path:
    """Write ``config.json`` and ``model.safetensors`` into ``folder``; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(published_config(config)))
    tensors = random_tensors(published_shapes(config), seed)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder

"""The Qwen3-TTS codec's transformers, by their names in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from codec.families.qwen3_tts.config import DecoderSizes, EncoderSizes
from codec.window_transformer import (
    GeluLayer,
    LayerNorm,
    PointwiseLayer,
    RmsNorm,
    SwiGlu,
    TransformerLayer,
    WindowTransformer,
)

Weights = Mapping[str, Tensor]


def decoder_transformer(sizes: DecoderSizes, weights: Weights) -> WindowTransformer:
    """Build ``pre_transformer`` without its projections."""
    at = "decoder.pre_transformer"

    def norm(name: str) -> PointwiseLayer:
        return RmsNorm(weights[f"{name}.weight"], sizes.rms_norm_eps)

    def feed_forward(name: str) -> PointwiseLayer:
        return SwiGlu(*(weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down")))

    layers = [
        _layer(weights, f"{at}.layers.{number}", norm, feed_forward)
        for number in range(sizes.num_hidden_layers)
    ]
    return WindowTransformer(
        sizes.transformer,
        layers,
        norm(f"{at}.norm"),
        rotates_pairs=False,
        base=sizes.rope_theta,
    )


def encoder_transformer(sizes: EncoderSizes, weights: Weights) -> WindowTransformer:
    """Build ``encoder_transformer``, which has no norm after its last layer.

    Its window is that of the configuration, as in transformers 5. Version 4.57, which the makers'
    package asks for, lets a position see all earlier ones; both agree on clips up to the window.
    """

    def norm(name: str) -> PointwiseLayer:
        return LayerNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], sizes.norm_eps)

    def feed_forward(name: str) -> PointwiseLayer:
        return GeluLayer(weights[f"{name}.fc1.weight"], weights[f"{name}.fc2.weight"])

    layers = [
        _layer(weights, f"encoder.encoder_transformer.layers.{number}", norm, feed_forward)
        for number in range(sizes.num_hidden_layers)
    ]
    return WindowTransformer(
        sizes.transformer, layers, None, rotates_pairs=False, base=sizes.rope_theta
    )


def _layer(
    weights: Weights,
    at: str,
    norm: Callable[[str], PointwiseLayer],
    feed_forward: Callable[[str], PointwiseLayer],
) -> TransformerLayer:
    return TransformerLayer(
        norm(f"{at}.input_layernorm"),
        torch.cat([weights[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv"]),
        weights[f"{at}.self_attn.o_proj.weight"],
        weights[f"{at}.self_attn_layer_scale.scale"],
        norm(f"{at}.post_attention_layernorm"),
        feed_forward(f"{at}.mlp"),
        weights[f"{at}.mlp_layer_scale.scale"],
    )

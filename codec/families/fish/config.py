"""The Fish codec's architecture: sizes, arithmetic in time, names and shapes of its tensors.

Decoding is lookup -> transformer over the last ``window`` frames (``post_module``) -> upsamplings
with a ConvNeXt block each -> DAC decoder -> tanh. Encoding is a DAC encoder with a transformer
at its end -> downsamplings with a ConvNeXt block each -> transformer (``pre_module``) -> a
semantic quantizer -> residual quantizers. Every layer is causal.

The published checkpoint has no configuration; the defaults are its sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from codec.checkpoint import Shapes, biased, convnext_shapes
from codec.family import CheckpointError
from codec.layer_ranges import DILATIONS, KERNEL, Layer, causal_architecture, receptive_field
from codec.window_transformer import TransformerSizes
from streaming.spec import CodecSpec

SEMANTIC = "quantizer.semantic_quantizer.quantizers.0"
RESIDUAL = "quantizer.quantizer.quantizers"
#: Kernel of the encoder's last convolution.
LAST_KERNEL = 3


@dataclass(frozen=True, slots=True)
class FishConfig:
    """Sizes of one codec. The defaults are those of the published codec. Raises CheckpointError for
    sizes that do not fit together.
    """

    sample_rate: int = 44_100
    #: Codes of the first codebook.
    semantic_size: int = 4096
    #: Codes of each other codebook.
    residual_size: int = 1024
    #: Number of these codebooks.
    residual_books: int = 9
    #: Width of a code's vector.
    codebook_dim: int = 8
    #: Width of latents and quantizers.
    dim: int = 1024
    #: Layers of the decoder's transformer.
    layers: int = 8
    #: Width of its heads.
    head_dim: int = 64
    #: Width of its inner layers.
    feed_forward: int = 3072
    #: Number of latents that it sees.
    window: int = 128
    #: Rates between frames and latents.
    upsample: tuple[int, ...] = (2, 2)
    #: Width of the decoder's first convolution, halved at each of its rates.
    decoder_dim: int = 1536
    #: Rates from latents to samples.
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    #: Width of the encoder's first convolution, doubled at each of its rates.
    encoder_dim: int = 64
    #: Rates from samples to latents.
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    #: Layers of the encoder's transformer.
    encoder_layers: int = 4
    #: Width of its heads.
    encoder_head_dim: int = 64
    #: Number of latents that it sees.
    encoder_window: int = 512

    def __post_init__(self) -> None:
        numbers = [getattr(self, field.name) for field in fields(self)]
        flat = [
            n for number in numbers for n in (number if isinstance(number, tuple) else [number])
        ]
        if not all(isinstance(number, int) and number > 0 for number in flat):
            raise CheckpointError("the codec's sizes must be positive")
        if not self.decoder_rates or not self.encoder_rates:
            raise CheckpointError("the codec needs rates")
        if math.prod(self.decoder_rates) != math.prod(self.encoder_rates):
            raise CheckpointError("encoder and decoder differ in their rate")
        if self.decoder_dim % 2 ** len(self.decoder_rates):
            raise CheckpointError("the decoder's width cannot be halved at every rate")
        if self.head_dim % 2 or self.encoder_head_dim % 2:
            raise CheckpointError("a rotary embedding needs heads of an even size")

    @property
    def hop_length(self) -> int:
        """Number of samples in one frame."""
        return math.prod(self.upsample) * math.prod(self.decoder_rates)

    @property
    def conv_layers(self) -> tuple[Layer, ...]:
        """The layers after the transformer, for ``codec.layer_ranges``."""
        return causal_architecture(self.upsample, self.decoder_rates)

    @property
    def transformer(self) -> TransformerSizes:
        """Sizes of ``post_module`` and ``pre_module``."""
        heads = self.dim // self.head_dim
        return TransformerSizes(
            self.dim, self.layers, heads, self.head_dim, self.feed_forward, self.window
        )

    @property
    def encoder_transformer(self) -> TransformerSizes:
        """Sizes of the transformer at the end of the encoder's last block."""
        dim = self.encoder_dim * 2 ** len(self.encoder_rates)
        heads = dim // self.encoder_head_dim
        return TransformerSizes(
            dim, self.encoder_layers, heads, self.encoder_head_dim, 3 * dim, self.encoder_window
        )

    def spec(self) -> CodecSpec:
        """Return the codec's properties. The convolutions' receptive field is decoded again with
        each window; what the transformer sees before it is in its state.
        """
        left, right = receptive_field(self.conv_layers)
        return CodecSpec(
            sample_rate=self.sample_rate,
            hop_length=self.hop_length,
            codebook_sizes=(self.semantic_size, *(self.residual_size,) * self.residual_books),
            left_frames=left,
            right_frames=right,
            history_frames=self.layers * (self.window - 1),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists, for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def parse_fish_config(raw: Mapping[str, Any]) -> FishConfig:
    """Parse the result of ``FishConfig.as_dict``. Raises CheckpointError."""
    known = {field.name for field in fields(FishConfig)}
    if unknown := sorted(raw.keys() - known):
        raise CheckpointError(f"the codec's configuration has unknown sizes: {', '.join(unknown)}")
    try:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()
        }
        return FishConfig(**values)
    except TypeError as error:
        raise CheckpointError("the codec's configuration cannot be read") from error


# -- tensors, by the names of the published checkpoint, weight norm undone


def codebooks(config: FishConfig) -> list[str]:
    """Return the quantizers' names, the semantic one first."""
    return [SEMANTIC, *(f"{RESIDUAL}.{index}" for index in range(config.residual_books))]


def decoder_shapes(config: FishConfig) -> Shapes:
    """Return the names and shapes of all tensors that decoding needs."""
    shapes = _quantizers(config, "out_proj")
    shapes |= _transformer("quantizer.post_module", config.transformer)
    for index, stride in enumerate(config.upsample):
        name = f"quantizer.upsample.{index}"
        shapes |= biased(f"{name}.0.conv", config.dim, config.dim, stride)
        shapes |= convnext_shapes(f"{name}.1", config.dim)
    width = config.decoder_dim
    shapes |= biased("decoder.model.0.conv", width, config.dim, KERNEL)
    for index, rate in enumerate(config.decoder_rates, 1):
        name = f"decoder.model.{index}.block"
        half = width // 2
        shapes[f"{name}.0.alpha"] = (1, width, 1)
        shapes |= biased(f"{name}.1.conv", width, half, 2 * rate, outputs=half)
        for unit in range(2, 2 + len(DILATIONS)):
            shapes |= _residual_unit(f"{name}.{unit}.block", half)
        width = half
    last = len(config.decoder_rates) + 1
    shapes[f"decoder.model.{last}.alpha"] = (1, width, 1)
    return shapes | biased(f"decoder.model.{last + 1}.conv", 1, width, KERNEL)


def encoder_shapes(config: FishConfig) -> Shapes:
    """Return the names and shapes of all tensors that encoding needs, including the quantizers'
    projections in and out.
    """
    width = config.encoder_dim
    shapes = biased("encoder.block.0.conv", width, 1, KERNEL)
    for index, rate in enumerate(config.encoder_rates, 1):
        name = f"encoder.block.{index}.block"
        for unit in range(len(DILATIONS)):
            shapes |= _residual_unit(f"{name}.{unit}.block", width)
        shapes[f"{name}.3.alpha"] = (1, width, 1)
        shapes |= biased(f"{name}.4.conv", 2 * width, width, 2 * rate)
        width *= 2
    last = len(config.encoder_rates) + 1
    shapes |= _transformer(f"encoder.block.{last - 1}.block.5", config.encoder_transformer)
    shapes[f"encoder.block.{last}.alpha"] = (1, width, 1)
    shapes |= biased(f"encoder.block.{last + 1}.conv", config.dim, width, LAST_KERNEL)
    for index, stride in enumerate(config.upsample):
        name = f"quantizer.downsample.{index}"
        shapes |= biased(f"{name}.0.conv", config.dim, config.dim, stride)
        shapes |= convnext_shapes(f"{name}.1", config.dim)
    shapes |= _transformer("quantizer.pre_module", config.transformer)
    return shapes | _quantizers(config, "in_proj") | _quantizers(config, "out_proj")


def _quantizers(config: FishConfig, projection: str) -> Shapes:
    shapes: Shapes = {}
    outer, inner = config.dim, config.codebook_dim
    if projection == "in_proj":
        outer, inner = inner, outer
    for name in codebooks(config):
        size = config.semantic_size if name == SEMANTIC else config.residual_size
        shapes[f"{name}.codebook.weight"] = (size, config.codebook_dim)
        shapes |= biased(f"{name}.{projection}", outer, inner, 1)
    return shapes


def _transformer(name: str, sizes: TransformerSizes) -> Shapes:
    dim = sizes.dim
    wide = sizes.feed_forward
    shapes: Shapes = {f"{name}.norm.weight": (dim,)}
    for layer in range(sizes.layers):
        at = f"{name}.layers.{layer}"
        shapes |= {
            f"{at}.attention.wqkv.weight": (3 * dim, dim),
            f"{at}.attention.wo.weight": (dim, dim),
            f"{at}.feed_forward.w1.weight": (wide, dim),
            f"{at}.feed_forward.w2.weight": (dim, wide),
            f"{at}.feed_forward.w3.weight": (wide, dim),
            f"{at}.attention_norm.weight": (dim,),
            f"{at}.ffn_norm.weight": (dim,),
            f"{at}.attention_layer_scale.gamma": (dim,),
            f"{at}.ffn_layer_scale.gamma": (dim,),
        }
    return shapes


def _residual_unit(name: str, width: int) -> Shapes:
    shapes: Shapes = {f"{name}.{part}.alpha": (1, width, 1) for part in (0, 2)}
    return (
        shapes
        | biased(f"{name}.1.conv", width, width, KERNEL)
        | biased(f"{name}.3.conv", width, width, 1)
    )

"""The Higgs codec's architecture: the sizes of its decoder and its encoder.

The decoder is RVQ lookup -> ``project_out`` -> sum -> ``fc2`` -> DAC decoder. A clip goes through
two branches of equal frame rate. The acoustic one is DAC's encoder. The semantic one resamples to
``semantic_rate``, runs a HuBERT model, averages its hidden states, keeps each
``semantic_stride``-th and refines them with small convolutions. Both are joined by ``fc`` and
quantised. Key names are those of transformers' ``HiggsAudioV2TokenizerConfig``, its ``DacConfig``
and its ``HubertConfig``. Every default is the full-size codec of Higgs Audio v2 and v3, whose
bundled configuration gives no sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from codec.family import CheckpointError
from codec.layer_ranges import Layer, architecture, receptive_field
from streaming.spec import CodecSpec

_ACOUSTIC_DIM = 256
_SEMANTIC_DIM = 768
#: Each choice takes 1 MB for the distances of 256 frames to 1,024 codes.
LARGEST_BEAM = 64


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """Sizes of one codec. The defaults are those of the full-size one.

    ``quantizer_dim`` is the width of the quantizers' sum (acoustic plus semantic hidden size),
    ``latent_dim`` the output width of ``fc2``, and ``decoder_dim`` the decoder's first width, which
    halves at each of the upsampling ``ratios``. Raises CheckpointError for impossible sizes.
    """

    sample_rate: int = 24_000
    num_codebooks: int = 8
    codebook_size: int = 1024
    codebook_dim: int = 64
    quantizer_dim: int = _ACOUSTIC_DIM + _SEMANTIC_DIM
    latent_dim: int = _ACOUSTIC_DIM
    decoder_dim: int = 1024
    ratios: tuple[int, ...] = (8, 5, 4, 2, 3)

    def __post_init__(self) -> None:
        sizes = (self.sample_rate, self.num_codebooks, self.codebook_size, self.codebook_dim)
        if min(*sizes, self.quantizer_dim, self.latent_dim, self.decoder_dim) < 1:
            raise CheckpointError("the codec's sizes must be positive")
        if not self.ratios or min(self.ratios) < 2:
            raise CheckpointError("the codec's upsampling ratios must be 2 or more")
        if self.decoder_dim % 2 ** len(self.ratios):
            raise CheckpointError("the decoder's width cannot be halved at every ratio")

    @property
    def hop_length(self) -> int:
        """Number of samples in one frame."""
        return math.prod(self.ratios)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The decoder's convolutions, for ``codec.layer_ranges``."""
        return architecture(self.ratios)

    def spec(self) -> CodecSpec:
        """Return the codec's properties, with the receptive field computed."""
        left, right = receptive_field(self.layers)
        return CodecSpec(
            sample_rate=self.sample_rate,
            hop_length=self.hop_length,
            codebook_sizes=(self.codebook_size,) * self.num_codebooks,
            left_frames=left,
            right_frames=right,
        )


def parse_config(raw: Mapping[str, Any], num_codebooks: int | None = None) -> CodecConfig:
    """Parse transformers' ``HiggsAudioV2TokenizerConfig`` fields; absent ones are full-size.

    ``num_codebooks`` overrides the number that follows from ``target_bandwidths`` (kbit/s; the
    largest decides). Raises CheckpointError for fields of the wrong kind.
    """
    full = CodecConfig()
    try:
        acoustic = raw.get("acoustic_model_config") or {}
        semantic = raw.get("semantic_model_config") or {}
        latent_dim = int(acoustic.get("hidden_size", _ACOUSTIC_DIM))
        sample_rate = int(raw.get("sample_rate", full.sample_rate))
        codebook_size = int(raw.get("codebook_size", full.codebook_size))
        ratios = tuple(int(ratio) for ratio in acoustic.get("upsampling_ratios", full.ratios))
        if num_codebooks is None:
            bits = math.log2(codebook_size) * sample_rate / math.prod(ratios)
            bandwidth = max(raw.get("target_bandwidths") or [full.num_codebooks * bits / 1000])
            num_codebooks = int(bandwidth * 1000 / bits + 1e-9)
        return CodecConfig(
            sample_rate=sample_rate,
            num_codebooks=num_codebooks,
            codebook_size=codebook_size,
            codebook_dim=int(raw.get("codebook_dim", full.codebook_dim)),
            quantizer_dim=latent_dim + int(semantic.get("hidden_size", _SEMANTIC_DIM)),
            latent_dim=latent_dim,
            decoder_dim=int(acoustic.get("decoder_hidden_size", full.decoder_dim)),
            ratios=ratios,
        )
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError("the codec's configuration cannot be read") from error


@dataclass(frozen=True, slots=True)
class HubertSizes:
    """Sizes of the HuBERT model; the defaults are its base size."""

    #: Width of the transformer.
    hidden: int = 768
    #: Layers of the transformer.
    layers: int = 12
    #: Heads of each layer.
    heads: int = 12
    #: Width of the inner layers.
    feed_forward: int = 3072
    #: Widths of the convolutions before it.
    conv_dims: tuple[int, ...] = (512,) * 7
    #: Strides of these convolutions.
    conv_strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    #: Their kernel sizes.
    conv_kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    #: Whether they have biases.
    conv_bias: bool = False
    #: Whether there is a norm before the projection to ``hidden``.
    projection_norm: bool = True
    #: Kernel size of the convolution that adds positions.
    position_kernel: int = 128
    #: Groups of this convolution.
    position_groups: int = 16
    #: Added to the variance in norms.
    norm_eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes of one encoder. Raises CheckpointError for sizes that do not fit together."""

    codec: CodecConfig
    #: Width of the acoustic encoder's first convolution.
    encoder_dim: int = 64
    #: Rates of the acoustic encoder. Their product is the hop length, as in the decoder.
    ratios: tuple[int, ...] = (8, 5, 4, 2, 3)
    #: Sample rate of the semantic model.
    semantic_rate: int = 16_000
    #: Its samples per output.
    downsample_factor: int = 320
    #: Kernel size of the semantic encoder's convolutions.
    kernel: int = 3
    #: Kernel size of its residual units.
    unit_kernel: int = 3
    #: Strides of its blocks.
    strides: tuple[int, ...] = (1, 1)
    #: Dilations of the units of a block.
    dilations: tuple[int, ...] = (1, 1)
    #: The semantic model.
    hubert: HubertSizes = field(default_factory=HubertSizes)
    #: Choices of codes that are kept while a frame is quantised; 1 in published codecs.
    beam: int = 1

    def __post_init__(self) -> None:
        hubert = self.hubert
        convs = {len(hubert.conv_dims), len(hubert.conv_strides), len(hubert.conv_kernels)}
        divides = not (hubert.hidden % hubert.heads or hubert.hidden % hubert.position_groups)
        if len(convs) != 1 or not divides:
            raise CheckpointError("the semantic model's sizes do not fit together")
        if any(stride != 1 for stride in self.strides):
            raise CheckpointError("semantic blocks with strides are not known here")
        if self.semantic_stride < 1:
            raise CheckpointError("the semantic model is slower than the codec's frames")
        if not 1 <= self.beam <= LARGEST_BEAM:
            raise CheckpointError(f"quantizer_beam is {self.beam}, not 1 to {LARGEST_BEAM}")

    @property
    def semantic_stride(self) -> int:
        """Number of hidden states of the semantic model per frame."""
        codec = self.codec
        per_frame = codec.hop_length * self.semantic_rate / codec.sample_rate
        return int(per_frame / self.downsample_factor)


def parse_encoder_config(raw: Mapping[str, Any], codec: CodecConfig) -> EncoderConfig:
    """Parse the encoder's part of a codec's configuration.

    Raises CheckpointError for fields of the wrong kind, and for variants of the semantic model that
    this family does not use and this encoder does not support.
    """
    full = EncoderConfig(codec)
    try:
        acoustic = raw.get("acoustic_model_config") or {}
        channel_ratios = raw.get("channel_ratios") or [1]
        if any(ratio != 1 for ratio in channel_ratios):
            raise CheckpointError("semantic blocks that change their width are not known here")
        return EncoderConfig(
            codec,
            encoder_dim=int(acoustic.get("encoder_hidden_size", full.encoder_dim)),
            ratios=_ints(acoustic.get("downsampling_ratios", codec.ratios)),
            semantic_rate=int(raw.get("semantic_sample_rate", full.semantic_rate)),
            downsample_factor=int(raw.get("downsample_factor", full.downsample_factor)),
            kernel=int(raw.get("kernel_size", full.kernel)),
            unit_kernel=int(raw.get("unit_kernel_size", full.unit_kernel)),
            strides=_ints(raw.get("strides", full.strides)),
            dilations=_ints(raw.get("block_dilations", full.dilations)),
            hubert=_parse_hubert(raw.get("semantic_model_config") or {}),
            beam=int(raw.get("quantizer_beam", full.beam)),
        )
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError("the encoder's configuration cannot be read") from error


def _parse_hubert(raw: Mapping[str, Any]) -> HubertSizes:
    full = HubertSizes()
    known = (
        raw.get("feat_extract_norm", "group") == "group"
        and raw.get("hidden_act", "gelu") == "gelu"
        and raw.get("feat_extract_activation", "gelu") == "gelu"
        and not raw.get("do_stable_layer_norm", False)
        and not raw.get("conv_pos_batch_norm", False)
    )
    if not known:
        raise CheckpointError("the semantic model is of a variant that is not known here")
    return HubertSizes(
        hidden=int(raw.get("hidden_size", full.hidden)),
        layers=int(raw.get("num_hidden_layers", full.layers)),
        heads=int(raw.get("num_attention_heads", full.heads)),
        feed_forward=int(raw.get("intermediate_size", full.feed_forward)),
        conv_dims=_ints(raw.get("conv_dim", full.conv_dims)),
        conv_strides=_ints(raw.get("conv_stride", full.conv_strides)),
        conv_kernels=_ints(raw.get("conv_kernel", full.conv_kernels)),
        conv_bias=bool(raw.get("conv_bias", full.conv_bias)),
        projection_norm=bool(raw.get("feat_proj_layer_norm", full.projection_norm)),
        position_kernel=int(raw.get("num_conv_pos_embeddings", full.position_kernel)),
        position_groups=int(raw.get("num_conv_pos_embedding_groups", full.position_groups)),
        norm_eps=float(raw.get("layer_norm_eps", full.norm_eps)),
    )


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)

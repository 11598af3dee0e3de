"""The Qwen3-TTS codec's architecture: sizes, arithmetic in time, names and shapes of its tensors.

Decoding is lookup -> convolution -> transformer over the last frames -> upsamplings with a ConvNeXt
block each -> DAC decoder with SnakeBeta -> clamp. Encoding is Mimi's encoder: convolutions -> a
transformer -> downsampling by 2 -> a semantic quantizer, and beside it residual ones, all on the
same latents. Every layer is causal.

Names of fields are those of ``speech_tokenizer/config.json``, their defaults the published values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from codec.checkpoint import Shapes, biased, convnext_shapes
from codec.family import CheckpointError
from codec.layer_ranges import DILATIONS, KERNEL, Layer, causal_architecture, receptive_field
from codec.window_transformer import TransformerSizes
from streaming.spec import CodecSpec

#: Kernel of the convolution before the decoder's transformer.
PRE_KERNEL = 3
#: Stride between the encoder's transformer and its quantizers; the kernel is twice as long.
DOWNSAMPLE = 2
#: Fields whose other values would be another architecture.
_FIXED_DECODER = {"hidden_act": "silu", "attention_bias": False}
_FIXED_ENCODER = {
    "hidden_act": "gelu", "attention_bias": False, "use_causal_conv": True, "pad_mode": "constant",
    "audio_channels": 1, "num_residual_layers": 1, "use_conv_shortcut": False,
    "num_semantic_quantizers": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """``decoder_config``. Raises CheckpointError for sizes that do not fit together."""

    codebook_size: int = 2048
    #: Width of a codebook's sum; the code vectors are half as wide.
    codebook_dim: int = 512
    num_quantizers: int = 16
    #: Width before and after the transformer.
    latent_dim: int = 1024
    hidden_size: int = 512
    intermediate_size: int = 1024
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 64
    #: Number of frames that a layer sees.
    sliding_window: int = 72
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    #: Rates between frames and latents.
    upsampling_ratios: tuple[int, ...] = (2, 2)
    #: Width of the first convolution after them, halved at each of ``upsample_rates``.
    decoder_dim: int = 1536
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)

    def __post_init__(self) -> None:
        _check_attention(self, "decoder_config")
        if self.num_quantizers < 2 or self.codebook_dim % 2:
            raise CheckpointError(
                "decoder_config: num_quantizers must be 2 or more and codebook_dim even, not "
                f"{self.num_quantizers} and {self.codebook_dim}"
            )
        if self.decoder_dim % 2 ** len(self.upsample_rates):
            raise CheckpointError(
                f"decoder_config.decoder_dim {self.decoder_dim} cannot be halved "
                f"{len(self.upsample_rates)} times"
            )

    @property
    def conv_layers(self) -> tuple[Layer, ...]:
        """The layers after the transformer, for ``codec.layer_ranges``."""
        return causal_architecture(self.upsampling_ratios, self.upsample_rates)

    @property
    def transformer(self) -> TransformerSizes:
        """Sizes of ``pre_transformer``."""
        return TransformerSizes(
            self.hidden_size,
            self.num_hidden_layers,
            self.num_attention_heads,
            self.head_dim,
            self.intermediate_size,
            self.sliding_window,
        )


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """``encoder_config``. Raises CheckpointError for sizes that do not fit together."""

    #: Width of the first convolution, doubled at each of ``upsampling_ratios``.
    num_filters: int = 64
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    #: Width of a residual unit over that of its inner layer.
    compress: int = 2
    #: Strides of the convolutions, the last one first.
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 64
    #: Number of positions that a layer sees.
    sliding_window: int = 250
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    codebook_size: int = 2048
    codebook_dim: int = 256
    vector_quantization_hidden_dimension: int = 256

    def __post_init__(self) -> None:
        _check_attention(self, "encoder_config")
        if self.codebook_dim != self.vector_quantization_hidden_dimension:
            raise CheckpointError(
                f"encoder_config.codebook_dim {self.codebook_dim} must equal "
                f"vector_quantization_hidden_dimension {self.vector_quantization_hidden_dimension}"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the convolutions in order."""
        return self.upsampling_ratios[::-1]

    @property
    def transformer(self) -> TransformerSizes:
        """Sizes of ``encoder_transformer``."""
        return TransformerSizes(
            self.hidden_size,
            self.num_hidden_layers,
            self.num_attention_heads,
            self.head_dim,
            self.intermediate_size,
            self.sliding_window,
        )


@dataclass(frozen=True, slots=True)
class Qwen3TTSCodecConfig:
    """Sizes of one codec. Raises CheckpointError for sizes that do not fit together."""

    decoder: DecoderSizes = field(default_factory=DecoderSizes)
    encoder: EncoderSizes = field(default_factory=EncoderSizes)
    sample_rate: int = 24_000

    def __post_init__(self) -> None:
        encoded = math.prod(self.encoder.strides) * DOWNSAMPLE
        if encoded != self.hop_length:
            raise CheckpointError(
                f"a frame has {self.hop_length} samples in decoder_config and {encoded} in "
                "encoder_config"
            )
        if self.encoder.codebook_size != self.decoder.codebook_size:
            raise CheckpointError(
                f"codebook_size is {self.decoder.codebook_size} in decoder_config and "
                f"{self.encoder.codebook_size} in encoder_config"
            )

    @property
    def hop_length(self) -> int:
        """Number of samples in one frame."""
        sizes = self.decoder
        return math.prod(sizes.upsampling_ratios) * math.prod(sizes.upsample_rates)

    def spec(self) -> CodecSpec:
        """Return the codec's properties. The convolutions' receptive field is decoded again with
        each window; what the layers before them see of earlier frames is in the decoder's state.
        """
        sizes = self.decoder
        left, right = receptive_field(sizes.conv_layers)
        return CodecSpec(
            sample_rate=self.sample_rate,
            hop_length=self.hop_length,
            codebook_sizes=(sizes.codebook_size,) * sizes.num_quantizers,
            left_frames=left,
            right_frames=right,
            history_frames=sizes.num_hidden_layers * (sizes.sliding_window - 1) + PRE_KERNEL - 1,
        )


def _check_attention(sizes: DecoderSizes | EncoderSizes, at: str) -> None:
    if sizes.num_key_value_heads != sizes.num_attention_heads:
        raise CheckpointError(
            f"{at}.num_key_value_heads must be {sizes.num_attention_heads}, as "
            f"num_attention_heads, not {sizes.num_key_value_heads}"
        )
    if sizes.head_dim % 2:
        raise CheckpointError(f"{at}.head_dim must be even, not {sizes.head_dim}")


Sizes = TypeVar("Sizes", DecoderSizes, EncoderSizes)


def parse_codec_config(raw: Mapping[str, Any]) -> Qwen3TTSCodecConfig:
    """Parse ``speech_tokenizer/config.json``. Absent fields of the encoder are Mimi's; all of the
    decoder's must be there. Raises CheckpointError, which names the field and its value.
    """
    decoder = _section(raw, "decoder_config", _FIXED_DECODER)
    if missing := [f.name for f in fields(DecoderSizes) if f.name not in decoder]:
        raise CheckpointError(f"decoder_config lacks {', '.join(missing)}")
    sizes = _read(DecoderSizes(), decoder, "decoder_config")
    encoder = _section(raw, "encoder_config", _FIXED_ENCODER)
    rate = raw.get("output_sample_rate", 24_000)
    for name, allowed in (
        ("encoder_valid_num_quantizers", sizes.num_quantizers),
        ("input_sample_rate", rate),
    ):
        if raw.get(name, allowed) != allowed:
            raise CheckpointError(f"{name} must be {allowed}, not {raw[name]!r}")
    return Qwen3TTSCodecConfig(
        sizes,
        _read(EncoderSizes(), encoder, "encoder_config"),
        _number(rate, "output_sample_rate", is_whole=True),
    )


def _section(raw: Mapping[str, Any], name: str, fixed: Mapping[str, Any]) -> Mapping[str, Any]:
    part = raw.get(name)
    if not isinstance(part, dict):
        raise CheckpointError(f"{name} must be an object, not {part!r}")
    for key, value in fixed.items():
        if part.get(key, value) != value:
            raise CheckpointError(f"{name}.{key} is {part[key]!r}; only {value!r} is known")
    return part


def _read(full: Sizes, part: Mapping[str, Any], at: str) -> Sizes:
    """Read the fields that ``part`` has, in the kinds of ``full``'s values."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(full) if f.name in part):
        default, value = getattr(full, name), part[name]
        if not isinstance(default, tuple):
            values[name] = _number(value, f"{at}.{name}", is_whole=isinstance(default, int))
            continue
        if not isinstance(value, list) or not value:
            raise CheckpointError(f"{at}.{name} must be a list of numbers, not {value!r}")
        values[name] = tuple(_number(n, f"{at}.{name}", is_whole=True) for n in value)
    return type(full)(**values)


def _number(value: Any, name: str, *, is_whole: bool) -> Any:
    kinds = int if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        kind = "whole number" if is_whole else "number"
        raise CheckpointError(f"{name} must be a {kind} above 0, not {value!r}")
    return value


# -- tensors, by the names of the published checkpoint


def decoder_books(sizes: DecoderSizes) -> list[str]:
    """Return the names of the decoder's codebooks in order."""
    rest = range(sizes.num_quantizers - 1)
    quantizer = "decoder.quantizer"
    return [
        f"{quantizer}.rvq_first.vq.layers.0._codebook",
        *(f"{quantizer}.rvq_rest.vq.layers.{index}._codebook" for index in rest),
    ]


def encoder_books(sizes: DecoderSizes) -> list[str]:
    """Return the names of those codebooks in the encoder."""
    rest = range(sizes.num_quantizers - 1)
    return [
        f"{SEMANTIC}.layers.0.codebook",
        *(f"{ACOUSTIC}.layers.{index}.codebook" for index in rest),
    ]


#: Names of the encoder's quantizers.
SEMANTIC = "encoder.quantizer.semantic_residual_vector_quantizer"
ACOUSTIC = "encoder.quantizer.acoustic_residual_vector_quantizer"


def decoder_shapes(config: Qwen3TTSCodecConfig) -> Shapes:
    """Return the names and shapes of all tensors that decoding needs."""
    sizes = config.decoder
    wide, latent = sizes.codebook_dim, sizes.latent_dim
    shapes = Shapes()
    for group in ("rvq_first", "rvq_rest"):
        shapes[f"decoder.quantizer.{group}.output_proj.weight"] = (wide, wide // 2, 1)
    for name in decoder_books(sizes):
        shapes[f"{name}.embedding_sum"] = (sizes.codebook_size, wide // 2)
        shapes[f"{name}.cluster_usage"] = (sizes.codebook_size,)
    shapes |= biased("decoder.pre_conv.conv", latent, wide, PRE_KERNEL)
    at = "decoder.pre_transformer"
    shapes |= biased(f"{at}.input_proj", sizes.hidden_size, latent)
    shapes |= biased(f"{at}.output_proj", latent, sizes.hidden_size)
    shapes[f"{at}.norm.weight"] = (sizes.hidden_size,)
    for layer in range(sizes.num_hidden_layers):
        name = f"{at}.layers.{layer}"
        shapes |= _attention(name, sizes.transformer)
        for part in ("gate", "up"):
            shapes[f"{name}.mlp.{part}_proj.weight"] = (sizes.intermediate_size, sizes.hidden_size)
        shapes[f"{name}.mlp.down_proj.weight"] = (sizes.hidden_size, sizes.intermediate_size)
    for index, stride in enumerate(sizes.upsampling_ratios):
        shapes |= biased(f"decoder.upsample.{index}.0.conv", latent, latent, stride)
        shapes |= convnext_shapes(f"decoder.upsample.{index}.1", latent)
    return shapes | _dac_decoder(sizes)


def encoder_shapes(config: Qwen3TTSCodecConfig) -> Shapes:
    """Return the names and shapes of all tensors that encoding needs."""
    sizes = config.encoder
    at = "encoder.encoder.layers"
    width, layer = sizes.num_filters, 1
    shapes = biased(f"{at}.0.conv", width, 1, sizes.kernel_size)
    for stride in sizes.strides:
        inner = width // sizes.compress
        shapes |= biased(f"{at}.{layer}.block.1.conv", inner, width, sizes.residual_kernel_size)
        shapes |= biased(f"{at}.{layer}.block.3.conv", width, inner, 1)
        shapes |= biased(f"{at}.{layer + 2}.conv", 2 * width, width, 2 * stride)
        width, layer = 2 * width, layer + 3
    hidden = sizes.hidden_size
    shapes |= biased(f"{at}.{layer + 1}.conv", hidden, width, sizes.last_kernel_size)
    for number in range(sizes.num_hidden_layers):
        name = f"encoder.encoder_transformer.layers.{number}"
        shapes |= _attention(name, sizes.transformer)
        for part in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}.{part}.bias"] = (hidden,)
        shapes[f"{name}.mlp.fc1.weight"] = (sizes.intermediate_size, hidden)
        shapes[f"{name}.mlp.fc2.weight"] = (hidden, sizes.intermediate_size)
    shapes["encoder.downsample.conv.weight"] = (hidden, hidden, 2 * DOWNSAMPLE)
    for group in (SEMANTIC, ACOUSTIC):
        shapes[f"{group}.input_proj.weight"] = (sizes.codebook_dim, hidden, 1)
    for name in encoder_books(config.decoder):
        shapes[f"{name}.embed_sum"] = (sizes.codebook_size, sizes.codebook_dim)
        shapes[f"{name}.cluster_usage"] = (sizes.codebook_size,)
    return shapes


def _attention(name: str, sizes: TransformerSizes) -> Shapes:
    """Return the shapes that the layers of both transformers have in common."""
    wide = sizes.heads * sizes.head_dim
    attention = {f"{name}.self_attn.{part}_proj.weight": (wide, sizes.dim) for part in "qkv"}
    vectors = ("input_layernorm.weight", "post_attention_layernorm.weight",
               "self_attn_layer_scale.scale", "mlp_layer_scale.scale")  # fmt: skip
    return {
        **attention,
        f"{name}.self_attn.o_proj.weight": (sizes.dim, wide),
        **{f"{name}.{part}": (sizes.dim,) for part in vectors},
    }


def _dac_decoder(sizes: DecoderSizes) -> Shapes:
    at = "decoder.decoder"
    width = sizes.decoder_dim
    shapes = biased(f"{at}.0.conv", width, sizes.latent_dim, KERNEL)
    for index, rate in enumerate(sizes.upsample_rates, 1):
        block = f"{at}.{index}.block"
        half = width // 2
        shapes |= _snake(f"{block}.0", width)
        shapes |= biased(f"{block}.1.conv", width, half, 2 * rate, outputs=half)
        for unit in range(2, 2 + len(DILATIONS)):
            for part, kernel in ((1, KERNEL), (2, 1)):
                shapes |= _snake(f"{block}.{unit}.act{part}", half)
                shapes |= biased(f"{block}.{unit}.conv{part}.conv", half, half, kernel)
        width = half
    last = len(sizes.upsample_rates) + 1
    shapes |= _snake(f"{at}.{last}", width)
    return shapes | biased(f"{at}.{last + 1}.conv", 1, width, KERNEL)


def _snake(name: str, width: int) -> Shapes:
    return {f"{name}.alpha": (width,), f"{name}.beta": (width,)}

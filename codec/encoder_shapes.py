"""Every tensor that encoding needs, by its newest name, and its shape."""

from __future__ import annotations

from codec.encoder_config import EncoderConfig, HubertSizes
from codec.trim import DILATIONS, KERNEL

Shapes = dict[str, tuple[int, ...]]


def encoder_shapes(config: EncoderConfig) -> Shapes:
    """Names and shapes, the quantizer's own way in and out included."""
    codec = config.codec
    wide = codec.quantizer_dim
    shapes = _acoustic(config) | _semantic_blocks(config) | _hubert(config.hubert)
    shapes |= {"fc.weight": (wide, wide), "fc.bias": (wide,)}
    for index in range(codec.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        shapes[f"{name}.codebook.embed"] = (codec.codebook_size, codec.codebook_dim)
        shapes[f"{name}.project_in.weight"] = (codec.codebook_dim, wide)
        shapes[f"{name}.project_in.bias"] = (codec.codebook_dim,)
        shapes[f"{name}.project_out.weight"] = (wide, codec.codebook_dim)
        shapes[f"{name}.project_out.bias"] = (wide,)
    return shapes


def _acoustic(config: EncoderConfig) -> Shapes:
    width, encoder = config.encoder_dim, "acoustic_encoder"
    shapes = _conv(f"{encoder}.conv1", width, 1, KERNEL)
    for index, ratio in enumerate(config.ratios):
        name = f"{encoder}.block.{index}"
        for unit in range(1, len(DILATIONS) + 1):
            for part, kernel in ((1, KERNEL), (2, 1)):
                shapes[f"{name}.res_unit{unit}.snake{part}.alpha"] = (1, width, 1)
                shapes |= _conv(f"{name}.res_unit{unit}.conv{part}", width, width, kernel)
        shapes[f"{name}.snake1.alpha"] = (1, width, 1)
        shapes |= _conv(f"{name}.conv1", 2 * width, width, 2 * ratio)
        width *= 2
    shapes[f"{encoder}.snake1.alpha"] = (1, width, 1)
    return shapes | _conv(f"{encoder}.conv2", config.codec.latent_dim, width, 3)


def _semantic_blocks(config: EncoderConfig) -> Shapes:
    width, encoder = config.hubert.hidden, "encoder_semantic"
    shapes: Shapes = {f"{encoder}.conv.weight": (width, width, config.kernel)}
    for block in range(len(config.strides)):
        name = f"{encoder}.conv_blocks.{block}"
        for unit in range(len(config.dilations)):
            shapes[f"{name}.res_units.{unit}.conv1.weight"] = (width, width, config.unit_kernel)
            shapes[f"{name}.res_units.{unit}.conv2.weight"] = (width, width, 1)
        shapes |= _conv(f"{name}.conv", width, width, 3)
    return shapes


def _hubert(sizes: HubertSizes) -> Shapes:
    hidden, model = sizes.hidden, "semantic_model"
    shapes: Shapes = {}
    before = 1
    for index, (dim, kernel) in enumerate(zip(sizes.conv_dims, sizes.conv_kernels, strict=True)):
        name = f"{model}.feature_extractor.conv_layers.{index}"
        shapes[f"{name}.conv.weight"] = (dim, before, kernel)
        if sizes.conv_bias:
            shapes[f"{name}.conv.bias"] = (dim,)
        if not index:
            shapes |= _norm(f"{name}.layer_norm", dim)
        before = dim
    if sizes.projection_norm:
        shapes |= _norm(f"{model}.feature_projection.layer_norm", before)
    shapes |= _linear(f"{model}.feature_projection.projection", hidden, before)
    encoder = f"{model}.encoder"
    group = hidden // sizes.position_groups
    shapes |= _conv(f"{encoder}.pos_conv_embed.conv", hidden, group, sizes.position_kernel)
    shapes |= _norm(f"{encoder}.layer_norm", hidden)
    for layer in range(sizes.layers):
        name = f"{encoder}.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{name}.attention.{part}", hidden, hidden)
        shapes |= _norm(f"{name}.layer_norm", hidden) | _norm(f"{name}.final_layer_norm", hidden)
        wide = sizes.feed_forward
        shapes |= _linear(f"{name}.feed_forward.intermediate_dense", wide, hidden)
        shapes |= _linear(f"{name}.feed_forward.output_dense", hidden, wide)
    return shapes


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, kernel), f"{name}.bias": (outputs,)}


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

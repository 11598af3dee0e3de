"""The Higgs codec's tensors: names, old and new, and shapes.

Names that have changed:

- layers: ``acoustic_decoder.block.{n}.conv_t1`` or, in the older descript layout,
  ``acoustic_decoder.model.{n + 1}.block.1``, and so for the encoder; the semantic encoder's
  convolutions had a module of their own, ``conv.conv``;
- weights: weight-normed or not (``codec.checkpoint.weight_norm_names``);
- codebooks: ``codebook.embed`` or ``codebook.weight``;
- the original form, from before transformers had the class: ``encoder`` and ``decoder_2`` in
  descript's layout, ``quantizer.vq.layers.{k}._codebook``, ``fc_prior`` and ``fc_post2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from codec.checkpoint import Shapes, biased, weight_norm_names
from codec.families.higgs.config import CodecConfig, EncoderConfig, HubertSizes
from codec.layer_ranges import DILATIONS, KERNEL


def stored_names(key: str, blocks: int) -> Iterator[tuple[str, ...]]:
    """Yield the names under which ``key`` may be stored, each as the tensors to merge. ``blocks``:
    number of blocks of the acoustic encoder and decoder.
    """
    for name in (key, older := _older_name(key, blocks), _original_name(older)):
        yield from weight_norm_names(name)
        if name.endswith(".codebook.embed"):
            yield (name.removesuffix("embed") + "weight",)


def _older_name(key: str, blocks: int) -> str:
    """Return ``key`` in the older layout, which numbers layers instead of naming them."""
    part, _, rest = key.partition(".")
    if part in ("acoustic_decoder", "acoustic_encoder"):
        return f"{part}.{_descript_name(part, rest, blocks)}"
    if part == "encoder_semantic":
        return re.sub(r"(\.conv[12]?)\.(weight|bias)$", r"\1.conv.\2", key)
    return key


#: Prefixes of names in the older layout, and their original form.
_ORIGINAL_PARTS = {
    "acoustic_encoder.": "encoder.",
    "acoustic_decoder.": "decoder_2.",
    "quantizer.quantizers.": "quantizer.vq.layers.",
    "fc.": "fc_prior.",
    "fc2.": "fc_post2.",
}


def _original_name(older: str) -> str:
    """Return a name of the older layout in the original form."""
    for part, original in _ORIGINAL_PARTS.items():
        if older.startswith(part):
            return (original + older.removeprefix(part)).replace(".codebook.", "._codebook.")
    return older


def _descript_name(part: str, rest: str, blocks: int) -> str:
    """Return descript's name of a layer of the acoustic encoder or decoder."""
    decodes = part == "acoustic_decoder"
    top = "model" if decodes else "block"
    outer = {"conv1": 0, "snake1": blocks + 1, "conv2": blocks + 2}
    parts = rest.split(".")
    if parts[0] != "block":
        return f"{top}.{outer[parts[0]]}.{parts[1]}"
    name = f"{top}.{int(parts[1]) + 1}.block"
    if not parts[2].startswith("res_unit"):
        own = {"snake1": 0, "conv_t1": 1} if decodes else {"snake1": 3, "conv1": 4}
        return f"{name}.{own[parts[2]]}.{parts[3]}"
    inner = ("snake1", "conv1", "snake2", "conv2").index(parts[3])
    unit = int(parts[2].removeprefix("res_unit")) + (1 if decodes else -1)
    return f"{name}.{unit}.block.{inner}.{parts[4]}"


def decoder_shapes(config: CodecConfig) -> Shapes:
    """Return the names (the newest ones) and shapes of all tensors that decoding needs."""
    wide = config.quantizer_dim
    shapes = Shapes()
    for index in range(config.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        shapes[f"{name}.codebook.embed"] = (config.codebook_size, config.codebook_dim)
        shapes |= biased(f"{name}.project_out", wide, config.codebook_dim)
    shapes |= biased("fc2", config.latent_dim, wide)
    width = config.decoder_dim
    decoder = "acoustic_decoder"
    shapes |= biased(f"{decoder}.conv1", width, config.latent_dim, KERNEL)
    for index, ratio in enumerate(config.ratios):
        name = f"{decoder}.block.{index}"
        half = width // 2
        shapes[f"{name}.snake1.alpha"] = (1, width, 1)
        shapes |= biased(f"{name}.conv_t1", width, half, 2 * ratio, outputs=half)
        shapes |= _residual_units(name, half)
        width = half
    shapes[f"{decoder}.snake1.alpha"] = (1, width, 1)
    return shapes | biased(f"{decoder}.conv2", 1, width, KERNEL)


def encoder_shapes(config: EncoderConfig) -> Shapes:
    """Return the names and shapes of all tensors that encoding needs, including the quantizers'
    projections in and out.
    """
    codec = config.codec
    wide = codec.quantizer_dim
    shapes = _acoustic(config) | _semantic_blocks(config) | _hubert(config.hubert)
    shapes |= biased("fc", wide, wide)
    for index in range(codec.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        shapes[f"{name}.codebook.embed"] = (codec.codebook_size, codec.codebook_dim)
        shapes |= biased(f"{name}.project_in", codec.codebook_dim, wide)
        shapes |= biased(f"{name}.project_out", wide, codec.codebook_dim)
    return shapes


def _acoustic(config: EncoderConfig) -> Shapes:
    width = config.encoder_dim
    encoder = "acoustic_encoder"
    shapes = biased(f"{encoder}.conv1", width, 1, KERNEL)
    for index, ratio in enumerate(config.ratios):
        name = f"{encoder}.block.{index}"
        shapes |= _residual_units(name, width)
        shapes[f"{name}.snake1.alpha"] = (1, width, 1)
        shapes |= biased(f"{name}.conv1", 2 * width, width, 2 * ratio)
        width *= 2
    shapes[f"{encoder}.snake1.alpha"] = (1, width, 1)
    return shapes | biased(f"{encoder}.conv2", config.codec.latent_dim, width, 3)


def _residual_units(block: str, width: int) -> Shapes:
    shapes = Shapes()
    for unit in range(1, len(DILATIONS) + 1):
        for part, kernel in ((1, KERNEL), (2, 1)):
            shapes[f"{block}.res_unit{unit}.snake{part}.alpha"] = (1, width, 1)
            shapes |= biased(f"{block}.res_unit{unit}.conv{part}", width, width, kernel)
    return shapes


def _semantic_blocks(config: EncoderConfig) -> Shapes:
    width = config.hubert.hidden
    encoder = "encoder_semantic"
    shapes: Shapes = {f"{encoder}.conv.weight": (width, width, config.kernel)}
    for block in range(len(config.strides)):
        name = f"{encoder}.conv_blocks.{block}"
        for unit in range(len(config.dilations)):
            shapes[f"{name}.res_units.{unit}.conv1.weight"] = (width, width, config.unit_kernel)
            shapes[f"{name}.res_units.{unit}.conv2.weight"] = (width, width, 1)
        shapes |= biased(f"{name}.conv", width, width, 3)
    return shapes


def _hubert(sizes: HubertSizes) -> Shapes:
    hidden = sizes.hidden
    model = "semantic_model"
    shapes: Shapes = {}
    before = 1
    for index, (dim, kernel) in enumerate(zip(sizes.conv_dims, sizes.conv_kernels, strict=True)):
        name = f"{model}.feature_extractor.conv_layers.{index}"
        shapes[f"{name}.conv.weight"] = (dim, before, kernel)
        if sizes.conv_bias:
            shapes[f"{name}.conv.bias"] = (dim,)
        if not index:
            shapes |= biased(f"{name}.layer_norm", dim)
        before = dim
    if sizes.projection_norm:
        shapes |= biased(f"{model}.feature_projection.layer_norm", before)
    shapes |= biased(f"{model}.feature_projection.projection", hidden, before)
    encoder = f"{model}.encoder"
    group = hidden // sizes.position_groups
    shapes |= biased(f"{encoder}.pos_conv_embed.conv", hidden, group, sizes.position_kernel)
    shapes |= biased(f"{encoder}.layer_norm", hidden)
    for layer in range(sizes.layers):
        name = f"{encoder}.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= biased(f"{name}.attention.{part}", hidden, hidden)
        shapes |= biased(f"{name}.layer_norm", hidden) | biased(f"{name}.final_layer_norm", hidden)
        wide = sizes.feed_forward
        shapes |= biased(f"{name}.feed_forward.intermediate_dense", wide, hidden)
        shapes |= biased(f"{name}.feed_forward.output_dense", hidden, wide)
    return shapes

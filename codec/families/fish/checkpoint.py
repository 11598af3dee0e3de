"""Fish Speech checkpoints: a codec beside the talker, converted from the published pickle.

The published folder has the codec as ``codec.pth``. ``talkwire convert`` converts it to
``codec.safetensors``, whose metadata has the sizes, since the published file has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codec.checkpoint import Shapes, TensorFiles, weight_norm_names
from codec.families.fish.config import (
    RESIDUAL,
    SEMANTIC,
    FishConfig,
    decoder_shapes,
    encoder_shapes,
    parse_fish_config,
)
from codec.family import CheckpointError, CodecFamily, Conversion, TensorPlan

if TYPE_CHECKING:
    from codec.families.fish.decoder import FishDecoder
    from codec.families.fish.encoder import FishEncoder

CODEC_FILE = "codec.safetensors"
PICKLE = "codec.pth"
#: Key of the sizes in the file's metadata.
METADATA_KEY = "talkwire.fish_codec"
_TALKER_TYPE = "fish_qwen3_omni"
LICENCE = (
    "Fish Speech S2 Pro, codec and talker alike, is under the Fish Audio Research License, "
    "Copyright (c) 39 AI, INC.: free for research and non-commercial use only; any commercial "
    "use, a hosted service included, needs a licence of Fish Audio (business@fish.audio). "
    'A service with it must show "Built with Fish Audio" and pass the agreement on.'
)


@dataclass(frozen=True, slots=True)
class FishCheckpoint:
    """A converted codec. Implements ``codec.family.FoundCodec``."""

    tensors: TensorFiles
    config: FishConfig

    @property
    def family(self) -> CodecFamily:
        """The Fish family."""
        return FAMILY

    def can_encode(self) -> bool:
        """See FoundCodec."""
        return all(self.tensors.has(name) for name in encoder_shapes(self.config))

    def load_decoder(self, device: str = "cpu") -> FishDecoder:
        """See FoundCodec."""
        from codec.families.fish.decoder import FishDecoder

        tensors = self.tensors.load(decoder_shapes(self.config))
        return FishDecoder(self.config, tensors, device=device)

    def load_encoder(self, device: str = "cpu") -> FishEncoder:
        """See FoundCodec."""
        from codec.families.fish.encoder import FishEncoder

        tensors = self.tensors.load(encoder_shapes(self.config))
        return FishEncoder(self.config, tensors, device=device)


def find_fish(
    folder: Path, config: Mapping[str, Any], spoken: int | None = None
) -> FishCheckpoint | None:
    """See ``CodecFamily.find``."""
    is_talker = config.get("model_type") == _TALKER_TYPE
    if not (folder / CODEC_FILE).is_file():
        if is_talker or (folder / PICKLE).is_file():
            raise CheckpointError(_missing(folder))
        return None
    tensors = TensorFiles.open(folder, CODEC_FILE)
    sizes = tensors.metadata.get(METADATA_KEY)
    if sizes is None and not is_talker:
        return None
    codec = _read_sizes(sizes)
    books = codec.spec().num_codebooks
    if spoken is not None and spoken != books:
        raise CheckpointError(f"the talker speaks {spoken} codebooks, the codec has {books}")
    return FishCheckpoint(tensors, codec)


def _missing(folder: Path) -> str:
    if (folder / PICKLE).is_file():
        return (
            f"{folder} has its codec as a pickle alone, {PICKLE}, which the service does not "
            f"read: run `talkwire convert {folder}`"
        )
    return (
        f"{folder} lacks its codec: put the model's {PICKLE} there and run "
        f"`talkwire convert {folder}`, or name a folder with {CODEC_FILE} by the setting "
        f"codec_model"
    )


def _read_sizes(sizes: str | None) -> FishConfig:
    """Parse the sizes; without any they are the published codec's."""
    try:
        raw = {} if sizes is None else json.loads(sizes)
    except ValueError as error:
        raise CheckpointError(f"the metadata {METADATA_KEY} is no JSON") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"the metadata {METADATA_KEY} is no JSON object")
    return parse_fish_config(raw)


def plan_conversion(stored: Shapes, config: Mapping[str, Any]) -> TensorPlan:
    """See ``Conversion.plan``. The sizes follow from the tensors' shapes."""
    sizes = _sizes_of(stored)
    shapes = decoder_shapes(sizes) | encoder_shapes(sizes)
    return TensorPlan(shapes, weight_norm_names, {METADATA_KEY: json.dumps(sizes.as_dict())})


def _sizes_of(stored: Shapes) -> FishConfig:
    """Derive a codec's sizes from its tensors. Attention windows do not appear in them, and head
    sizes only in the tables of the rotary embedding, if stored. Otherwise the published ones are
    assumed.
    """

    def shape(name: str) -> tuple[int, ...]:
        for parts in weight_norm_names(name):
            if parts[-1] in stored:
                return stored[parts[-1]]
        raise CheckpointError(f"the codec's checkpoint lacks {name}: not a Fish codec, it seems")

    def count(pattern: str) -> int:
        number = 0
        while any(p[-1] in stored for p in weight_norm_names(pattern.format(number))):
            number += 1
        return number

    def rates(pattern: str, first: int, per_kernel: int) -> tuple[int, ...]:
        found: list[int] = []
        while any(p[-1] in stored for p in weight_norm_names(pattern.format(first + len(found)))):
            found.append(shape(pattern.format(first + len(found)))[2] // per_kernel)
        return tuple(found)

    full = FishConfig()
    post = "quantizer.post_module"
    encoder_rates = rates("encoder.block.{}.block.4.conv.weight", 1, 2)
    inner = f"encoder.block.{len(encoder_rates)}.block.5"

    def head_dim(transformer: str, default: int) -> int:
        table = stored.get(f"{transformer}.freqs_cis")
        return default if table is None or len(table) != 3 else 2 * table[1]

    return FishConfig(
        semantic_size=shape(f"{SEMANTIC}.codebook.weight")[0],
        residual_size=shape(f"{RESIDUAL}.0.codebook.weight")[0],
        residual_books=count(RESIDUAL + ".{}.codebook.weight"),
        codebook_dim=shape(f"{SEMANTIC}.codebook.weight")[1],
        dim=shape(f"{post}.norm.weight")[0],
        layers=count(post + ".layers.{}.attention.wo.weight"),
        head_dim=head_dim(post, full.head_dim),
        feed_forward=shape(f"{post}.layers.0.feed_forward.w1.weight")[0],
        upsample=rates("quantizer.upsample.{}.0.conv.weight", 0, 1),
        decoder_dim=shape("decoder.model.0.conv.weight")[0],
        decoder_rates=rates("decoder.model.{}.block.1.conv.weight", 1, 2),
        encoder_dim=shape("encoder.block.0.conv.weight")[0],
        encoder_rates=encoder_rates,
        encoder_layers=count(inner + ".layers.{}.attention.wo.weight"),
        encoder_head_dim=head_dim(inner, full.encoder_head_dim),
    )


FAMILY = CodecFamily(
    name="fish_s2",
    models="Fish Speech S2 Pro (codec.safetensors, made by `talkwire convert`)",
    find=find_fish,
    licence=LICENCE,
    conversion=Conversion(PICKLE, CODEC_FILE, plan_conversion),
)

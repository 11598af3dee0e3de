"""Higgs checkpoints: the codec bundled with a v3 talker, or in a folder of its own.

A talker of v3 has the codec's tensors under a prefix. A codec in its own folder has bare keys, in
transformers' form (``model_type: higgs_audio_v2_tokenizer``) or in the original one, whose
configuration has no model type. The original is published as a pickle, ``model.pth``, which
``talkwire convert`` converts to safetensors.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codec.checkpoint import Shapes, TensorFiles, read_config, resolve_folder
from codec.families.higgs.config import (
    CodecConfig,
    EncoderConfig,
    parse_config,
    parse_encoder_config,
)
from codec.families.higgs.tensors import decoder_shapes, encoder_shapes, stored_names
from codec.family import CheckpointError, CodecFamily, Conversion, TensorPlan

if TYPE_CHECKING:
    from torch import Tensor

    from codec.families.higgs.decoder import HiggsDecoder
    from codec.families.higgs.encoder import HiggsEncoder

BUNDLED_PREFIX = "tied.embedding.modality_embeddings.0.model."
_STANDALONE_TYPE = "higgs_audio_v2_tokenizer"
_FILES = ("model.safetensors", "model.safetensors.index.json")
_CONVERTED = "The converted codec is published as eustlb/higgs-audio-v2-tokenizer."
#: Keys of a v3 talker's ``audio_encoder_config``; v2's is for a speech recogniser, without weights.
_BUNDLE_KEYS = frozenset(("num_codebooks", "codec_config"))
#: Keys that only the original form's configuration has.
_ORIGINAL_KEYS = frozenset(("n_filters", "n_q", "codebook_dim", "ratios"))


@dataclass(frozen=True, slots=True)
class HiggsCheckpoint:
    """Location and architecture of a codec. Implements ``codec.family.FoundCodec``.

    ``raw``: the unparsed configuration, for the encoder.
    """

    tensors: TensorFiles
    config: CodecConfig
    raw: Mapping[str, Any]

    @property
    def family(self) -> CodecFamily:
        """The Higgs family."""
        return FAMILY

    def encoder_config(self) -> EncoderConfig:
        """Return the encoder's sizes. Raises CheckpointError."""
        return parse_encoder_config(self.raw, self.config)

    def can_encode(self) -> bool:
        """Whether the checkpoint has everything that encoding needs; reads no tensors."""
        return all(map(self.has, encoder_shapes(self.encoder_config())))

    def has(self, key: str) -> bool:
        """Whether a tensor is stored, under any of its names."""
        return self.tensors.has(key, self._names)

    def decoder_tensors(self) -> dict[str, Tensor]:
        """Read the tensors of ``decoder_shapes``. Raises CheckpointError."""
        return self.tensors.load(decoder_shapes(self.config), self._names)

    def encoder_tensors(self) -> dict[str, Tensor]:
        """Read the tensors of ``encoder_shapes``. Raises CheckpointError."""
        return self.tensors.load(encoder_shapes(self.encoder_config()), self._names)

    def load_decoder(self, device: str = "cpu") -> HiggsDecoder:
        """See FoundCodec."""
        from codec.families.higgs.decoder import HiggsDecoder

        return HiggsDecoder(self.config, self.decoder_tensors(), device=device)

    def load_encoder(self, device: str = "cpu") -> HiggsEncoder:
        """See FoundCodec."""
        from codec.families.higgs.encoder import HiggsEncoder

        return HiggsEncoder(self.encoder_config(), self.encoder_tensors(), device=device)

    def _names(self, key: str) -> Iterator[tuple[str, ...]]:
        return stored_names(key, len(self.config.ratios))


def find_higgs(
    folder: Path, config: Mapping[str, Any], spoken: int | None = None
) -> HiggsCheckpoint | None:
    """See ``CodecFamily.find``."""
    bundle = config.get("audio_encoder_config")
    if isinstance(bundle, dict) and not bundle.keys().isdisjoint(_BUNDLE_KEYS):
        own = bundle.get("codec_config") or {}
        sizes = parse_config(own, bundle.get("num_codebooks"))
        return HiggsCheckpoint(TensorFiles.open(folder, prefix=BUNDLED_PREFIX), sizes, own)
    is_original = config.keys() >= _ORIGINAL_KEYS
    if config.get("model_type") != _STANDALONE_TYPE and not is_original:
        return None
    if not any((folder / name).is_file() for name in _FILES):
        raise CheckpointError(_unconverted(folder))
    tensors = TensorFiles.open(folder)
    raw = _as_converted(config) if is_original else config
    sizes = parse_config(raw, config.get("n_q") if is_original else None)
    found = HiggsCheckpoint(tensors, sizes, raw)
    stored = _count(found.has)
    if not stored:
        raise CheckpointError(
            f"{folder} is said to hold a Higgs codec, but model.safetensors has no quantizer: "
            f"a talker's weights, it seems. {_CONVERTED}"
        )
    sizes = replace(sizes, num_codebooks=spoken or min(stored, sizes.num_codebooks))
    return replace(found, config=sizes)


def _unconverted(folder: Path) -> str:
    if (folder / "model.pth").is_file():
        return (
            f"{folder} has its codec as a pickle alone, model.pth, which the service does not "
            f"read: run `talkwire convert {folder}`. {_CONVERTED}"
        )
    return (
        f"{folder} lacks model.safetensors: put the codec's model.pth there and run "
        f"`talkwire convert {folder}`. {_CONVERTED}"
    )


def open_higgs(model: str) -> HiggsCheckpoint:
    """Find a Higgs codec in a folder or under a hub id. Raises CheckpointError."""
    folder = resolve_folder(model)
    found = find_higgs(folder, read_config(folder))
    if found is None:
        raise CheckpointError(f"{folder} holds no Higgs codec")
    return found


def plan_conversion(stored: Shapes, config: Mapping[str, Any]) -> TensorPlan:
    """See ``Conversion.plan``. Without HuBERT's tensors the codec can decode but not encode."""
    raw = _as_converted(config) if config.keys() >= _ORIGINAL_KEYS else config
    sizes = parse_config(raw, 1)
    blocks = len(sizes.ratios)

    def names(key: str) -> Iterator[tuple[str, ...]]:
        return stored_names(key, blocks)

    def has(key: str) -> bool:
        return any(all(name in stored for name in parts) for parts in names(key))

    sizes = replace(sizes, num_codebooks=max(1, _count(has)))
    shapes = decoder_shapes(sizes)
    with contextlib.suppress(CheckpointError):
        encoder = encoder_shapes(parse_encoder_config(raw, sizes))
        if all(map(has, encoder)):
            shapes |= encoder
    return TensorPlan(shapes, names, {})


def _count(has: Callable[[str], bool]) -> int:
    """Return the number of quantizers stored."""
    names = (f"quantizer.quantizers.{number}.codebook.embed" for number in itertools.count())
    return sum(1 for _ in itertools.takewhile(has, names))


def _as_converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the original form's configuration to transformers' keys.

    The original's ``n_filters`` and ``D`` are not the sizes of its acoustic model. Those are fixed
    in code, and are the defaults of ``CodecConfig``.
    """
    ratios = config["ratios"]
    return {
        "sample_rate": config.get("sample_rate", 24_000),
        "codebook_size": config.get("bins", 1024),
        "codebook_dim": config["codebook_dim"],
        "acoustic_model_config": {"upsampling_ratios": ratios, "downsampling_ratios": ratios},
    }


FAMILY = CodecFamily(
    name="higgs",
    models="Higgs Audio v2 and v3 (bundled with v3; a folder of its own for v2)",
    find=find_higgs,
    conversion=Conversion("model.pth", "model.safetensors", plan_conversion),
)

"""The codec's architecture: the sizes that its weights and its arithmetic in time follow from.

The decoder is RVQ lookup -> ``project_out`` -> sum -> ``fc2`` -> DAC decoder. Key names are
those of transformers' ``HiggsAudioV2TokenizerConfig``; every default is the full-size codec
of Higgs Audio v2 and v3, whose bundled configuration names no sizes at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codec.errors import CheckpointError
from codec.trim import Layer, architecture, receptive_field
from streaming.spec import CodecSpec

_ACOUSTIC_DIM = 256
_SEMANTIC_DIM = 768


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """Sizes of one codec. The defaults are the full-size one.

    ``quantizer_dim`` is the width of the quantizers' sum (acoustic plus semantic hidden),
    ``latent_dim`` what ``fc2`` makes of it, ``decoder_dim`` the decoder's first width; it
    halves at each of the upsampling ``ratios``.
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
        """Samples of one frame."""
        return math.prod(self.ratios)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The decoder's convolutions as arithmetic in time."""
        return architecture(self.ratios)

    def spec(self) -> CodecSpec:
        """What the rest of the service needs; the receptive field is computed here."""
        return CodecSpec(
            sample_rate=self.sample_rate,
            hop_length=self.hop_length,
            num_codebooks=self.num_codebooks,
            codebook_size=self.codebook_size,
            receptive_field_frames=receptive_field(self.layers),
        )


def parse_config(raw: Mapping[str, Any], num_codebooks: int | None = None) -> CodecConfig:
    """Read transformers' ``HiggsAudioV2TokenizerConfig`` fields; absent ones are full-size.

    ``num_codebooks`` overrides the number that follows from ``target_bandwidths`` (kbit/s;
    the largest decides). Raises CheckpointError for fields of the wrong kind.
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
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError("the codec's configuration cannot be read") from error

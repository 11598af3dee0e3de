"""What a codec's codes mean in time, and what audio a client asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

#: Codes of rows, frames and windows. 1026 values need 11 bits; int16 halves what travels.
Codes = npt.NDArray[np.int16]
#: Mono audio, nominally within [-1, 1].
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The facts about a neural codec that the rest of the service needs.

    ``codebook_size`` counts real codes only: a code ``>= codebook_size`` is special
    (BOC, EOC) and is never decoded. ``receptive_field_frames`` is how many whole frames
    on either side of a frame can change its samples, computed from the architecture.
    """

    sample_rate: int
    hop_length: int
    num_codebooks: int
    codebook_size: int
    receptive_field_frames: int

    def __post_init__(self) -> None:
        for name in ("sample_rate", "hop_length", "num_codebooks", "codebook_size"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if self.receptive_field_frames < 0:
            raise ValueError("receptive_field_frames must not be negative")

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one frame."""
        return self.hop_length / self.sample_rate

    def seconds(self, samples: int) -> float:
        """Seconds that ``samples`` last."""
        return samples / self.sample_rate


class Encoding(StrEnum):
    """How samples are laid out on the wire."""

    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """Mono audio as a client receives it."""

    encoding: Encoding = Encoding.PCM_S16LE
    sample_rate: int = 24_000

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return 2 if self.encoding is Encoding.PCM_S16LE else 4

"""What a codec's codes mean in time, and how audio is laid out for a client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

#: Codes of rows, frames and windows. 1026 values need 11 bits; int16 halves what travels.
Codes = npt.NDArray[np.int16]
#: In place of a code that has not been spoken yet; only a window's lookahead may hold it.
UNKNOWN = -1
#: Mono audio, nominally within [-1, 1].
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The facts about a neural codec that the rest of the service needs.

    ``codebook_size`` counts real codes only: a code ``>= codebook_size`` is special
    (BOC, EOC) and is never decoded. ``receptive_field_frames`` is how many whole frames
    on either side of a frame can change its samples, computed from the architecture.
    ``inert_codebooks``: of the last so many any code sounds like any other.
    """

    sample_rate: int
    hop_length: int
    num_codebooks: int
    codebook_size: int
    receptive_field_frames: int
    inert_codebooks: int = 0

    def __post_init__(self) -> None:
        for name in ("sample_rate", "hop_length", "num_codebooks", "codebook_size"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if self.receptive_field_frames < 0:
            raise ValueError("receptive_field_frames must not be negative")
        if not 0 <= self.inert_codebooks < self.num_codebooks:
            raise ValueError("at least the first codebook must be heard")

    @property
    def delay_rows(self) -> int:
        """How many rows after its first code a frame of a delay pattern is all that is heard."""
        return self.num_codebooks - self.inert_codebooks - 1

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
    PCM_MULAW = "pcm_mulaw"
    PCM_ALAW = "pcm_alaw"
    OPUS = "opus"

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample, mono; 0 for Opus, whose packets have no fixed number."""
        return _SAMPLE_BYTES[self]


_SAMPLE_BYTES = {
    Encoding.PCM_S16LE: 2,
    Encoding.PCM_F32LE: 4,
    Encoding.PCM_MULAW: 1,
    Encoding.PCM_ALAW: 1,
    Encoding.OPUS: 0,
}

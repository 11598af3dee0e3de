"""Properties of a codec and of an audio format: rates, sizes, receptive field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

#: Codes of rows, frames and windows. 1026 values need 11 bits; int16 halves the bytes to send.
Codes = npt.NDArray[np.int16]
#: Placeholder for a code that is not known yet; only a window's lookahead may contain it.
UNKNOWN = -1
#: Mono audio, nominally within [-1, 1].
Samples = npt.NDArray[np.float32]
#: A speaker as one vector ``[D]``, as some talkers need it.
SpeakerVector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """Properties of a neural codec that the rest of the service needs.

    ``codebook_sizes`` count real codes only: a code of codebook k that is not below
    ``codebook_sizes[k]`` is special (BOC, EOC) and is never decoded.

    ``left_frames`` and ``right_frames`` are the receptive field: the number of whole frames before
    and after a frame that can change its samples, computed from the architecture. A causal codec
    has no right side. They are decoded again with every window. ``history_frames`` reach further
    back, through layers whose state the decoder keeps between windows (attention's keys and
    values). A window carries them so that lost state can be recomputed.

    ``inert_codebooks``: number of last codebooks in which all codes sound the same.
    """

    sample_rate: int
    hop_length: int
    codebook_sizes: tuple[int, ...]
    left_frames: int
    right_frames: int
    history_frames: int = 0
    inert_codebooks: int = 0

    def __post_init__(self) -> None:
        if self.sample_rate <= 0 or self.hop_length <= 0:
            raise ValueError("sample_rate and hop_length must be positive")
        if not self.codebook_sizes or min(self.codebook_sizes) <= 0:
            raise ValueError("there must be codebooks, each of a positive size")
        if min(self.left_frames, self.right_frames, self.history_frames) < 0:
            raise ValueError("a receptive field must not be negative")
        if not 0 <= self.inert_codebooks < self.num_codebooks:
            raise ValueError("at least the first codebook must be audible")

    @property
    def num_codebooks(self) -> int:
        """Number of codes in one frame."""
        return len(self.codebook_sizes)

    @property
    def codebook_size(self) -> int:
        """Number of real codes of each codebook. Raises ValueError if their sizes differ."""
        if len(set(self.codebook_sizes)) > 1:
            raise ValueError("the codebooks differ in size")
        return self.codebook_sizes[0]

    def are_codes(self, codes: Codes, lookahead: int = 0) -> bool:
        """Whether all of ``codes`` ``[K, T]``, T >= 1, are real; those of the last ``lookahead``
        frames may be UNKNOWN.
        """
        if codes.min() < 0:
            known = codes[:, : codes.shape[1] - lookahead]
            if known.min(initial=0) < 0 or codes.min() < UNKNOWN:
                return False
        if codes.max() < min(self.codebook_sizes):
            return True
        return bool((codes < np.array(self.codebook_sizes)[:, None]).all())

    @property
    def delay_rows(self) -> int:
        """Number of rows from the first code of a delayed frame to its last audible one."""
        return self.num_codebooks - self.inert_codebooks - 1

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one frame."""
        return self.hop_length / self.sample_rate


class Encoding(StrEnum):
    """Format of audio samples on the wire."""

    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"
    PCM_MULAW = "pcm_mulaw"
    PCM_ALAW = "pcm_alaw"
    OPUS = "opus"

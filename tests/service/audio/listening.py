"""Decodes audio with ffmpeg, through PyAV, and compares it."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from streaming.spec import Samples

#: Samples that a lossy encoder may add at the ends: its delay, and its last block.
PADDING = 2600


def decoded(data: bytes) -> tuple[Samples, int]:
    """Decode a file to mono float samples at 24 kHz; return them and their original rate."""
    with av.open(io.BytesIO(data), "r") as file:
        frames = list(file.decode(audio=0))
        to_float = av.AudioResampler("fltp", "mono", 24_000)
        resampled = [out for frame in (*frames, None) for out in to_float.resample(frame)]
    return np.concatenate([out.to_ndarray()[0] for out in resampled]), frames[0].sample_rate


def likeness(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """Return the correlation of two sounds: 1 for the same, near 0 for different ones.

    ``got`` may begin up to PADDING samples later, and be longer.
    """
    size = 1 << (len(got) + len(want)).bit_length()
    heard, meant = got - got.mean(), want - want.mean()
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(meant, size))
    lagged = np.fft.irfft(spectrum, size)[: PADDING + 1]
    scale = float(np.linalg.norm(heard) * np.linalg.norm(meant))
    return float(lagged.max()) / scale

"""The sound of a frame of 40 ms as numbers: four smoothed log-mel spectra."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.pitch import HOP, RATE

SUBFRAMES, CEPSTRA, BANDS = 4, 30, 80
WIDTH = SUBFRAMES * CEPSTRA
#: Samples between spectra.
STEP = HOP // SUBFRAMES
_FFT, _WINDOW = 1024, 720
_LOWEST_HZ, _HIGHEST_HZ = 40.0, 12_000.0
_FLOOR = 1e-5
#: Speech has 30 dB less at 6 kHz than at 300 Hz, so waveforms are compared after pre-emphasis with
#: this coefficient.
_EMPHASIS = 0.9


def mel_spaced(
    count: int, lowest_hz: float = _LOWEST_HZ, highest_hz: float = _HIGHEST_HZ
) -> npt.NDArray[np.float64]:
    """Return ``[count]`` frequencies in Hz, equally far apart in mel."""
    lowest, highest = np.log1p(lowest_hz / 700), np.log1p(highest_hz / 700)
    return 700 * np.expm1(np.linspace(lowest, highest, count))


def mel_bands(count: int, size: int) -> Tensor:
    """Triangular filters ``[count, size // 2 + 1]``, equally wide in mel, each of sum 1."""
    edges = mel_spaced(count + 2)  # of bands, and their middles
    bins = np.fft.rfftfreq(size, 1 / RATE)[None]
    low, middle, high = (edges[i : i + count, None] for i in range(3))
    rise, fall = (bins - low) / (middle - low), (high - bins) / (high - middle)
    triangles = np.clip(np.minimum(rise, fall), 0, None)
    return torch.from_numpy(
        (triangles / np.maximum(triangles.sum(1, keepdims=True), 1e-6)).astype(np.float32)
    )


def bright(samples: Tensor) -> Tensor:
    """Apply pre-emphasis."""
    return samples[..., 1:] - _EMPHASIS * samples[..., :-1]


def _cosines() -> Tensor:
    rows = torch.outer(torch.arange(CEPSTRA), torch.arange(BANDS) + 0.5) * torch.pi / BANDS
    table: Tensor = torch.cos(rows) * (2 / BANDS) ** 0.5
    table[0] *= 0.5**0.5
    return table


_MEL, _COSINES = mel_bands(BANDS, _FFT), _cosines()
_HANN = torch.nn.functional.pad(torch.hann_window(_WINDOW), ((_FFT - _WINDOW) // 2,) * 2)


def spectra(samples: Tensor) -> Tensor:
    """Compute smoothed log-mel spectra of a waveform.

    Args:
        samples: ``[T * HOP]`` at 24 kHz.

    Returns:
        ``[T, WIDTH]``: four spectra per frame, as the first ``CEPSTRA`` coefficients of an
        orthonormal cosine transform.
    """
    padded = torch.nn.functional.pad(samples, (_FFT // 2 - STEP // 2, _FFT))
    frames = padded.unfold(0, _FFT, STEP)[: len(samples) // STEP]
    power = torch.fft.rfft(frames * _HANN).abs().pow(2)
    log = 0.5 * (power @ _MEL.T + _FLOOR).log()
    found: Tensor = log @ _COSINES.T
    return found.reshape(-1, WIDTH)


def bands_of(cepstra: Tensor) -> Tensor:
    """Map cepstra ``[..., CEPSTRA]`` to the log amplitudes of bands ``[..., BANDS]``."""
    return cepstra @ _COSINES


@cache
def curves(size: int) -> Tensor:
    """Return ``[CEPSTRA, size // 2 + 1]``: cepstra times this matrix are the log amplitudes at the
    frequencies of a transform of ``size``.
    """
    return curves_at(np.fft.rfftfreq(size, 1 / RATE))


def curves_at(hz: npt.NDArray[np.floating[Any]]) -> Tensor:
    """Return the same for any frequencies, ``[CEPSTRA, len(hz)]``: linear between the middles of
    bands.
    """
    rows = [np.interp(hz, mel_spaced(BANDS + 2)[1:-1], row) for row in _COSINES.numpy()]
    return torch.from_numpy(np.stack(rows).astype(np.float32))


def interpolated(rows: Tensor, times: Tensor) -> Tensor:
    """Interpolate spectra that are ``STEP`` samples apart.

    Args:
        rows: ``[..., n, K]``; the first is centred at half a ``STEP``.
        times: ``[m]``, in samples. Before the first centre and after the last, rows are constant.

    Returns:
        ``[..., m, K]``.
    """
    last = rows.shape[-2] - 1
    at = (times / STEP - 0.5).clamp(0, last)
    before = at.long().clamp(max=last - 1)
    return torch.lerp(rows[..., before, :], rows[..., before + 1, :], (at - before)[:, None])

"""Gives speech the phases that its codes say: what the decoder's samples are compared with.

The codes say where in its period each sample of voiced speech is (:func:`~.pitch.contour`), but
Kokoro's vocoder lets only the lowest harmonics follow that; above the third any phase may come.
A decoder that is compared by magnitudes alone learns hardly any harmonics between 1 and 4 kHz:
with the teacher's magnitudes in its place there, DistillMOS was 4.1 instead of 2.0 (8 sentences,
4.4 by the teacher), with the teacher's phases 2.4. So voiced speech keeps its magnitudes up to
:data:`HIGHEST_HZ` and gets the phases of a train of pulses at the codes' phase through the
minimum-phase filter of its envelope. That hardly changes its sound (4.1), and a decoder can know
all of it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embedded.training.pitch import HOP, RATE, Floats, Ints, contour

#: Above it speech keeps the teacher's phases: pulses throughout have a DistillMOS of 3.8.
HIGHEST_HZ = 4000.0
SIZE, STEP = 512, 128
_LOWEST_HZ = 50.0
#: Harmonics up to here make a pulse.
_BAND_HZ = 11_500.0
#: Quefrencies below this, in samples, are the envelope; it has faded out there from a half on.
_LIFTER = 48
_LEAST = 1e-4


def pulses(pitch: Ints) -> Floats:
    """``[T * HOP]``: the cosines of all harmonics at the phase that codes ``[T]`` say; 0 where
    there is no pitch.
    """
    theta = contour(pitch)
    count = np.floor(_BAND_HZ / np.maximum(np.gradient(theta) * RATE, _LOWEST_HZ))
    angle = 2 * np.pi * (theta % 1)
    below = 2 * np.sin(angle / 2)
    flat = np.abs(below) < 1e-6  # at the pulse itself
    kernel = np.sin((count + 0.5) * angle) / np.where(flat, 1.0, below)
    train = np.where(flat, count + 0.5, kernel) - 0.5
    return np.asarray(np.where(np.repeat(pitch > 0, HOP), train, 0.0), np.float32)


def voiced_columns(voiced: Tensor, columns: int) -> Tensor:
    """Which columns of a spectrogram of ``SIZE`` and ``STEP`` hear voiced frames alone.

    Args:
        voiced: ``[..., T]`` bool, by frame.
        columns: of the spectrogram, whose column ``i`` is about sample ``i * STEP``.

    Returns:
        ``[..., columns]`` bool.
    """
    centre = torch.arange(columns, device=voiced.device) * STEP
    edges = [
        ((centre + side) // HOP).clamp(0, voiced.shape[-1] - 1)
        for side in (-SIZE // 2, SIZE // 2 - 1)
    ]
    return voiced[..., edges[0]] & voiced[..., edges[1]]


def transform(samples: Tensor) -> Tensor:
    """The complex spectrogram ``[..., SIZE / 2 + 1, columns]`` of ``[..., n]``."""
    window = torch.hann_window(SIZE, device=samples.device)
    return torch.stft(samples, SIZE, STEP, window=window, return_complex=True)


def aligned(samples: Floats, pitch: Ints) -> Floats:
    """Speech ``[T * HOP]`` with the phases that its pitch codes ``[T]`` say."""
    spectrum, train = (transform(torch.from_numpy(x)) for x in (samples, pulses(pitch)))
    phase = train.angle() + _minimum_phase(spectrum.abs())
    low = torch.arange(SIZE // 2 + 1) * RATE / SIZE < HIGHEST_HZ
    voiced = voiced_columns(torch.from_numpy(pitch > 0), spectrum.shape[1])
    made = torch.where(low[:, None] & voiced, torch.polar(spectrum.abs(), phase), spectrum)
    window = torch.hann_window(SIZE)
    return torch.istft(made, SIZE, STEP, window=window, length=len(samples)).numpy()


def _minimum_phase(size: Tensor) -> Tensor:
    """The phases of the filter whose magnitudes are the envelope of ``size`` ``[bins, n]``."""
    cepstra = torch.fft.irfft((size + _LEAST).log(), SIZE, dim=0)[:_LIFTER]
    taper = torch.linspace(2, 0, _LIFTER + 1)[:-1].clamp(max=1) * 2
    taper[0] = 1.0
    phase: Tensor = torch.fft.rfft(cepstra * taper[:, None], SIZE, dim=0).imag
    return phase

"""The waveform that a sequence of codes stands for: what the codec's decoder learns to make.

A vocoder in plain numpy: pulses at every whole period, each shaped by the minimum-phase filter
of the mel-cepstra at its time, and noise shaped likewise. Everything is a function of the codes
(the noise too: each frame plays one of ``NOISES`` fixed stretches), so a network can be taught
the waveform itself, and needs no adversary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedded.training.features import BANDS, ORDER, SUBFRAMES, Ints, pitch_of, warped
from embedded.training.flite import Floats

RATE, HOP = 24_000, 960
NOISES = 16
_FFT = 1024
_BINS = _FFT // 3 + 1  # up to 8 kHz, where flite's voices end
_SCALE = 1.0 / 32768
_ALPHA = 0.42
_ORDERS = np.arange(ORDER)
#: exp(-j m w~): the mel-cepstra's filter is the exponential of their sum over these
_BASIS = np.exp(-1j * np.outer(_ORDERS, warped(_BINS, _ALPHA))).astype(np.complex64)
_TAPER = np.clip((8000 - np.linspace(0, 8000, _BINS)) / 600, 0, 1).astype(np.float32)
_BAND_CENTRES = np.array([500.0, 1500.0, 3000.0, 5000.0, 7000.0])
_BAND_SHAPE = np.stack(
    [np.interp(np.linspace(0, 8000, _BINS), _BAND_CENTRES, row) for row in np.eye(BANDS)]
).astype(np.float32)


def noise_table() -> Floats:
    """``[NOISES, HOP]``: the fixed stretches, white, of unit variance."""
    return np.random.default_rng(7).standard_normal((NOISES, HOP)).astype(np.float32)


_NOISE = noise_table()


def contour(periods: Floats, phase: Floats) -> npt.NDArray[np.float64]:
    """The phase of the fundamental at every sample ``[T * HOP]``, in periods, growing.

    Between two frames' phases it is the cubic whose slope is the pitch there. Where a frame's
    pitch does not lead to the next one's phase (a sampled sequence may hold that), the pitch
    gives way by the least.
    """
    count = len(periods)
    following = np.append(phase[1:], 0)
    joined = np.append(periods[1:] > 0, False) & (periods > 0)
    step = periods + np.where(joined, (following - phase - periods + 0.5) % 1 - 0.5, 0)
    slope = np.where(joined, (step + np.append(step[1:], 0)) / 2, step)  # at the frame's end
    before = np.append(False, joined[:-1])
    first = np.where(before, np.append(0, slope[:-1]), step)
    start = phase + np.concatenate([[0], np.cumsum(np.rint(step + phase)[:-1] + 1)])
    x = (np.arange(HOP) / HOP)[None]
    a, b, d = first[:, None], slope[:, None], step[:, None]
    inside = a * x + (3 * d - 2 * a - b) * x**2 + (a + b - 2 * d) * x**3
    return np.asarray(start[:, None] + inside).reshape(count * HOP)


def _interpolated(rows: Floats, at: npt.NDArray[np.float64]) -> Floats:
    """``rows`` ``[n, w]`` (one each 10 ms, at its middle) at times ``at`` in samples."""
    place = np.clip(np.asarray(at) / (HOP / SUBFRAMES) - 0.5, 0, len(rows) - 1)
    low = place.astype(np.int64)
    high = np.minimum(low + 1, len(rows) - 1)
    share = (place - low)[:, None].astype(np.float32)
    return np.asarray(rows[low] * (1 - share) + rows[high] * share, np.float32)


def _shapes(rows: Floats, voiced: bool) -> npt.NDArray[np.complexfloating]:
    """Spectra ``[n, _BINS]`` of the filters of ``rows``, for the pulse or for the noise."""
    filters = np.exp(rows[:, :ORDER].astype(np.complex64) @ _BASIS) * _TAPER
    share = np.clip(rows[:, ORDER:], 0, 1) @ _BAND_SHAPE
    return np.asarray(filters * (share if voiced else 1 - share))


def _add(out: Floats, pieces: Floats, at: Ints) -> None:
    places = at[:, None] + np.arange(pieces.shape[1])
    inside = places < len(out)
    out += np.bincount(places[inside], pieces[inside], minlength=len(out)).astype(np.float32)


def synthesise(envelopes: Floats, pitch: Ints, noise: Ints) -> Floats:
    """Samples ``[T * HOP]`` at 24 kHz of ``envelopes`` ``[T, WIDTH]``, pitch codes ``[T]`` and
    the numbers ``[T]`` of the noise to play.
    """
    rows = envelopes.reshape(-1, ORDER + BANDS)
    return (_pulses(rows, pitch) + _noise(rows, noise)) * np.float32(_SCALE)


def _pulses(rows: Floats, pitch: Ints) -> Floats:
    """A pulse wherever the fundamental's phase passes a whole number."""
    out = np.zeros(len(pitch) * HOP, np.float32)
    periods, phase = pitch_of(pitch)
    theta = contour(periods, phase)
    whole = np.floor(theta)
    frame = np.arange(len(theta)) // HOP
    inside = (periods[frame[1:]] > 0) & (frame[1:] == frame[:-1])
    crossing = np.flatnonzero((np.diff(whole) >= 1) & inside) + 1
    starts = np.flatnonzero((periods > 0) & (phase == 0)) * HOP
    crossing = np.union1d(crossing, starts)
    if not len(crossing):
        return out
    speed = np.maximum(np.gradient(theta)[crossing], 1e-3)
    late = np.where(np.isin(crossing, starts), 0, (theta[crossing] - whole[crossing]) / speed)
    period = HOP / periods[frame[crossing]]
    shape = _shapes(_interpolated(rows, np.asarray(crossing - late, np.float64)), True)
    # flite's pulse has the square root of the period at 16 kHz; 1.5 for the change of rate
    shape *= (1.5 * np.sqrt(period / 1.5))[:, None]
    omega = 2 * np.pi * np.arange(_BINS) / _FFT
    shape = shape * np.exp(1j * omega[None] * late[:, None])
    _add(out, np.fft.irfft(shape, _FFT).astype(np.float32), crossing)
    return out


def _noise(rows: Floats, noise: Ints) -> Floats:
    """The fixed stretches, filtered in overlapping blocks of 20 ms."""
    hop = HOP // SUBFRAMES
    source = np.sqrt(1.5) * _NOISE[noise].reshape(-1)
    padded = np.pad(source, (hop // 2, hop // 2 + hop))
    window = np.hanning(2 * hop + 1)[:-1]
    blocks = np.stack([padded[i * hop : i * hop + 2 * hop] for i in range(len(rows))]) * window
    spectra = np.fft.rfft(blocks, _FFT)
    spectra[:, _BINS:] = 0
    spectra[:, :_BINS] *= np.abs(_shapes(rows, False))
    out = np.zeros(len(source) + 2 * _FFT, np.float32)
    _add(out, np.fft.irfft(spectra, _FFT).astype(np.float32), np.arange(len(rows)) * hop)
    return out[hop // 2 : hop // 2 + len(source)]

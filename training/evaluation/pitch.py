"""The pitch of speech, by autocorrelation (Boersma 1993, without its path search)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streaming.spec import Samples

STEP_S = 0.01
_WINDOW_S = 0.05
_LOWEST_HZ, _HIGHEST_HZ = 60.0, 420.0
_VOICED_FROM = 0.5
#: Frames below this share of the loudest frame's amplitude are silence (-40 dB).
_AUDIBLE_SHARE = 0.01
#: Multiples of the period score as high, so a shorter one that is nearly as good is preferred.
_NEARLY = 0.92


def pitch_track(samples: Samples, rate: int) -> npt.NDArray[np.float64]:
    """Return the pitch in Hz every 10 ms; 0 where there is none."""
    window, step = round(_WINDOW_S * rate), round(STEP_S * rate)
    padded = np.pad(samples.astype(np.float64), (window // 2, window))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step]
    frames = (frames - frames.mean(1, keepdims=True)) * np.hanning(window)
    alike = _autocorrelation(frames) / _autocorrelation(np.hanning(window)[None])
    energy = np.maximum(alike[:, :1], 1e-12)
    first, last = int(rate / _HIGHEST_HZ), int(rate / _LOWEST_HZ)
    share = (alike / energy)[:, first : last + 1]
    best = share.max(1)
    peaks = np.zeros(share.shape, bool)
    peaks[:, 1:-1] = (share[:, 1:-1] >= share[:, :-2]) & (share[:, 1:-1] >= share[:, 2:])
    good = peaks & (share >= _NEARLY * best[:, None])
    lag = first + good.argmax(1)
    level = np.sqrt(energy[:, 0])
    voiced = good.any(1) & (best >= _VOICED_FROM) & (level > _AUDIBLE_SHARE * level.max())
    return np.asarray(np.where(voiced, rate / _refined(share, lag - first, first), 0.0))


def _autocorrelation(frames: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    size = 2 * frames.shape[1]
    spectrum = np.fft.rfft(frames, size)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2, size)[:, : frames.shape[1] * 2 // 3])


def _refined(
    share: npt.NDArray[np.float64], place: npt.NDArray[np.int64], first: int
) -> npt.NDArray[np.float64]:
    """Refine lags to fractions of a sample, by a parabola through a peak and its neighbours."""
    at = np.clip(place, 1, share.shape[1] - 2)
    rows = np.arange(len(share))
    left, top, right = (share[rows, at + move] for move in (-1, 0, 1))
    bend = left - 2 * top + right
    shift = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, 1), 0)
    return np.asarray(first + at + np.clip(shift, -0.5, 0.5))

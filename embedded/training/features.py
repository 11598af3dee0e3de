"""What a frame of 40 ms is to the codec: four spectra with their voicing, a pitch, and a phase.

A waveform cannot be had from spectra and pitch alone: where in a period a frame begins must be
known too, or neighbouring frames do not fit. So the pitch code holds the phase. A frame is
``eighths`` of a period long (``round(F0 * 40 ms * 8)``) and begins at one of eight phases; the
next frame's phase follows from both. Pitch is thereby exact to 1.6 Hz, frames join without a
seam, and a listener of codes (the talker) can learn the rule by heart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedded.training.flite import Floats, Spoken

ORDER = 25  # mel-cepstra, energy included
BANDS = 5
SUBFRAMES = 4
_STEPS = 8  # flite's frames in one of ours
WIDTH = SUBFRAMES * (ORDER + BANDS)

PHASES = 8
LOWEST, HIGHEST = 19, 122  # eighths of a period in a frame: 59 Hz to 381 Hz
#: Code 0 is a frame without pitch; the others are ``1 + PHASES * (eighths - LOWEST) + phase``.
PITCH_CODES = 1 + PHASES * (HIGHEST - LOWEST + 1)
#: Columns of ``pitch_table`` that do not depend on the phase: the first ones.
PLAIN = 4
_FRAME_S = 0.04
_POSTFILTER = 0.4  # flite's mlsa_beta
_FLOOR = -1.0  # the quietest energy (log amplitude): below it nothing is heard

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Speaker:
    """A voice made of one of flite's: its pitch times ``pitch``, its tract ``tract`` shorter
    (a change of the mel-cepstra's warping: .05 moves formants by about a tenth).
    """

    voice: str
    pitch: float = 1.0
    tract: float = 0.0


def warped(count: int, alpha: float) -> Floats:
    """``count`` frequencies 0..pi after the bilinear warping by ``alpha``."""
    omega = np.linspace(0.0, np.pi, count)
    result = omega + 2 * np.arctan(alpha * np.sin(omega) / (1 - alpha * np.cos(omega)))
    return np.asarray(result, np.float32)


def _tract_matrix(tract: float, alpha: float = 0.42, points: int = 256) -> Floats:
    """``[ORDER, ORDER]``: cepstra of the same voice from a tract of another length."""
    orders = np.arange(ORDER)
    seen = np.cos(np.outer(warped(points, alpha), orders))
    heard = np.cos(np.outer(warped(points, alpha + tract), orders))
    # equal weight on the warped axis, where cosines are orthogonal
    weight = np.sqrt(np.gradient(warped(points, alpha)))[:, None]
    matrix, *_ = np.linalg.lstsq(seen * weight, heard * weight, rcond=None)
    return np.asarray(matrix.T, np.float32)


def _sharpened(cepstra: Floats) -> Floats:
    """With formants raised as flite's vocoder raises them, at the same power."""
    cosines = np.cos(np.outer(np.arange(ORDER), warped(64, 0.42))).astype(np.float32)
    sharp = cepstra.copy()
    sharp[:, 2:] *= 1 + _POSTFILTER
    power = [np.log(np.exp(2 * (c @ cosines)).mean(axis=1)) for c in (cepstra, sharp)]
    sharp[:, 0] += (power[0] - power[1]) / 2
    return sharp


def analyse(spoken: Spoken, speaker: Speaker) -> tuple[Floats, Floats]:
    """(envelopes ``[T, WIDTH]``, F0 ``[T]`` in Hz and 0 where unvoiced).

    An envelope is ``SUBFRAMES`` rows of ``ORDER`` cepstra and ``BANDS`` voicings.
    """
    n = -len(spoken.f0) % _STEPS
    cepstra = np.pad(spoken.cepstra, ((0, n), (0, 0)), mode="edge")
    f0 = np.pad(spoken.f0, (0, n))
    voicing = np.pad(spoken.voicing, ((0, n), (0, 0))) * (f0 > 0)[:, None]
    if speaker.tract:
        cepstra = cepstra @ _tract_matrix(speaker.tract).T
    cepstra = _sharpened(cepstra)
    cepstra[:, 0] = np.maximum(cepstra[:, 0], _FLOOR)
    both = np.concatenate([cepstra, voicing], axis=1)
    both = both.reshape(-1, SUBFRAMES, _STEPS // SUBFRAMES, ORDER + BANDS).mean(axis=2)
    f0 = f0.reshape(-1, _STEPS) * speaker.pitch
    heard = (f0 > 0).sum(axis=1)
    mean = f0.sum(axis=1) / np.maximum(heard, 1)
    return both.reshape(len(both), WIDTH), np.where(heard >= 2, mean, 0).astype(np.float32)


def pitch_codes(f0: Floats) -> Ints:
    """Codes ``[T]`` of a pitch contour in Hz; the phase begins at 0 in each voiced stretch."""
    eighths = np.clip(np.rint(f0 * _FRAME_S * PHASES), LOWEST, HIGHEST).astype(np.int64)
    codes = np.zeros(len(f0), np.int64)
    phase = 0
    for t, voiced in enumerate(f0 > 0):
        if voiced:
            codes[t] = 1 + PHASES * (eighths[t] - LOWEST) + phase
            phase = (phase + int(eighths[t])) % PHASES
        else:
            phase = 0
    return codes


def pitch_of(codes: Ints) -> tuple[Floats, Floats]:
    """(periods in the frame ``[T]``, 0 where unvoiced; phase at its beginning ``[T]``, 0-1)."""
    eighths, phase = np.divmod(np.maximum(codes - 1, 0), PHASES)
    voiced = codes > 0
    periods = np.where(voiced, (eighths + LOWEST) / PHASES, 0)
    return periods.astype(np.float32), np.where(voiced, phase / PHASES, 0).astype(np.float32)


def pitch_table() -> Floats:
    """``[PITCH_CODES, 24]``: numbers from which a network reads pitch and phase with ease.

    Columns: voiced and F0 on three scales (``PLAIN`` columns, without the phase); the
    fundamental's cosine and sine at ten times in the frame, were its pitch constant.
    """
    periods, phase = pitch_of(np.arange(PITCH_CODES))
    columns = [periods > 0, np.log2(np.maximum(periods, 1) / 5)]
    columns += [np.sin(np.pi * columns[1]), np.cos(np.pi * columns[1])]
    for at in (np.arange(10) + 0.5) / 10:
        angle = 2 * np.pi * (phase + periods * at)
        columns += [np.cos(angle), np.sin(angle)]
    return (np.stack(columns, axis=1) * (periods > 0)[:, None]).astype(np.float32)

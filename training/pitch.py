"""Pitch and phase of a frame as one code, and the F0 contour of a sequence of such codes.

Spectra and pitch alone do not determine a waveform: the phase at which a frame begins must be known
too, or neighbouring frames do not fit. So the pitch code includes the phase. A frame of 40 ms is
``eighths`` of a period long (``round(F0 * 40 ms * 8)``) and begins at one of eight phases. The next
frame's phase follows from both, which the talker memorises. Pitch is thereby exact to 1.6 Hz. The
teacher speaks on exactly these contours (:func:`quantised_f0`), so the codes determine the phases
of its harmonics.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

RATE, HOP = 24_000, 960
#: Samples between two values of the teacher's F0.
F0_STEP = 300
PHASES = 8
LOWEST, HIGHEST = 19, 145  # eighths of a period in a frame: 59 Hz to 453 Hz
#: Code 0 is a frame without pitch; the others are ``1 + PHASES * (eighths - LOWEST) + phase``.
PITCH_CODES = 1 + PHASES * (HIGHEST - LOWEST + 1)
#: Number of first columns of ``pitch_table`` that do not depend on the phase.
PLAIN = 4
#: Columns of ``pitch_table``.
PITCH = 24
_VOICED_HZ = 30.0
_FINE = 32  # F0 values read per frame
_UNVOICED_HZ = 8.0  # the teacher's source makes noise below 10 Hz
_QUIET_STEPS = 24  # F0 values of silence over which a phase may be adjusted


def codes_of(f0: Floats, frames: int) -> Ints:
    """Quantise a contour, with phase 0 at the beginning of each voiced stretch.

    Args:
        f0: the teacher's values in Hz, one per ``F0_STEP`` samples, the first at the first frame.
        frames: number of codes to return.

    Returns:
        Pitch codes ``[frames]``.
    """
    at = (np.arange(frames * _FINE) + 0.5) * (HOP / _FINE) / F0_STEP - 0.5
    dense = np.interp(at, np.arange(len(f0)), f0).reshape(frames, _FINE)
    voiced = dense > _VOICED_HZ
    count = voiced.sum(1)
    mean = (dense * voiced).sum(1) / np.maximum(count, 1)
    eighths = np.clip(np.rint(mean * HOP / RATE * PHASES), LOWEST, HIGHEST).astype(np.int64)
    codes, phase = np.zeros(frames, np.int64), 0
    for t in range(frames):
        if count[t] >= _FINE // 2:
            codes[t] = 1 + PHASES * (eighths[t] - LOWEST) + phase
            phase = (phase + int(eighths[t])) % PHASES
        else:
            phase = 0
    return codes


def periods_of(codes: Ints) -> tuple[Floats, Floats]:
    """Return the periods per frame ``[T]``, 0 if unvoiced, and the phase at its beginning ``[T]``,
    0-1.
    """
    eighths, phase = np.divmod(np.maximum(codes - 1, 0), PHASES)
    voiced = codes > 0
    periods = np.where(voiced, (eighths + LOWEST) / PHASES, 0)
    return periods.astype(np.float32), np.where(voiced, phase / PHASES, 0).astype(np.float32)


def pitch_table() -> Floats:
    """Return ``[PITCH_CODES, PITCH]``: pitch and phase in a form that is easy to learn.

    Columns: voiced and F0 on three scales (``PLAIN`` columns, without the phase); the fundamental's
    cosine and sine at ten times in the frame, for a constant pitch.
    """
    periods, phase = periods_of(np.arange(PITCH_CODES))
    columns = [periods > 0, np.log2(np.maximum(periods, 1) / 5)]
    columns += [np.sin(np.pi * columns[1]), np.cos(np.pi * columns[1])]
    for at in (np.arange(10) + 0.5) / 10:
        angle = 2 * np.pi * (phase + periods * at)
        columns += [np.cos(angle), np.sin(angle)]
    return (np.stack(columns, axis=1) * (periods > 0)[:, None]).astype(np.float32)


def contour(codes: Ints) -> npt.NDArray[np.float64]:
    """Return the fundamental's phase at every sample ``[T * HOP]``, in periods, increasing.

    Between two frames' phases it is the cubic whose slope is the pitch at each. If a frame's pitch
    does not lead to the next frame's phase, as in a sampled sequence, the pitch is changed as
    little as possible.
    """
    periods, phase = (x.astype(np.float64) for x in periods_of(codes))
    count, following = len(codes), np.append(phase[1:], 0)
    joined = np.append(periods[1:] > 0, False) & (periods > 0)
    step = periods + np.where(joined, (following - phase - periods + 0.5) % 1 - 0.5, 0)
    slope = np.where(joined, (step + np.append(step[1:], 0)) / 2, step)  # at the frame's end
    before = np.append(False, joined[:-1])
    first = np.where(before, np.append(0, slope[:-1]), step)
    start = phase.copy()
    for t in range(1, count):  # unwrap the phase
        start[t] += np.rint(start[t - 1] + step[t - 1] - phase[t])
    x = (np.arange(HOP) / HOP)[None]
    a, b, d = first[:, None], slope[:, None], step[:, None]
    inside = a * x + (3 * d - 2 * a - b) * x**2 + (a + b - 2 * d) * x**3
    return np.asarray(start[:, None] + inside).reshape(count * HOP)


def quantised_f0(codes: Ints, meant: Floats, begin: int) -> Floats:
    """Return the teacher's F0 with the phases of ``codes``.

    Args:
        codes: pitch codes ``[T]``; the first frame begins at sample ``begin``.
        meant: the teacher's original F0, for the length and for the unvoiced values.
        begin: in samples.

    Returns:
        F0 as long as ``meant``, whose sum is the codes' contour wherever they are voiced. The
        silence before a voiced stretch is adjusted to reach the phase at which that begins.
    """
    theta, length = contour(codes), len(meant)
    at = np.arange(length) * F0_STEP + (F0_STEP - 1) / 2 - begin
    place = np.clip(np.rint(at).astype(int), 0, len(theta) - 1)
    frame = np.clip((at // HOP).astype(int), 0, len(codes) - 1)
    voiced = (codes[frame] > 0) & (at >= 0) & (at < len(theta))
    phase = np.where(voiced, theta[place], 0.0)
    f0 = np.clip(meant, 0.0, _UNVOICED_HZ).astype(np.float64)
    turn, total = RATE / F0_STEP, 0.0  # F0 of one period per step
    for m in range(length):
        if not voiced[m]:
            total = (total + f0[m] / turn) % 1
            continue
        if m and voiced[m - 1]:
            f0[m] = (phase[m] - phase[m - 1]) * turn
        else:
            back = m
            while back > 0 and not voiced[back - 1] and m - back < _QUIET_STEPS:
                back -= 1
            natural = (theta[min(place[m] + 1, len(theta) - 1)] - theta[place[m]]) * F0_STEP
            f0[m] = natural * turn
            owed = (phase[m] - natural - total) % 1
            if back < m:
                had = f0[back:m].sum() / turn
                f0[back:m] = ((owed + had) % 1) * turn / (m - back)
            else:
                f0[m] += ((owed + 0.5) % 1 - 0.5) * turn
        total = phase[m] % 1
    return f0.astype(np.float32)

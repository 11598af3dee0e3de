"""Measures of speech: word errors, length, silence, spectral distance, pitch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming.spec import Samples
from text.english.normaliser import normalise
from training.evaluation.pitch import pitch_track

_Array = npt.NDArray[np.float64]

#: Below this share of the loudest 10 ms speech is inaudible (-40 dB).
_AUDIBLE_SHARE = 0.01
#: Below this RMS there is no speech at all (-60 dBFS).
_SILENT_RMS = 1e-3
_STEP_S = 0.01
_WINDOW, _BANDS, _LOWEST_HZ, _HIGHEST_HZ = 1024, 60, 60.0, 7600.0
_FLOOR_DB = 50.0
#: Offsets in steps of 10 ms, since a codec may be a few milliseconds late or early.
_SHIFTS = range(-3, 4)


def words_of(text: str) -> list[str]:
    """Return the words spoken for ``text``: "3 km" and "three kilometers" are the same."""
    spoken = normalise(text)
    return [spoken.text[word.start : word.end] for word in spoken.spans]


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Return the number of substituted, missing and added words, and of words in ``said``."""
    wanted, got = words_of(said), words_of(heard)
    return _edits(wanted, got), len(wanted)


def letter_error_rate(said: str, heard: str) -> float:
    """Return the substituted, missing and added letters per letter of ``said``. Misheard words
    sound alike, so this tells apart the speech of different texts where the word error rate cannot.
    """
    wanted, got = " ".join(words_of(said)), " ".join(words_of(heard))
    return _edits(wanted, got) / len(wanted)


def _edits(wanted: Sequence[str], got: Sequence[str]) -> int:
    return int(edit_costs(wanted, got)[-1, -1])


def edit_costs(wanted: Sequence[str], got: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the edit distances ``[len(wanted) + 1, len(got) + 1]``: the fewest substituted,
    missing and added items between the first i of ``wanted`` and the first j of ``got``.
    """
    rows = [list(range(len(got) + 1))]
    for at, item in enumerate(wanted, 1):
        before, row = rows[-1], [at]
        for other, found in enumerate(got, 1):
            row.append(min(before[other] + 1, row[-1] + 1, before[other - 1] + (item != found)))
        rows.append(row)
    return np.array(rows, np.int64)


@dataclass(frozen=True, slots=True)
class Intelligibility:
    """Errors per word over many sentences, and the share of sentences without an error."""

    word_error_rate: float
    whole: float


def intelligibility(said: Sequence[str], heard: Sequence[str]) -> Intelligibility:
    """Compare the words heard with the words said, sentence by sentence."""
    counts = [word_errors(text, words) for text, words in zip(said, heard, strict=True)]
    total = sum(words for _, words in counts)
    whole = sum(not errors for errors, _ in counts)
    return Intelligibility(sum(errors for errors, _ in counts) / total, whole / len(counts))


def audible_s(samples: Samples, rate: int) -> float:
    """Return the seconds from the first to the last audible 10 ms; 0 for silence."""
    if not len(samples) or float(np.sqrt(np.mean(np.square(samples)))) < _SILENT_RMS:
        return 0.0
    step = round(_STEP_S * rate)
    blocks = np.pad(samples, (0, -len(samples) % step)).reshape(-1, step)
    levels = np.sqrt(np.square(blocks).mean(1))
    loud = np.flatnonzero(levels > _AUDIBLE_SHARE * levels.max())
    return float((loud[-1] - loud[0] + 1) * _STEP_S)


def mel_distance_db(one: Samples, other: Samples, rate: int) -> float:
    """Return the distance between two renderings of the same speech: the mean absolute difference
    of their mel spectra in dB, without the level, where the first is not silent. Both are at
    ``rate``.
    """
    wanted, got = _mel_db(one, rate), _mel_db(other, rate)
    return min(_distance(wanted, got, shift) for shift in _SHIFTS)


def _distance(wanted: _Array, got: _Array, shift: int) -> float:
    first, second = wanted[max(0, -shift) :], got[max(0, shift) :]
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    loud = first.max(1) > wanted.max() - _FLOOR_DB
    gap = (first - second)[loud]
    return float(np.abs(gap - gap.mean()).mean()) if loud.any() else math.inf


def _mel_db(samples: Samples, rate: int) -> _Array:
    step = round(_STEP_S * rate)
    padded = np.pad(samples.astype(np.float64), (_WINDOW // 2, _WINDOW))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::step]
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW))) ** 2
    db = 10 * np.log10(power @ _mel_bands(rate).T + 1e-12)
    return np.asarray(np.maximum(db, db.max() - 1.5 * _FLOOR_DB))


def _mel_bands(rate: int) -> _Array:
    """Triangular filters ``[bands, bins]`` of equal width on the mel scale."""
    edges = 700 * np.expm1(
        np.linspace(math.log1p(_LOWEST_HZ / 700), math.log1p(_HIGHEST_HZ / 700), _BANDS + 2)
    )
    bins = np.fft.rfftfreq(_WINDOW, 1 / rate)[None]
    low, middle, high = (edges[at : at + _BANDS, None] for at in range(3))
    rise, fall = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return np.asarray(np.clip(np.minimum(rise, fall), 0, None))


@dataclass(frozen=True, slots=True)
class PitchMatch:
    """``correlation`` of two pitch tracks where both are voiced (1: the same rises and falls), and
    ``agreement``: the share of frames in which both are voiced or both are not.
    """

    correlation: float
    agreement: float


def pitch_match(one: Samples, other: Samples, rate: int) -> PitchMatch | None:
    """Compare the pitch of two renderings of the same speech; None if there is no pitch."""
    first, second = pitch_track(one, rate), pitch_track(other, rate)
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    both = (first > 0) & (second > 0)
    if both.sum() < 10 or np.ptp(first[both]) == 0 or np.ptp(second[both]) == 0:
        return None
    correlation = np.corrcoef(np.log(first[both]), np.log(second[both]))[0, 1]
    return PitchMatch(float(correlation), float(((first > 0) == (second > 0)).mean()))

"""Which word each frame speaks, from a talker's noisy word about its place in the text.

A Viterbi search over words: the path never goes back, may pass over a word or two that were
too short for a frame, and pays for each frame whose place lies outside the path's word, up to
a bound, so that a stray frame cannot turn it. A word's beginning is told once it is settled,
which the frames that came meanwhile have decided as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Costs = npt.NDArray[np.float64]

#: Places are about so many characters off, where they are not wrong altogether ...
_SPREAD_CHARS = 1.0
#: ... which costs so much, whatever they say.
_WRONG = 5.0
#: Words that one frame may enter, and what each but the first costs.
_MOST_WORDS, _PASSED_OVER = 3, 1.0


class WordPath:
    """``begins`` are the characters where the words begin, in order; at least one."""

    def __init__(self, begins: Sequence[int]) -> None:
        self._begins = np.array(begins, np.float64)
        self._ends = np.append(self._begins[1:], np.inf)
        self._begins[0] = -np.inf
        self._costs: _Costs | None = None
        #: For each frame that is not settled: how many words were entered to come to each.
        self._steps: list[npt.NDArray[np.int8]] = []
        #: From the last settled frame on.
        self._places: list[float] = []
        self._word = -1
        self._settled = 0

    @property
    def frames(self) -> int:
        """How many there are, settled or not."""
        return self._settled + len(self._steps)

    def push(self, place: float) -> None:
        """The next frame speaks character ``place``; NaN: that is not known."""
        count = len(self._begins)
        ways = np.full((_MOST_WORDS + 1, count), np.inf)
        if self._costs is None:
            first = np.arange(min(_MOST_WORDS, count))
            ways[0, first] = _PASSED_OVER * first
        else:
            ways[0] = self._costs
            for step in range(1, min(_MOST_WORDS, count - 1) + 1):
                ways[step, step:] = self._costs[:-step] + _PASSED_OVER * (step - 1)
        steps = ways.argmin(0)
        self._costs = ways[steps, np.arange(count)] + self._misfit(place)
        self._steps.append(steps.astype(np.int8))
        self._places.append(place)

    def _misfit(self, place: float) -> _Costs | float:
        if np.isnan(place):
            return 0.0
        outside = np.maximum(0.0, np.maximum(self._begins - place, place - self._ends))
        return np.minimum(outside**2 / (2 * _SPREAD_CHARS**2), _WRONG)

    def settle(self, frames: int, *, at_end: bool = False) -> list[float]:
        """Decide on all up to ``frames``; returns where the words that they enter begin, in
        frames. With ``at_end`` the last frame is known to speak the last word.
        """
        frames = min(frames, self.frames)
        if frames <= self._settled or self._costs is None:
            return []
        last = len(self._begins) - 1
        reaches = at_end and bool(np.isfinite(self._costs[last]))
        best = last if reaches else int(self._costs.argmin())
        origin = np.arange(last + 1)  # of each word at the newest frame, some frames ago
        for steps in reversed(self._steps[frames - self._settled :]):
            origin = origin - steps[origin]
        word = int(origin[best])
        # what does not go through this word here is out of the question from now on
        self._costs[origin != word] = np.inf
        words = [word]
        for steps in reversed(self._steps[1 : frames - self._settled]):
            words.append(words[-1] - int(steps[words[-1]]))
        if self._settled:
            words.append(self._word)
        begins = self._enter(words[::-1])
        self._drop(frames, word)
        return begins

    def _enter(self, words: list[int]) -> list[float]:
        """``words`` are those of the frames being settled, from the last settled one on."""
        begins: list[float] = []
        if not self._settled:
            begins = [0.0] * (words[0] + 1)
        first = max(0, self._settled - 1)
        for at in range(1, len(words)):
            before, after = self._places[at - 1], self._places[at]
            for word in range(words[at - 1] + 1, words[at] + 1):
                rise, wanted = after - before, float(self._begins[word]) - before
                part = min(max(wanted / rise, 0.0), 1.0) if rise > 0 else 1.0
                begins.append(first + at - 1 + part)
        return begins

    def _drop(self, frames: int, word: int) -> None:
        """Forget what is settled but for the last frame's place."""
        done = frames - self._settled
        kept = done - 1 if not self._settled else done
        del self._steps[:done], self._places[:kept]
        self._settled, self._word = frames, word

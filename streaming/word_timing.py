"""Word timings: when each word of a context is spoken.

The talker's alignment heads give the position in the text that each frame speaks. :class:`WordPath`
turns these noisy positions into one monotonic path over the words. :class:`WordTracker` turns the
path into times as the audio is sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming.spec import CodecSpec, Samples
from text.segmenter import FREE_CLAUSE_MARKS, FREE_MARKS, is_wide

_Costs = npt.NDArray[np.float64]

#: Standard deviation of a position in characters, unless it is entirely wrong.
_SPREAD_CHARS = 1.0
#: The cost of a wrong position, and the maximum cost of any position.
_WRONG = 5.0
#: Number of characters by which a word's positions end before the next word, whose first character
#: would otherwise be a position of both.
_APART = 0.05
#: Number of characters by which the positions of a text's last character are at most too low: they
#: are averages over neighbours, and it has none after it.
_LAST_LOW = 0.5
#: Maximum number of words that one frame may enter.
_MAX_WORDS = 3
#: The cost of each of these words but the first.
_PASSED_OVER = 1.0


class WordPath:
    """Path over words, frame by frame. ``begins``: the positions where the words begin, in order;
    at least one.
    """

    def __init__(self, begins: Sequence[float]) -> None:
        self._begins = np.array(begins, np.float64)
        self._ends = np.append(self._begins[1:] - _APART, np.inf)
        self._begins[0] = -np.inf
        #: Cost of the best path to each word; at first, of a path that begins there.
        self._costs: _Costs = np.full(len(begins), np.inf)
        first = np.arange(min(_MAX_WORDS, len(begins)))
        self._costs[first] = _PASSED_OVER * first
        #: For each unsettled frame: the number of words entered to reach each word.
        self._steps: list[npt.NDArray[np.int8]] = []
        #: Positions from the last settled frame on.
        self._places: list[float] = []
        self._word = -1
        self._settled = 0

    @property
    def frames(self) -> int:
        """Number of frames, settled or not."""
        return self._settled + len(self._steps)

    def push(self, place: float) -> None:
        """Add a frame that speaks character ``place``; NaN if unknown."""
        count = len(self._begins)
        ways = np.full((_MAX_WORDS + 1, count), np.inf)
        ways[0] = self._costs
        if self.frames:
            for step in range(1, _MAX_WORDS + 1):
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
        """Fix the path up to ``frames``. Returns where the words that it enters begin, in frames.
        With ``at_end`` the last frame is known to speak the last word.
        """
        frames = min(frames, self.frames)
        if frames <= self._settled:
            return []
        last = len(self._begins) - 1
        reaches = at_end and bool(np.isfinite(self._costs[last]))
        best = last if reaches else int(self._costs.argmin())
        origin = np.arange(last + 1)  # the word some frames ago, for each word at the newest frame
        for steps in reversed(self._steps[frames - self._settled :]):
            origin = origin - steps[origin]
        word = int(origin[best])
        # from now on, exclude paths that do not go through this word here
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
        """Return where words begin. ``words``: those of the frames being settled, from the last
        settled one on.
        """
        begins: list[float] = []
        if not self._settled:
            begins = [0.0] * (words[0] + 1)
        first = max(0, self._settled - 1)
        for at in range(1, len(words)):
            before = self._places[at - 1]
            after = self._places[at]
            for word in range(words[at - 1] + 1, words[at] + 1):
                rise = after - before
                wanted = float(self._begins[word]) - before
                part = min(max(wanted / rise, 0.0), 1.0) if rise > 0 else 1.0
                begins.append(first + at - 1 + part)
        return begins

    def _drop(self, frames: int, word: int) -> None:
        """Forget the settled frames, except for the last one's position."""
        done = frames - self._settled
        kept = done - 1 if not self._settled else done
        del self._steps[:done], self._places[:kept]
        self._settled = frames
        self._word = word


#: Level (-34 dBFS) below which speech pauses; a codec's noise floor may be above ``AUDIBLE``.
_PAUSE = 0.02
#: Parts of a frame in which pauses are measured (10 ms for a frame of 40 ms).
_PARTS = 4
#: A pause between words has more parts than the silence in a "p".
_GAP_PARTS = 10
#: A word whose estimated beginning is at most this many parts after a pause begins at its end.
_STRAY_PARTS = 12
_TAG = re.compile(r"<\|\w+:\w+\|>")
_SPOKEN_SIGNS = frozenset("%&@+=$€£¥")


@dataclass(frozen=True, slots=True)
class WordTiming:
    """A word and its position in text and speech.

    ``text`` is the characters from ``start`` to ``end`` (exclusive) of the text appended to the
    context, including punctuation that touches it. ``start_ms`` and ``end_ms`` are milliseconds of
    speech from the context's first sample. Words come in order and do not overlap.
    """

    text: str
    start: int
    end: int
    start_ms: float
    end_ms: float


def find_words(text: str) -> list[tuple[int, int]]:
    """Return the words of ``text``, as (start, end). Whitespace and control tags separate words,
    and a word has at least one spoken character. In scripts that are written without spaces every
    character is a word.
    """
    plain = _TAG.sub(lambda tag: " " * len(tag[0]), text)
    words: list[tuple[int, int]] = []
    for match in re.finditer(r"\S+", plain):
        begin, end = match.span()
        cuts = [at for at in range(begin + 1, end) if ends_word(plain[at - 1], plain[at])]
        for start, stop in zip([begin, *cuts], [*cuts, end], strict=True):
            if any(map(_is_spoken, plain[start:stop])):
                words.append((start, stop))
    return words


def join_words(
    text: str, words: Sequence[tuple[int, int]], units: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the words of ``text`` with all words of a unit joined. Both are (start, end) in order.
    Punctuation after a unit is not part of its word.
    """
    joined: list[tuple[int, int]] = []
    at, last = 0, -1
    for start, end in words:
        while at < len(units) and units[at][1] <= start:
            at += 1
        if at == len(units) or units[at][0] >= end:
            joined.append((start, end))
            continue
        stop = units[at][1]
        if not any(map(_is_spoken, text[stop:end])):
            end = min(end, stop)
        if last == at:
            start = joined.pop()[0]
        joined.append((start, end))
        last = at
    return joined


def ends_word(before: str, after: str) -> bool:
    """Whether a word ends between two characters, neither of them whitespace. Punctuation stays
    with the character before it.
    """
    if is_wide(before):
        return _is_spoken(after)
    return is_wide(after) or (before in FREE_MARKS | FREE_CLAUSE_MARKS and _is_spoken(after))


def _is_spoken(char: str) -> bool:
    return char.isalnum() or char in _SPOKEN_SIGNS


class WordTracker:
    """The words of one utterance, whose text begins at character ``text_start`` of the context's.
    ``rate``: codec samples played per second. ``units``: parts of the text of which the words are
    one word to the client, in order. ``speed``: that to which the utterance's samples are stretched
    before they are sent.
    """

    def __init__(
        self,
        text: str,
        text_start: int,
        codec: CodecSpec,
        rate: float,
        units: Sequence[tuple[int, int]] = (),
        speed: float = 1.0,
    ) -> None:
        self._text = text
        self._text_start = text_start
        #: Samples per frame.
        self._hop = codec.hop_length
        #: Samples played per second.
        self._rate = rate
        self._speed = speed
        #: The words, as (start, end) in the text.
        self._words = join_words(text, find_words(text), units)
        #: The path over the words; None without words and after the end.
        self._path: WordPath | None = None
        if self._words:
            starts: list[float] = [start for start, _ in self._words]
            starts[-1] = min(starts[-1], len(text) - 1 - _LAST_LOW)
            self._path = WordPath(starts)
        #: Where words begin, in frames, as far as that is settled.
        self._begins: list[float] = []
        #: Number of words returned.
        self._returned = 0
        #: Samples of the context before the utterance's first one; None before the first send.
        self._offset: int | None = None
        #: Peak level of each part of a frame.
        self._levels: list[float] = []

    def push(self, spoken: npt.NDArray[np.float32]) -> None:
        """Add frames that speak these characters of the text."""
        if self._path is not None:
            for place in spoken.tolist():
                self._path.push(place)

    def on_sent(
        self, samples: Samples, offset: int, trimmed: int = 0, *, at_end: bool = False
    ) -> list[WordTiming]:
        """Record that the next frames' ``samples``, as they were decoded, were sent from ``offset``
        of the context on, except for the first ``trimmed``; both count samples as they are sent.
        With ``at_end`` the whole text is known to be spoken by then. Returns the words that have
        ended by then and were not returned before.
        """
        if self._offset is None:
            self._offset = offset
        self._offset -= trimmed
        edges = np.arange(len(samples) // self._hop * _PARTS) * self._hop // _PARTS
        self._levels += np.maximum.reduceat(np.abs(samples), edges).tolist()
        if self._path is None:
            return []
        self._begins += self._path.settle(len(self._levels) // _PARTS, at_end=at_end)
        return self._next_words(len(self._begins) - 1)

    def finish(self, *, cut_off: bool) -> list[WordTiming]:
        """Record that all audio was sent. Returns the remaining words; with ``cut_off``, only those
        that were begun in it. Later calls return none.
        """
        if self._path is None or self._offset is None:
            return []
        end = len(self._levels) / _PARTS
        if not cut_off:
            self._begins += [end] * (len(self._words) - len(self._begins))
        count = len(self._begins)
        self._begins.append(end)
        self._path = None
        return self._next_words(count)

    def _next_words(self, count: int) -> list[WordTiming]:
        """Return the words up to number ``count`` that were not returned before."""
        first = self._returned
        self._returned = max(first, count)
        return [self._timing(index) for index in range(first, count)]

    def _timing(self, index: int) -> WordTiming:
        start, end = self._words[index]
        begin, over = self._sounding(index)
        return WordTiming(
            self._text[start:end],
            self._text_start + start,
            self._text_start + end,
            self._milliseconds(begin),
            self._milliseconds(over),
        )

    def _sounding(self, index: int) -> tuple[float, float]:
        """Interval in which the word is audible, in frames: until the next word begins, without
        silence at the edges. If a pause ends just before the next word, that word begins there.
        """
        begin = self._begins[index]
        over = self._begins[index + 1]
        first, last = round(begin * _PARTS), round(over * _PARTS)
        loud = np.flatnonzero(np.array(self._levels[first:last]) >= _PAUSE)
        if not len(loud):
            return begin, over
        gaps = np.flatnonzero(np.diff(loud) > _GAP_PARTS)
        if len(gaps) and last - first - loud[gaps[-1] + 1] <= _STRAY_PARTS:
            self._begins[index + 1] = (first + int(loud[gaps[-1] + 1])) / _PARTS
            loud = loud[: gaps[-1] + 1]
        if index == 0 or self._quiet_before(first + int(loud[0])) >= _GAP_PARTS:
            begin = max(begin, (first + int(loud[0])) / _PARTS)
        if first + int(loud[-1]) + 1 < last:
            over = (first + int(loud[-1]) + 1) / _PARTS
        return begin, max(begin, over)

    def _quiet_before(self, part: int) -> int:
        """Number of silent parts just before ``part``, up to the length of a pause."""
        before = self._levels[max(0, part - _GAP_PARTS) : part]
        return next((i for i, level in enumerate(reversed(before)) if level >= _PAUSE), len(before))

    def _milliseconds(self, frames: float) -> float:
        assert self._offset is not None
        samples = self._offset + frames * self._hop / self._speed
        return round(1000 * max(0.0, samples) / self._rate, 1)

"""How many real-time streams the machine carries, from the measured pace of talker and codec.

**The talker** works in steps, and each gives every running stream one row; so a row takes
``scale * (1 + share * (n - 1))`` seconds where n streams run: one stream's pace, and what each
further stream adds to it. ``scale`` follows the last seconds, the worse of a quick and a slow
average: it falls at once when the machine slows down, and rises only when that lasts. ``share``
is the shape of that line, which a machine keeps for much longer; it is fitted to the last
minute, and only when the number of streams has varied enough to tell. Before that, ``share`` is
1: a talker that does nothing in parallel. As many streams are sustained as get their rows in
the time in which those are heard.

A line is not believed far beyond what was seen: up to ``_TRUST`` times as many streams as have
run at once, or as many as would be carried if nothing were done in parallel.

**The codec** is busy for so many seconds per new frame, and cannot be for more than all of
them.

Of both ``target`` is admitted, and never so many that rows come in more than ``row_limit`` of
the time in which they are heard. What is not measured for a while fades to what the warm-up
measured: an idle service is neither full because of its last minute nor free because nobody is
there. Times are monotonic seconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, inf

#: Observations are put together for so many seconds, and at least so many rows.
_BUCKET_S, _BUCKET_ROWS = 0.25, 8
#: Seconds over which the averages go: quick and slow pace, the shape's data and the shape.
_QUICK_S, _SLOW_S, _DATA_S, _SHAPE_S = 1.5, 10.0, 60.0, 3.0
#: So much worse the quick average must be than the slow one to be believed instead of it.
_WORSE = 1.15
#: How far the number of streams must have varied, as deviation over mean, to tell the shape.
_SPREAD = 0.15
#: Up to so many times as many streams as have run at once is the line believed.
_TRUST = 4.0
#: Seconds in which a measurement that is not renewed fades, and in which the most streams that
#: have run are forgotten.
_FADE_S, _FORGET_S = 60.0, 600.0
_LEAST_SHARE = 1e-3
#: Seconds over which the codec's cost is averaged.
_CODEC_S = 10.0
#: By how much the load may grow while a first chunk is played.
_GROWTH, _FEW = 2, 4
#: A place is opened, or closed, when the estimate is so far beyond it.
_SLACK = 0.25


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """``frame_s`` is the audio of a row; ``ceiling`` bounds what is ever admitted. ``target`` is
    the share of what the talker sustains that is admitted, and ``codec_target`` that of the
    codec, whose windows wait for each other; ``row_limit`` is the most that a row may take of
    the time in which it is heard.
    """

    frame_s: float
    ceiling: int
    target: float = 0.9
    row_limit: float = 0.92
    codec_target: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.frame_s < inf or self.ceiling < 1:
            raise ValueError("frame_s and ceiling must be positive")
        if not all(0 < x <= 1 for x in (self.target, self.row_limit, self.codec_target)):
            raise ValueError("target, row_limit and codec_target are shares")


class _Average:
    """Of streams running and seconds per row, over ``span_s``; over all, before there is more."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen_s = self.running = self.row_s = 0.0

    def add(self, running: float, row_s: float, passed_s: float) -> None:
        self._seen_s += passed_s
        part = max(1 - exp(-passed_s / self._span_s), passed_s / self._seen_s)
        self.running += part * (running - self.running)
        self.row_s += part * (row_s - self.row_s)

    def forget(self) -> None:
        """What comes next is of another time."""
        self._seen_s = 0.0


class TalkerLoad:
    """What a row costs, by how many streams run."""

    def __init__(self) -> None:
        self._rows = self._seconds = self._beside = 0.0  # of the bucket being filled
        self._since = self._at = -inf
        self._quick, self._slow = _Average(_QUICK_S), _Average(_SLOW_S)
        self._prior = 0.0
        self._most = 1.0
        self._shape = _Shape()

    @property
    def share(self) -> float:
        """What a further stream adds to the time of a row, over one stream's."""
        return self._shape.share

    def observe(self, rows: int, seconds: float, running: int, now: float) -> None:
        """A stream got ``rows`` rows in ``seconds``, while ``running`` ran, it included."""
        if now - self._since > 4 * _BUCKET_S:  # a pause, not a slow row
            self._rows = self._seconds = self._beside = 0.0
            self._since = now - min(seconds, _BUCKET_S)
        self._rows += rows
        self._seconds += seconds
        self._beside += rows * running
        if self._rows >= _BUCKET_ROWS and now - self._since >= _BUCKET_S:
            self._learn(self._beside / self._rows, self._seconds / self._rows, now)
            self._rows = self._seconds = self._beside = 0.0
            self._since = now

    def settle(self) -> None:
        """What is known now is what an idle service falls back to."""
        self._prior = self._measured

    def row_s(self, streams: float, now: float) -> float:
        """What a row will take if so many streams run; 0 if nothing is known."""
        return self._scale(now) * self._slope(streams)

    def streams(self, row_s: float, now: float) -> float:
        """How many streams get their rows in ``row_s`` seconds each."""
        scale = self._scale(now)
        if scale <= 0:
            return inf
        room = row_s / scale
        if room < 1:
            return room
        believed = 1 + (room - 1) / self.share
        most = self._most_lately(now)
        in_turn = most * room / self._slope(most)
        return min(believed, max(_TRUST * most, in_turn))

    def _slope(self, streams: float) -> float:
        return 1 + self.share * (max(1.0, streams) - 1)

    def _most_lately(self, now: float) -> float:
        return 1 + (self._most - 1) * exp(-max(0.0, now - self._at) / _FORGET_S)

    @property
    def _measured(self) -> float:
        quick, slow = (x.row_s / self._slope(x.running) for x in (self._quick, self._slow))
        return slow if quick < _WORSE * slow else quick

    def _scale(self, now: float) -> float:
        if self._at == -inf:
            return 0.0
        if not self._prior:
            return self._measured
        faded = exp(-max(0.0, now - self._at) / _FADE_S)
        return self._prior + (self._measured - self._prior) * faded

    def _learn(self, running: float, row_s: float, now: float) -> None:
        idle_s = now - self._at
        passed_s = min(idle_s, 4 * _BUCKET_S)
        if idle_s > _SLOW_S:
            self._quick.forget()
            self._slow.forget()
        self._shape.learn(running, row_s, passed_s)
        self._quick.add(running, row_s, passed_s)
        self._slow.add(running, row_s, passed_s)
        self._most, self._at = max(self._most_lately(now), running), now


class _Shape:
    """A least-squares line through the last minute, for as long as there is one in it."""

    def __init__(self) -> None:
        self.share = 1.0
        #: Decayed sums: weight, n, n * n, row_s, n * row_s.
        self._sums: Sequence[float] = (0.0,) * 5
        self._seen_s = 0.0

    def learn(self, running: float, row_s: float, passed_s: float) -> None:
        kept = exp(-passed_s / _DATA_S)
        new = (1.0, running, running * running, row_s, running * row_s)
        self._sums = [kept * old + more for old, more in zip(self._sums, new, strict=True)]
        n, nn, y, ny = (total / self._sums[0] for total in self._sums[1:])
        spread = nn - n * n
        if spread < (_SPREAD * n) ** 2:
            return
        slope = (ny - n * y) / spread
        alone = y - slope * (n - 1)  # one stream's row
        share = min(1.0, max(_LEAST_SHARE, slope / alone)) if alone > 0 else 1.0
        self._seen_s += passed_s
        part = max(1 - exp(-passed_s / _SHAPE_S), passed_s / self._seen_s)
        self.share += part * (share - self.share)


class CodecLoad:
    """How long the codec is busy for a new frame; a batch's windows share its time."""

    def __init__(self) -> None:
        self._busy_s = self._frames = 0.0
        self._at = -inf

    def observe(self, new_frames: int, busy_s: float, now: float) -> None:
        """A window of so many new frames took ``busy_s`` of the codec's time."""
        kept = exp(-min(1.0, max(0.0, now - self._at)) / _CODEC_S)
        self._busy_s = kept * self._busy_s + busy_s
        self._frames = kept * self._frames + new_frames
        self._at = max(self._at, now)

    @property
    def frame_s(self) -> float:
        """Seconds per new frame; 0 if nothing is known."""
        return self._busy_s / self._frames if self._frames else 0.0


class Capacity:
    """The estimate, and the number of places that follows from it."""

    def __init__(self, settings: CapacitySettings) -> None:
        self.settings = settings
        self.talker, self.codec = TalkerLoad(), CodecLoad()
        self._places = settings.ceiling

    def settle(self) -> None:
        """The warm-up is over: what it measured is the prior."""
        self.talker.settle()
        self._places = 0

    def streams(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> float:
        """How many streams may be open, of which one is heard ``fastest`` times as fast and all
        ``mean`` times as fast as it was spoken.

        Every stream gets rows at the same pace, so the fastest one decides for the talker.
        """
        mine = self.settings
        row_s = mine.frame_s / fastest
        sustained = mine.target * self.talker.streams(row_s, now)
        sustained = min(sustained, self.talker.streams(mine.row_limit * row_s, now))
        if busy_s := self.codec.frame_s:
            sustained = min(sustained, mine.codec_target * mine.frame_s / (busy_s * mean))
        return min(sustained, float(mine.ceiling))

    def soon_row_s(self, streams: int, now: float) -> float:
        """What a row may take before a first chunk that is sent now has been played; 0 while
        nothing is known. Others may come at any moment: reckoned with are as many again, and a
        few, but no more than there are places.
        """
        soon = min(_GROWTH * streams + _FEW, self._places)
        return min(self.settings.frame_s, self.talker.row_s(max(1, soon), now))

    def places(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> int:
        """The same as a whole number, at least 1: without a stream nothing would be learned. At
        ordinary speed it changes only when the estimate has done so clearly.
        """
        estimate = self.streams(now, fastest, mean)
        if fastest != 1 or mean != 1:
            return max(1, floor(estimate))
        if estimate < self._places - _SLACK or estimate >= self._places + 1 + _SLACK:
            self._places = floor(estimate)
        elif estimate >= self.settings.ceiling:
            self._places = self.settings.ceiling
        return max(1, self._places)

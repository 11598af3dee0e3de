"""Capacity: how many streams the service carries, and when a slot is likely to come free."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, inf

#: How many durations, and how many hints whose time has not come, are remembered.
_MEMORY, _HINTS = 64, 256
#: The duration that is assumed before one was seen, and the least that is left of one.
_GUESS_S, _LEAST_S = 4.0, 0.05


class RetryAfter:
    """Estimates when a slot comes free, from how long slots have been held of late.

    The remaining time of a slot is the mean of what was left, at its age, of those that were held
    longer. Of several slots the first comes free sooner than any single one is expected to: their
    rates add up.

    Each caller is told a later time than those before it whose time has not come, so that they do
    not all return at once for a single slot; but nobody waits for more than one turnover of all
    slots.
    """

    def __init__(self) -> None:
        self._durations_s: deque[float] = deque(maxlen=_MEMORY)
        self._hinted: deque[float] = deque(maxlen=_HINTS)

    def on_released(self, duration_s: float) -> None:
        """A slot came free that had been held for ``duration_s``."""
        self._durations_s.append(duration_s)

    def remaining_s(self, age_s: float) -> float:
        """For how much longer a slot is expected to be held that has been for ``age_s``."""
        longer = [duration - age_s for duration in self._durations_s if duration > age_s]
        if longer:
            return max(_LEAST_S, sum(longer) / len(longer))
        if self._durations_s:  # older than any other: its own age again is as good a guess
            return max(_LEAST_S, age_s)
        return _GUESS_S

    def estimate_s(self, ages_s: Sequence[float], too_many: int, now: float) -> float:
        """When to try again, while slots of these ages are held and ``too_many`` of them must come
        free first.
        """
        while self._hinted and self._hinted[0] <= now:
            self._hinted.popleft()
        rate = sum(1 / self.remaining_s(age) for age in ages_s) or 1 / _GUESS_S
        before = min(sum(at > now for at in self._hinted), len(ages_s))
        wait_s = max(_LEAST_S, (max(1, too_many) + before) / rate)
        self._hinted.append(now + wait_s)
        return wait_s


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
#: A slot is opened, or closed, when the estimate is so far beyond it.
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
        """Begin anew: what comes next is of another time."""
        self._seen_s = 0.0


class TalkerLoad:
    """The cost of a row, by how many streams run."""

    def __init__(self) -> None:
        self._rows = self._seconds = self._beside = 0.0  # of the bucket being filled
        self._since = self._at = -inf
        self._quick, self._slow = _Average(_QUICK_S), _Average(_SLOW_S)
        self._prior = 0.0
        self._most = 1.0
        self._shape = _Shape()

    @property
    def share(self) -> float:
        """The time that a further stream adds to a row, over one stream's."""
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
        """Keep what is known now for an idle service to fall back to."""
        self._prior = self._measured

    def row_s(self, streams: float, now: float) -> float:
        """Seconds that a row will take if so many streams run; 0 if nothing is known."""
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


#: Over so many seconds it is looked what share of the audio came too late, and by how many streams.
_GAP_SPAN_S = 2.0
#: Shorter gaps are not heard; and one stream's gaps may be its client's own doing.
_GAP_S, _GAP_STREAMS = 0.02, 2
#: Of what was carried in time, so much is admitted; and no larger share is believed lost.
_AFTER_GAPS, _MOST_LOST = 0.9, 0.7
#: For so long nothing more is admitted after gaps; twice as long each time that they come back
#: within a minute. Then so many times as much in each second, and after that minute any number.
_GAP_HOLD_S, _GAP_MOST_HOLD_S, _GAP_AGAIN_S, _GAP_GROWTH = 4.0, 32.0, 60.0, 1.04


class UnderrunLimit:
    """The most streams that may be open after listeners have run dry.

    What engines take can be measured, and foretells how many streams they carry; what takes the
    processor away from all of the service at once shows only at the listeners. There each second of
    silence is one in which the service carried less than what was open: by that share it is too
    much. The limit is forgotten step by step once there are no gaps any more.
    """

    def __init__(self) -> None:
        #: Decayed sums; the last is of seconds lost times the streams that were open then.
        self._sent_s = self._lost_s = self._lost_open_s = 0.0
        self._at = -inf
        #: When each stream was late last.
        self._late: dict[int, float] = {}
        self._limit, self._limited_at, self._hold_s = inf, -inf, _GAP_HOLD_S

    def observe(self, stream: int, audio_s: float, gap_s: float, active: int, now: float) -> None:
        """Audio of ``audio_s`` was sent to a listener who had been without for ``gap_s``, while
        ``active`` slots were held.
        """
        kept = exp(-max(0.0, now - self._at) / _GAP_SPAN_S)
        self._at = max(self._at, now)
        self._sent_s = kept * self._sent_s + audio_s
        self._lost_s *= kept
        self._lost_open_s *= kept
        if gap_s < _GAP_S:
            return
        self._lost_s += gap_s
        self._lost_open_s += gap_s * active
        self._late[stream] = now
        self._late = {one: at for one, at in self._late.items() if now - at <= _GAP_SPAN_S}
        if len(self._late) >= _GAP_STREAMS:
            lost = min(_MOST_LOST, self._lost_s / (self._sent_s + self._lost_s))
            self._reduce(_AFTER_GAPS * (1 - lost) * self._lost_open_s / self._lost_s, now)

    def streams(self, now: float) -> float:
        """How many streams may be open; inf without gaps of late."""
        grown_s = min(_GAP_AGAIN_S, max(0.0, now - self._limited_at - self._hold_s))
        return self._limit * _GAP_GROWTH**grown_s if grown_s < _GAP_AGAIN_S else inf

    def _reduce(self, limit: float, now: float) -> None:
        present = self.streams(now)
        if now - self._limited_at > self._hold_s:  # they have come back
            again = now - self._limited_at < self._hold_s + _GAP_AGAIN_S
            self._hold_s = min(_GAP_MOST_HOLD_S, 2 * self._hold_s) if again else _GAP_HOLD_S
        self._limit, self._limited_at = min(present, limit), now


class Capacity:
    """The estimate, and the number of slots that follows from it."""

    def __init__(self, settings: CapacitySettings) -> None:
        self.settings = settings
        self.talker, self.codec, self.underruns = TalkerLoad(), CodecLoad(), UnderrunLimit()
        self._slots = settings.ceiling

    def settle(self) -> None:
        """The warm-up is over: what it measured is the prior."""
        self.talker.settle()
        self._slots = 0

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
        return min(sustained, self.underruns.streams(now), float(mine.ceiling))

    def soon_row_s(self, streams: int, now: float) -> float:
        """Seconds that a row may take until a first chunk that is sent now has been played; 0
        while nothing is known. Others may come at any moment: reckoned with are as many again,
        and a few, but no more than there are slots.
        """
        soon = min(_GROWTH * streams + _FEW, self._slots)
        return min(self.settings.frame_s, self.talker.row_s(max(1, soon), now))

    def slots(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> int:
        """The same as a whole number, at least 1: without a stream nothing would be learned. At
        ordinary speed it changes only when the estimate has done so clearly.
        """
        estimate = self.streams(now, fastest, mean)
        if fastest != 1 or mean != 1:
            return max(1, floor(estimate))
        if estimate < self._slots - _SLACK or estimate >= self._slots + 1 + _SLACK:
            self._slots = floor(estimate)
        elif estimate >= self.settings.ceiling:
            self._slots = self.settings.ceiling
        return max(1, self._slots)

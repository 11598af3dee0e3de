"""Measured pace of the talker and cost of the codec.

:class:`PaceEstimator` learns how fast rows come (:class:`StreamPace` follows one stream of them),
:class:`DecodeCostEstimator` what a window costs in the codec. Together they give the
``PaceBounds`` by which the chunk schedule sizes its chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import numpy.typing as npt

from streaming.capacity import Capacity
from streaming.chunk_schedule import PaceBounds, ScheduleSettings, start_frames, sustainable_frames
from streaming.ports import Arrival

Floats = npt.NDArray[np.float64]

#: Windows remembered, windows needed before the prior is dropped, windows between two fits.
_COST_MEMORY, _WARM, _REFIT = 256, 8, 8
#: For so many windows a wait is remembered: few wait, and hardly any where one speaks alone.
_WAIT_MEMORY = 2 * _COST_MEMORY
#: Share of windows that keep to the upper bounds, and to the floor.
_UPPER, _LOWER = 0.995, 0.02
#: A queue has a long tail: so much longer than what nearly all windows waited, the next may.
_QUEUE_SPARE = 2.0


class DecodeCostEstimator:
    """The codec's part of the bounds; ``prior`` is used until a few windows were seen."""

    def __init__(self, prior: PaceBounds) -> None:
        self._prior = prior
        self._seen = np.zeros((_COST_MEMORY, 2))  # frames of the whole batch, decode_s
        #: Which window it was, and how long it waited.
        self._waits: deque[tuple[int, float]] = deque(maxlen=_COST_MEMORY)
        self._count = 0
        self._fitted_at = 0
        self._bounds = prior
        #: What a usual window takes, over the bound of its time.
        self.usual_share = 1.0

    def observe(
        self,
        window_frames: int,
        queue_s: float,
        decode_s: float,
        slack_s: float = 0.0,
        batch: int = 1,
    ) -> None:
        """One window of ``window_frames`` in all waited ``queue_s`` and took ``decode_s``, in a
        ``batch`` of so many; it was wanted ``slack_s`` after it was handed over.

        What the others of its batch take is their cost and this one's wait. They are about as
        long as it is.

        Raises ValueError for what cannot have been measured.
        """
        if min(window_frames, batch) < 1 or not (0 <= queue_s < np.inf and 0 <= decode_s < np.inf):
            raise ValueError("a window has frames, and finite times that are not negative")
        self._seen[self._count % _COST_MEMORY] = window_frames * batch, decode_s
        self._count += 1
        late_s = queue_s + decode_s - slack_s
        if late_s >= 0:
            waited_s = queue_s + decode_s * (batch - 1) / batch
            wait_s = min(waited_s, self._bounds.queue_s / _QUEUE_SPARE + late_s)
            self._waits.append((self._count, wait_s))

    def bounds(self) -> PaceBounds:
        """Bounds whose queue and decode figures are learned; row_s and burst_s are the prior's."""
        if self._count >= _WARM and self._count - self._fitted_at >= _REFIT:
            self._bounds = self._fit()
            self._fitted_at = self._count
        return self._bounds

    def _fit(self) -> PaceBounds:
        seen = self._seen[: min(self._count, _COST_MEMORY)]
        frames, decode_s = seen[:, 0], seen[:, 1]
        fixed, slope = self._line(frames, decode_s)
        share = decode_s / np.maximum(fixed + slope * frames, 1e-9)
        upper = max(1e-9, float(np.quantile(share, _UPPER, method="higher")))
        self.usual_share = min(1.0, 1.0 / upper)  # the line itself is what usual ones take
        lower = float(np.quantile(share, _LOWER, method="lower"))
        queue_s = self._prior.queue_s
        while self._waits and self._waits[0][0] <= self._count - _WAIT_MEMORY:
            self._waits.popleft()
        if self._waits:
            waits_s = [wait_s for _, wait_s in self._waits]
            queue_s = _QUEUE_SPARE * float(np.quantile(waits_s, _UPPER, method="higher"))
        return PaceBounds(
            row_s=self._prior.row_s,
            burst_s=self._prior.burst_s,
            queue_s=queue_s,
            decode_fixed_s=fixed * upper,
            decode_frame_s=slope * upper,
            decode_floor=lower / upper if lower < upper else 1.0,
        )

    def _line(self, frames: Floats, decode_s: Floats) -> tuple[float, float]:
        """The mean cost as a fixed part and one per frame, neither negative."""
        mean_frames, mean_s = float(frames.mean()), float(decode_s.mean())
        spread = frames - mean_frames
        if spread.any():
            slope = max(0.0, float(spread @ decode_s / (spread @ spread)))
        else:  # one size of window says nothing about others: keep the prior's proportions
            prior_s = self._prior.decode_s(int(mean_frames))
            slope = mean_s * self._prior.decode_frame_s / prior_s if prior_s else 0.0
        slope = min(slope, mean_s / mean_frames)
        # Where the whole cost is the slope's, rounding can leave a little less than nothing.
        return max(0.0, mean_s - slope * mean_frames), slope


#: Waits that are put together before they are counted.
_BLOCK = 32


class StreamPace:
    """The pace of one stream of rows. Made by ``PaceEstimator.open``; close it at its end."""

    def __init__(self, estimator: PaceEstimator, grid_s: Floats) -> None:
        self._estimator = estimator
        self._grid_s = grid_s
        self._level = np.zeros_like(grid_s)
        self._lateness_s = np.zeros_like(grid_s)
        #: Not yet counted: how long each batch of rows was waited for, and how many rows it had.
        self._steps_s: list[float] = []
        self._counts: list[int] = []
        self._even: list[bool] = []
        self.rows = 0  # rows that were waited for: those of the first batch were not
        self.elapsed_s = 0.0
        self._last: float | None = None
        self._beside = 0.0
        self._runs = False
        self._run(True)

    def observe(self, count: int, now: float) -> None:
        """``count`` rows came together at ``now``."""
        self.observe_all((Arrival(count, now),))

    def observe_all(self, came: Sequence[Arrival]) -> None:
        """Rows came; see ``TalkerRows.came``."""
        counted, waited_s, latest = 0, 0.0, None
        for count, at, evenly in came:
            if count < 1:
                self._forget_last()
                continue
            if self._last is not None:
                step_s = max(0.0, at - self._last)
                self._steps_s.append(step_s)
                self._counts.append(count)
                self._even.append(evenly)
                counted += count
                waited_s += step_s
            self._last = latest = at
        if latest is None:
            return
        self._run(True)
        if counted:
            self.rows += counted
            self.elapsed_s += waited_s
            self._beside += counted * self._estimator.live
            self._estimator.on_rows(counted, waited_s, latest)
        self._estimator.now = max(self._estimator.now, latest)
        if len(self._steps_s) >= _BLOCK:
            self._count()

    @property
    def lateness_s(self) -> Floats:
        """The largest lateness so far for each rate ``[rates]``."""
        self._count()
        return self._lateness_s

    def _count(self) -> None:
        """Run the token buckets over what has not been counted, all rates and steps at once.

        The level rises by ``step - S``, then falls by ``(count - 1) S``, and never below 0: such
        a walk is its sum less the lowest that the sum has been, if that was below 0. Of rows that
        came evenly each has its share of the step, which is one move by ``step - count S``.
        """
        if not self._steps_s:
            return
        moves = np.empty((2 * len(self._steps_s), len(self._grid_s)))
        drained = np.where(self._even, self._counts, 1)
        moves[0::2] = np.array(self._steps_s)[:, None] - np.multiply.outer(drained, self._grid_s)
        moves[1::2] = np.multiply.outer(np.subtract(drained, self._counts), self._grid_s)
        moves[0] += self._level
        sums = np.cumsum(moves, axis=0, out=moves)
        levels = sums - np.minimum(np.minimum.accumulate(sums, axis=0), 0.0)
        np.maximum(self._lateness_s, levels.max(axis=0), out=self._lateness_s)
        self._level = levels[-1]
        self._steps_s.clear()
        self._counts.clear()
        self._even.clear()

    def pause(self) -> None:
        """The talker is held back on purpose: the time until the next row is not its pace."""
        self._forget_last()
        self._run(False)

    def _forget_last(self) -> None:
        self._count()
        self._last = None
        self._level[:] = 0.0

    def close(self) -> None:
        """No more rows come, for whatever reason. Safe to call again."""
        self._run(False)
        self._estimator.close(self)

    def _run(self, runs: bool) -> None:
        self._estimator.running += runs - self._runs
        self._runs = runs

    @property
    def row_s(self) -> float:
        """Seconds per row so far; 0 before there were two."""
        return self.elapsed_s / self.rows if self.rows else 0.0

    @property
    def streams_beside(self) -> float:
        """How many streams ran on average, this one included."""
        return self._beside / self.rows if self.rows else 1.0


#: Rates S that are tried, as multiples of a frame's duration.
_GRID = (
    *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6),
    *(0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0),
)
#: Finished streams remembered, and how many of them are used at a time.
_PACE_MEMORY, _NEAREST = 256, 64
#: Seconds of age that set a stream as far off as a load twice or half the present one.
_AGE_S = 60.0
#: Streams needed before the prior is dropped; rows needed before a stream counts.
_WARM_STREAMS, _WARM_ROWS = 8, 16
#: A stream with fewer rows may not have had its second window decoded yet.
_BEGINNER_ROWS = 32
#: So much of the codec's time is shared out.
_SHARED = 0.8
#: Trimmed silences remembered.
_TRIM_MEMORY = 64
#: The quantile of lateness: safety is cheap for a fast talker and dear for a slow one.
_FAST_QUANTILE, _SLOW_QUANTILE, _FAST_BELOW = 0.99, 0.9, 0.5


class PaceEstimator:
    """The pace of one talker and one codec worker, of bounded memory.

    ``prior`` is what is believed before anything was seen: the workers' own measurements
    at start-up, or a careful guess. ``capacity`` is told of all rows.
    """

    def __init__(self, frame_s: float, prior: PaceBounds, capacity: Capacity | None = None) -> None:
        self._frame_s, self._capacity = frame_s, capacity
        #: Streams that are open and not held back on purpose.
        self.running = 0
        self._prior = prior
        #: The rates S that are tried, in seconds per row.
        self.rates_s = np.array(_GRID) * frame_s
        self._live: dict[int, StreamPace] = {}
        # Columns: age reference (time), streams beside, mean seconds per row.
        self._about = np.zeros((_PACE_MEMORY, 3))
        self._lateness_s = np.zeros((_PACE_MEMORY, len(_GRID)))
        self._closed = 0
        self.now = 0.0  # when the latest row of any stream came
        #: What windows cost in the codec.
        self.decode = DecodeCostEstimator(prior)
        self._trimmed_s: deque[float] = deque(maxlen=_TRIM_MEMORY)

    @property
    def live(self) -> int:
        """Streams that are open."""
        return len(self._live)

    def open(self) -> StreamPace:
        """A stream of rows begins."""
        stream = StreamPace(self, self.rates_s)
        self._live[id(stream)] = stream
        return stream

    def close(self, stream: StreamPace) -> None:
        """A stream of rows is over; safe to call again."""
        if self._live.pop(id(stream), None) is None or stream.rows < _WARM_ROWS:
            return
        slot = self._closed % _PACE_MEMORY
        self._about[slot] = self.now, stream.streams_beside, stream.elapsed_s / stream.rows
        self._lateness_s[slot] = stream.lateness_s
        self._closed += 1

    def on_rows(self, rows: int, seconds: float, now: float) -> None:
        """A stream waited ``seconds`` for so many rows."""
        if self._capacity is not None:
            self._capacity.talker.observe(rows, seconds, self.running, now)

    def observe_trimmed(self, seconds: float) -> None:
        """So much silence was left out at the beginning of a context."""
        self._trimmed_s.append(seconds)

    def bounds(self, settings: ScheduleSettings, windows: int = 0) -> PaceBounds:
        """The pair (S, B) with which an utterance starts soonest now, and the codec's cost, in
        which there are so many ``windows``.
        """
        lateness_s, row_s = self._resembling()
        cost = self._among_others(self.decode.bounds(), settings, windows)
        trimmed_s = max(self._trimmed_s, default=0.0) * settings.frame_s / self._frame_s
        cost = replace(cost, trimmed_s=trimmed_s)
        if not len(lateness_s):
            return _with_pace(cost, self._prior.row_s, self._prior.burst_s)
        fast = row_s < _FAST_BELOW * self._frame_s
        bursts_s = _upper_quantile(lateness_s, _FAST_QUANTILE if fast else _SLOW_QUANTILE)
        pairs = [
            _with_pace(cost, float(rate_s), float(burst_s))
            for rate_s, burst_s in zip(self.rates_s, bursts_s, strict=True)
        ]
        if len(lateness_s) < _WARM_STREAMS:
            # What little was seen can only make the prior worse.
            prior = self._prior
            pairs = [
                replace(pair, burst_s=max(pair.burst_s, prior.burst_s))
                for pair in pairs
                if pair.row_s >= prior.row_s
            ] or [_with_pace(cost, prior.row_s, max(pairs[-1].burst_s, prior.burst_s))]
        if self._capacity is not None:
            pairs = _no_faster(pairs, self._capacity.soon_row_s(self.live, self.now))
        left = settings.horizon_frames
        # of pairs that ask for the most that may be held: the one that hides no slow talker
        # behind a burst
        return min(
            pairs,
            key=lambda pair: (start_frames(settings, pair, left_frames=left), pair.burst_s),
        )

    def _among_others(
        self, cost: PaceBounds, settings: ScheduleSettings, windows: int
    ) -> PaceBounds:
        """The codec's time is shared with the ``windows`` that are in it. Streams that have just
        begun will want their next chunks when a stream that begins now does, and all will be
        urgent: each may have to wait for the others'. Many windows take as long as usual ones.
        """
        usual = self.decode.usual_share
        cost = replace(cost, codec_share=_SHARED / ((1 + windows) * usual))
        others = sum(stream.rows < _BEGINNER_ROWS for stream in self._live.values()) - 1
        if others < 1:
            return cost
        chunk = sustainable_frames(settings, cost)
        window = settings.left_context_frames + chunk + settings.lookahead_frames
        return replace(cost, beginners_s=others * usual * cost.decode_s(window))

    def _resembling(self) -> tuple[Floats, float]:
        """Lateness ``[n, rates]`` of the streams most like now, and their median row_s."""
        kept = min(self._closed, _PACE_MEMORY)
        about, lateness_s = self._about[:kept], self._lateness_s[:kept]
        if kept > _NEAREST:
            distance = np.abs(np.log2(about[:, 1] / max(1, self.live)))
            distance += (self.now - about[:, 0]) / _AGE_S
            nearest = np.argpartition(distance, _NEAREST)[:_NEAREST]
            about, lateness_s = about[nearest], lateness_s[nearest]
        row_s = about[:, 2].tolist()
        under_way = [stream for stream in self._live.values() if stream.rows >= _WARM_ROWS]
        if under_way:
            row_s += [stream.elapsed_s / stream.rows for stream in under_way]
            lateness_s = np.concatenate([lateness_s, [s.lateness_s for s in under_way]])
        return lateness_s, float(np.median(row_s)) if row_s else 0.0


def _with_pace(cost: PaceBounds, row_s: float, burst_s: float) -> PaceBounds:
    return replace(cost, row_s=row_s, burst_s=burst_s)


def _no_faster(pairs: list[PaceBounds], row_s: float) -> list[PaceBounds]:
    """Only what holds too when rows have come to take so long: they come no faster, and one of
    them may be late.
    """
    return [
        replace(pair, row_s=max(pair.row_s, row_s), burst_s=max(pair.burst_s, row_s))
        for pair in pairs
        if pair.row_s >= row_s or pair is pairs[-1]
    ]


def _upper_quantile(values: Floats, quantile: float) -> Floats:
    """The quantile of each column, the higher of two neighbours."""
    ordered = np.sort(values, axis=0)
    result: Floats = ordered[ceil(quantile * (len(ordered) - 1))]
    return result

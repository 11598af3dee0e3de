"""Measured pace of the talker and cost of the codec.

:class:`PaceEstimator` learns how fast rows come (:class:`StreamPace` measures one stream of them),
:class:`DecodeCostEstimator` the cost of a window in the codec. Together they give the
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
#: Number of windows for which a wait is remembered: few windows wait, and hardly any while a single
#: stream runs.
_WAIT_MEMORY = 2 * _COST_MEMORY
#: Share of windows within the upper bounds, and below the floor.
_UPPER, _LOWER = 0.995, 0.02
#: Factor between the longest usual wait and its bound, since a queue has a long tail.
_QUEUE_SPARE = 2.0


class DecodeCostEstimator:
    """Learns the codec's part of the bounds. ``prior`` is used for the first few windows."""

    def __init__(self, prior: PaceBounds) -> None:
        self._prior = prior
        self._seen = np.zeros((_COST_MEMORY, 2))  # frames of the whole batch, decode_s
        #: The number of each window, and how long it waited.
        self._waits: deque[tuple[int, float]] = deque(maxlen=_COST_MEMORY)
        self._count = 0
        self._fitted_at = 0
        self._bounds = prior
        #: Time of a typical window, over the upper bound of its time.
        self.usual_share = 1.0

    def observe(
        self,
        window_frames: int,
        queue_s: float,
        decode_s: float,
        slack_s: float = 0.0,
        batch: int = 1,
    ) -> None:
        """Record one window of ``window_frames`` in all: it waited ``queue_s`` and took
        ``decode_s``, in a batch of ``batch`` windows. Its deadline was ``slack_s`` after it was
        handed over.

        The time of the batch's other windows counts as this one's wait. They have about the same
        length.

        Raises ValueError for values that cannot have been measured.
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
        """Return bounds with learned queue and decode times. The pace is that of the prior."""
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
        self.usual_share = min(1.0, 1.0 / upper)  # typical windows are on the line
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
        """Fit the mean cost: a fixed part and one per frame, neither negative."""
        mean_frames, mean_s = float(frames.mean()), float(decode_s.mean())
        spread = frames - mean_frames
        if spread.any():
            slope = max(0.0, float(spread @ decode_s / (spread @ spread)))
        else:  # windows of a single size: keep the prior's proportions
            prior_s = self._prior.decode_s(int(mean_frames))
            slope = mean_s * self._prior.decode_frame_s / prior_s if prior_s else 0.0
        slope = min(slope, mean_s / mean_frames)
        # If the slope is the whole cost, rounding can make the rest slightly negative.
        return max(0.0, mean_s - slope * mean_frames), slope


#: Number of waits that are processed together.
_BLOCK = 32


class StreamPace:
    """Pace of one stream of rows. Created by ``PaceEstimator.open``; close it at its end."""

    def __init__(self, estimator: PaceEstimator, grid_s: Floats) -> None:
        self._estimator = estimator
        self._grid_s = grid_s
        self._level = np.zeros_like(grid_s)
        self._lateness_s = np.zeros_like(grid_s)
        #: Batches not yet processed: seconds waited for each, and its number of rows.
        self._steps_s: list[float] = []
        self._counts: list[int] = []
        self._even: list[bool] = []
        self.rows = 0  # rows whose wait was measured: not those of the first batch
        self.elapsed_s = 0.0
        self._last: float | None = None
        self._beside = 0.0
        self._runs = False
        self._run(True)

    def observe(self, count: int, now: float) -> None:
        """Record ``count`` rows that came together at ``now``."""
        self.observe_all((Arrival(count, now),))

    def observe_all(self, came: Sequence[Arrival]) -> None:
        """Record rows; see ``TalkerRows.came``."""
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
        """Largest lateness so far for each rate, ``[rates]``."""
        self._count()
        return self._lateness_s

    def _count(self) -> None:
        """Run the token buckets over the unprocessed batches, for all rates and steps at once.

        The level rises by ``step - S``, then falls by ``(count - 1) S``, and is never below 0. Such
        a walk equals its running sum minus the lowest value of that sum, if that is below 0. Rows
        that came evenly have equal shares of the step, which makes one move by ``step - count S``.
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
        """Record that the talker is held back: the time until the next row does not count."""
        self._forget_last()
        self._run(False)

    def _forget_last(self) -> None:
        self._count()
        self._last = None
        self._level[:] = 0.0

    def close(self) -> None:
        """End the stream. May be called again."""
        self._run(False)
        self._estimator.close(self)

    def _run(self, runs: bool) -> None:
        self._estimator.running += runs - self._runs
        self._runs = runs

    @property
    def row_s(self) -> float:
        """Mean seconds per row so far; 0 before the second."""
        return self.elapsed_s / self.rows if self.rows else 0.0

    @property
    def streams_beside(self) -> float:
        """Mean number of open streams, including this one."""
        return self._beside / self.rows if self.rows else 1.0


#: Rates S that are tried, as multiples of a frame's duration.
_GRID = (
    *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6),
    *(0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0),
)
#: Finished streams remembered, and how many of them are used at a time.
_PACE_MEMORY, _NEAREST = 256, 64
#: Seconds of age that count as much as twice or half the present load, when streams are compared.
_AGE_S = 60.0
#: Streams needed before the prior is dropped; rows needed before a stream counts.
_WARM_STREAMS, _WARM_ROWS = 8, 16
#: A stream with fewer rows may not have had its second window decoded yet.
_BEGINNER_ROWS = 32
#: Share of the codec's time that is divided among the streams.
_SHARED = 0.8
#: Trimmed silences remembered.
_TRIM_MEMORY = 64
#: Quantiles of lateness for a fast and for a slow talker, since safety costs a slow one more. A
#: talker is fast below this share of a frame's duration per row.
_FAST_QUANTILE, _SLOW_QUANTILE, _FAST_BELOW = 0.99, 0.9, 0.5


class PaceEstimator:
    """Estimates the pace of one talker and one codec worker, with bounded memory.

    ``prior``: the bounds assumed before any observation, which are the workers' own measurements at
    start-up or a careful guess. ``capacity`` is told of all rows.
    """

    def __init__(self, frame_s: float, prior: PaceBounds, capacity: Capacity | None = None) -> None:
        self._frame_s, self._capacity = frame_s, capacity
        #: Streams that are open and not held back on purpose.
        self.running = 0
        self._prior = prior
        #: The rates S that are tried, in seconds per row.
        self.rates_s = np.array(_GRID) * frame_s
        self._live: dict[int, StreamPace] = {}
        # Columns: time of its end, mean number of open streams, mean seconds per row.
        self._about = np.zeros((_PACE_MEMORY, 3))
        self._lateness_s = np.zeros((_PACE_MEMORY, len(_GRID)))
        self._closed = 0
        self.now = 0.0  # time of the latest row of any stream
        #: Cost of windows in the codec.
        self.decode = DecodeCostEstimator(prior)
        self._trimmed_s: deque[float] = deque(maxlen=_TRIM_MEMORY)

    @property
    def live(self) -> int:
        """Number of open streams."""
        return len(self._live)

    def open(self) -> StreamPace:
        """Open a stream of rows."""
        stream = StreamPace(self, self.rates_s)
        self._live[id(stream)] = stream
        return stream

    def close(self, stream: StreamPace) -> None:
        """Close a stream of rows. May be called again."""
        if self._live.pop(id(stream), None) is None or stream.rows < _WARM_ROWS:
            return
        slot = self._closed % _PACE_MEMORY
        self._about[slot] = self.now, stream.streams_beside, stream.row_s
        self._lateness_s[slot] = stream.lateness_s
        self._closed += 1

    def on_rows(self, rows: int, seconds: float, now: float) -> None:
        """Record that a stream waited ``seconds`` for ``rows`` rows."""
        if self._capacity is not None:
            self._capacity.talker.observe(rows, seconds, self.running, now)

    def observe_trimmed(self, seconds: float) -> None:
        """Record that ``seconds`` of silence were trimmed at the beginning of a context."""
        self._trimmed_s.append(seconds)

    def bounds(self, settings: ScheduleSettings, windows: int = 0) -> PaceBounds:
        """Return the pair (S, B) with which an utterance can start soonest now, and the cost of the
        codec, which has ``windows`` windows at present.
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
            # So few observations can only make the bounds worse than the prior.
            prior = self._prior
            pairs = [
                replace(pair, burst_s=max(pair.burst_s, prior.burst_s))
                for pair in pairs
                if pair.row_s >= prior.row_s
            ] or [_with_pace(cost, prior.row_s, max(pairs[-1].burst_s, prior.burst_s))]
        if self._capacity is not None:
            pairs = _no_faster(pairs, self._capacity.soon_row_s(self.live, self.now))
        left = settings.horizon_frames
        # Among pairs that need ``max_hold_frames``, take the one with the smallest burst: it does
        # not present a slow talker as a burst.
        return min(
            pairs,
            key=lambda pair: (start_frames(settings, pair, left_frames=left), pair.burst_s),
        )

    def _among_others(
        self, cost: PaceBounds, settings: ScheduleSettings, windows: int
    ) -> PaceBounds:
        """Add the effect of other streams. The codec's time is shared with its ``windows`` windows.
        Streams that have just begun will want their next chunks at the same time as a stream that
        begins now. All these are urgent, so each may have to wait for the others. Many windows
        together take as long as typical ones.
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
        """Lateness ``[n, rates]`` of the streams under conditions most like the present, and their
        median row_s.
        """
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
            row_s += [stream.row_s for stream in under_way]
            lateness_s = np.concatenate([lateness_s, [s.lateness_s for s in under_way]])
        return lateness_s, float(np.median(row_s)) if row_s else 0.0


def _with_pace(cost: PaceBounds, row_s: float, burst_s: float) -> PaceBounds:
    return replace(cost, row_s=row_s, burst_s=burst_s)


def _no_faster(pairs: list[PaceBounds], row_s: float) -> list[PaceBounds]:
    """Restrict the pairs to those that also hold once each row takes ``row_s``: S is no less than
    that, and B allows for one late row.
    """
    return [
        replace(pair, row_s=max(pair.row_s, row_s), burst_s=max(pair.burst_s, row_s))
        for pair in pairs
        if pair.row_s >= row_s or pair is pairs[-1]
    ]


def _upper_quantile(values: Floats, quantile: float) -> Floats:
    """Return the quantile of each column, the higher of two neighbours."""
    ordered = np.sort(values, axis=0)
    result: Floats = ordered[ceil(quantile * (len(ordered) - 1))]
    return result

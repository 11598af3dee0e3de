"""Measured pace of the talker and cost of the codec.

:class:`PaceEstimator` learns how fast rows come (:class:`StreamPace` measures one stream of them),
:class:`DecodeCostEstimator` the cost of a window in the codec. Together they give the
``PaceBounds`` by which the chunk schedule sizes its chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from statistics import median

import numpy as np
import numpy.typing as npt

from streaming.capacity import Capacity
from streaming.chunk_schedule import PaceBounds, ScheduleSettings, start_frames, sustainable_frames
from streaming.ports import Arrival

Floats = npt.NDArray[np.float64]

#: Windows remembered.
_COST_MEMORY = 512
#: Windows needed before the prior is dropped.
_WARM = 8
#: Windows between two fits.
_REFIT = 8
#: Seconds after which bounds are fitted again, since windows grow old without new ones.
_REFIT_S = 1.0
#: Only the windows of so many seconds count ...
_COST_AGE_S = 30.0
#: ... but at least this number of them.
_COST_MIN = 32
#: Share of windows within the upper bounds.
_UPPER = 0.99
#: Share of windows below the floor.
_LOWER = 0.02
#: Factor between the longest usual wait and its bound, since a queue has a long tail.
_QUEUE_SPARE = 2.0
#: Among fewer values the largest does not count if it is more than ``_ALONE`` times the second
#: largest: what happened once is no rule.
_RARE = 64
#: See ``_RARE``.
_ALONE = 2.0
#: Multiples of the mean stretch that are tried. With larger ones, a frame of a starved codec would
#: seem to take longer than it lasts, and first chunks would be as large as they can be.
_STRETCHES = np.array((1.0, 1.25, 1.5))
#: Which windows are to be decoded soonest, as a quantile of their time.
_SHORT = 0.25
#: Windows among which those are found that were decoded during a wait.
_AHEAD = 64


class DecodeCostEstimator:
    """Learns the codec's part of the bounds. ``prior`` is used for the first few windows.

    A window of w new and looked-at frames costs processor time c(w) = c0 + c1 * w, by the line
    through the medians of short and of long windows. Beside another process the codec loses the
    processor now and then. As rows come at a rate S with a burst B, a window takes at most
    ``s * c(w) + stolen_s``. For each stretch s that is tried, the burst is the usual maximum of the
    time that the windows took beyond s times their own processor time. The pair with which a short
    window is decoded soonest is used: bursts beside a long window, which suffers several of them,
    are then a stretch, which adds little to a short one. A worker that does not know its processor
    time, for example on a GPU, counts as if it never lost it.

    The windows of the last seconds count, but at least some. The *usual maximum* is a high
    quantile; of few values, the largest does not count if it stands alone. So one slow window, at
    the start too, delays no later utterance, and the bursts of a busy neighbour, which are alike,
    all count.
    """

    def __init__(self, prior: PaceBounds) -> None:
        #: Bounds for the first few windows.
        self._prior = prior
        #: Of each window: when it was decoded, frames of its batch, decode_s, busy_s, how long it
        #: waited, or -1 if that did not matter, and for how much of this nothing was decoded.
        self._seen = np.zeros((_COST_MEMORY, 6))
        #: Number of workers that decode side by side.
        self.workers = 1
        #: Number of windows seen.
        self._count = 0
        #: ``_count`` at the last fit.
        self._fitted_at = 0
        #: Time of the last fit.
        self._fitted_s = -inf
        #: Latest time of any call.
        self._now = -inf
        #: The last fit.
        self._bounds = prior
        #: Time of a typical window, over the upper bound of its time.
        self.usual_share = 1.0
        #: The longest time that the codec usually loses beyond its stretch.
        self.stolen_s = 0.0
        #: The part of ``queue_s`` for which other windows are no reason.
        self.unexplained_s = 0.0

    def observe(
        self,
        window_frames: int,
        queue_s: float,
        decode_s: float,
        slack_s: float = 0.0,
        batch: int = 1,
        *,
        busy_s: float | None = None,
        now: float = 0.0,
    ) -> None:
        """Record one window of ``window_frames`` in all: it waited ``queue_s`` and took
        ``decode_s``, in a batch of ``batch`` windows, of which ``busy_s`` on the processor, if that
        is known. Its deadline was ``slack_s`` after it was handed over.

        The time of the batch's other windows counts as this one's wait. They have about the same
        length.

        Raises ValueError for values that cannot have been measured.
        """
        times = (queue_s, decode_s) if busy_s is None else (queue_s, decode_s, busy_s)
        if min(window_frames, batch) < 1 or not all(0 <= time < inf for time in times):
            raise ValueError("a window has frames, and finite times that are not negative")
        late_s = queue_s + decode_s - slack_s
        wait_s = -1.0
        idle_s = 0.0
        if late_s >= 0:
            waited_s = queue_s + decode_s * (batch - 1) / batch
            wait_s = min(waited_s, self._bounds.queue_s / _QUEUE_SPARE + late_s)
            idle_s = min(wait_s, max(0.0, queue_s - self._decoded_s(now - decode_s - queue_s)))
        busy_s = decode_s if busy_s is None else min(busy_s, decode_s)
        self._now = max(self._now, now)
        row = self._now, window_frames * batch, decode_s, busy_s, wait_s, idle_s
        self._seen[self._count % _COST_MEMORY] = row
        self._count += 1

    def _decoded_s(self, since: float) -> float:
        """A worker's time for the windows whose decoding ended after ``since``."""
        newest = self._newest(_AHEAD)
        return float(newest[newest[:, 0] > since, 2].sum()) / self.workers

    def bounds(self, now: float = 0.0) -> PaceBounds:
        """Return bounds with learned decode times and waits, to which ``stolen_s`` has to be added.
        The pace is that of the prior.
        """
        self._now = max(self._now, now)
        is_due = self._count - self._fitted_at >= _REFIT or self._now - self._fitted_s >= _REFIT_S
        if self._count >= _WARM and is_due:
            self._bounds = self._fit()
            self._fitted_at = self._count
            self._fitted_s = self._now
        return self._bounds

    def _newest(self, limit: int) -> Floats:
        kept = min(self._count, limit)
        newest: Floats = self._seen[(self._count - 1 - np.arange(kept)) % _COST_MEMORY]
        return newest

    def _recent(self) -> Floats:
        """The windows that count, newest first."""
        newest = self._newest(_COST_MEMORY)
        young = int(np.count_nonzero(newest[:, 0] >= self._now - _COST_AGE_S))
        return newest[: max(young, _COST_MIN)]

    def _fit(self) -> PaceBounds:
        _, frames, decode_s, busy_s, waits_s, idle_s = self._recent().T
        fixed, slope = self._line(frames, busy_s)
        share = busy_s / (fixed + slope * frames)
        upper = max(1e-9, _usual_max(share))
        lost_s = decode_s - busy_s
        mean = 1 + float(lost_s.sum() - lost_s.max()) / max(float(busy_s.sum()), 1e-9)
        short_s = float(np.quantile(busy_s, _SHORT))
        stretch, self.stolen_s = min(
            (
                (s, max(0.0, _usual_max(decode_s - s * busy_s)))
                for s in (mean * _STRETCHES).tolist()
            ),
            key=lambda pair: pair[0] * short_s + pair[1],
        )
        self.usual_share = min(1.0, 1.0 / upper)  # typical windows are on the line
        lower = float(np.quantile(share, _LOWER, method="lower")) / stretch
        queue_s = self._prior.queue_s
        self.unexplained_s = 0.0
        mattered = waits_s >= 0
        if mattered.any():
            queue_s = _QUEUE_SPARE * _usual_max(waits_s[mattered])
            self.unexplained_s = _QUEUE_SPARE * _usual_max(idle_s[mattered])
        return PaceBounds(
            row_s=self._prior.row_s,
            burst_s=self._prior.burst_s,
            queue_s=queue_s,
            decode_fixed_s=fixed * upper * stretch,
            decode_frame_s=slope * upper * stretch,
            decode_floor=lower / upper if lower < upper else 1.0,
        )

    def _line(self, frames: Floats, cost_s: Floats) -> tuple[float, float]:
        """Fit the typical cost: a positive fixed part and one per frame, which is not negative.

        The line goes through the medians of the third of the windows that is shortest and of the
        third that is longest, so that few slow windows do not move it.
        """
        order = np.argsort(frames, kind="stable")
        third = max(3, len(frames) // 3)
        (few, short_s), (many, long_s) = (
            (float(np.median(frames[part])), float(np.median(cost_s[part])))
            for part in (order[:third], order[-third:])
        )
        if many > few:
            slope = max(0.0, (long_s - short_s) / (many - few))
        else:  # windows of a single size: keep the prior's proportions
            prior_s = self._prior.decode_s(int(many))
            slope = long_s * self._prior.decode_frame_s / prior_s if prior_s else 0.0
        slope = min(slope, float(np.median(cost_s / frames)))
        return max(1e-9, float(np.median(cost_s - slope * frames))), slope


def _usual_max(values: Floats) -> float:
    return float(_upper_quantile(values, _UPPER))


#: Number of waits that are processed together.
_BLOCK = 32


class StreamPace:
    """Pace of one stream of rows. Created by ``PaceEstimator.open``; close it at its end."""

    def __init__(self, estimator: PaceEstimator, grid_s: Floats) -> None:
        self._estimator = estimator
        #: Rates that are tried, in seconds per row, ``[rates]``.
        self._grid_s = grid_s
        #: Present lateness for each rate.
        self._level = np.zeros_like(grid_s)
        #: Largest lateness so far for each rate.
        self._lateness_s = np.zeros_like(grid_s)
        #: Seconds waited for each batch that is not processed yet.
        self._steps_s: list[float] = []
        #: Number of rows of each such batch.
        self._counts: list[int] = []
        #: Number of rows of each such batch that drain before its last one comes: all of them if
        #: they were generated evenly, else one.
        self._drained: list[int] = []
        #: Rows whose wait was measured: all but those of first batches.
        self.rows = 0
        #: Seconds waited for them.
        self.elapsed_s = 0.0
        #: Time of the last row; None at the start and after a pause.
        self._last: float | None = None
        #: Sum over the measured rows of the number of open streams.
        self._beside = 0.0
        #: Whether the stream counts as running.
        self._runs = False
        self._run(True)

    def observe(self, count: int, now: float) -> None:
        """Record ``count`` rows that came together at ``now``."""
        self.observe_all((Arrival(count, now),))

    def observe_all(self, came: Sequence[Arrival]) -> None:
        """Record rows; see ``TalkerRows.came``."""
        counted = 0
        waited_s = 0.0
        latest: float | None = None
        for count, at, evenly in came:
            if count < 1:
                self._forget_last()
                continue
            if self._last is not None:
                step_s = max(0.0, at - self._last)
                self._steps_s.append(step_s)
                self._counts.append(count)
                self._drained.append(count if evenly else 1)
                counted += count
                waited_s += step_s
            self._last = at
            latest = at
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
            self.count()

    @property
    def lateness_s(self) -> Floats:
        """Largest lateness so far for each rate, ``[rates]``."""
        self.count()
        return self._lateness_s

    def count(self) -> None:
        """Process the batches that are not processed yet."""
        if self._steps_s:
            self.count_all([self])

    @staticmethod
    def count_all(streams: Sequence[StreamPace]) -> Floats:
        """Process the batches of several streams. Returns their largest lateness, ``[n, rates]``.

        Runs the token buckets over all streams, rates and batches at once. The level rises by
        ``step - S``, then falls by ``(count - 1) S``, and is never below 0. Such a walk equals its
        running sum minus the lowest value of that sum, if that is below 0. Rows that came evenly
        have equal shares of the step, which makes one move by ``step - count S``. Streams with
        fewer batches than others stay where they are.
        """
        longest = max(len(stream._steps_s) for stream in streams)
        lateness_s = np.array([stream._lateness_s for stream in streams])
        if not longest:
            return lateness_s
        steps_s, counts, drained = np.zeros((3, len(streams), longest))
        for number, stream in enumerate(streams):
            waiting = len(stream._steps_s)
            steps_s[number, :waiting] = stream._steps_s
            counts[number, :waiting] = stream._counts
            drained[number, :waiting] = stream._drained
        grid_s = streams[0]._grid_s
        moves = np.empty((len(streams), 2 * longest, len(grid_s)))
        moves[:, 0::2] = steps_s[..., None] - drained[..., None] * grid_s
        moves[:, 1::2] = (drained - counts)[..., None] * grid_s
        moves[:, 0] += [stream._level for stream in streams]
        sums = np.cumsum(moves, axis=1, out=moves)
        levels = sums - np.minimum(np.minimum.accumulate(sums, axis=1), 0.0)
        np.maximum(lateness_s, levels.max(axis=1), out=lateness_s)
        last = levels[:, -1].copy()
        for number, stream in enumerate(streams):
            stream._level = last[number]
            stream._lateness_s = lateness_s[number]
            stream._steps_s.clear()
            stream._counts.clear()
            stream._drained.clear()
        return lateness_s

    def pause(self) -> None:
        """Record that the talker is held back: the time until the next row does not count."""
        self._forget_last()
        self._run(False)

    def _forget_last(self) -> None:
        self.count()
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
#: Finished streams remembered.
_PACE_MEMORY = 256
#: Maximum number of them that are used at a time.
_NEAREST = 64
#: Minimum number of them that are used at a time, if there are so many.
_MIN_STREAMS = 8
#: Seconds of age that count as much as twice or half the present load, when streams are compared.
#: Streams that differ by that much more than the most similar one are not used.
_AGE_S = 30.0
#: Streams needed before the prior is dropped.
_WARM_STREAMS = 8
#: Rows needed before a stream counts.
_WARM_ROWS = 16
#: A stream with fewer rows may not have had its second window decoded yet.
_BEGINNER_ROWS = 32
#: Share of the codec's time that is divided among the streams.
_SHARED = 0.8
#: Trimmed silences remembered.
_TRIM_MEMORY = 64
#: Quantile of lateness for a fast talker.
_FAST_QUANTILE = 0.99
#: Quantile of lateness for a slow talker, for which safety costs more.
_SLOW_QUANTILE = 0.9
#: A talker is fast below this share of a frame's duration per row.
_FAST_BELOW = 0.5


#: S, the seconds per row, and B, the largest delay of a row.
_Pace = tuple[float, float]


class PaceEstimator:
    """Estimates the pace of one talker and its codec workers, with bounded memory.

    ``prior``: the bounds assumed before any observation, which are the workers' own measurements at
    start-up or a careful guess. ``capacity`` observes all rows too.
    """

    def __init__(self, frame_s: float, prior: PaceBounds, capacity: Capacity | None = None) -> None:
        #: Duration of a frame.
        self._frame_s = frame_s
        #: None if admission is not measured.
        self._capacity = capacity
        #: Streams that are open and not held back on purpose.
        self.running = 0
        #: Bounds before any observation.
        self._prior = prior
        #: The rates S that are tried, in seconds per row.
        self.rates_s = np.array(_GRID) * frame_s
        #: Open streams, by id.
        self._live: dict[int, StreamPace] = {}
        #: Of each closed stream: time of its end, mean number of open streams and seconds per row.
        self._about = np.zeros((_PACE_MEMORY, 3))
        #: Of each closed stream: its largest lateness for each rate.
        self._lateness_s = np.zeros((_PACE_MEMORY, len(_GRID)))
        #: Number of streams closed.
        self._closed = 0
        #: Time of the latest row of any stream.
        self.now = 0.0
        #: Cost of windows in the codec.
        self.decode = DecodeCostEstimator(prior)
        #: Silences trimmed of late, in seconds.
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

    def bounds(
        self, settings: ScheduleSettings, windows: int = 0, now: float | None = None
    ) -> PaceBounds:
        """Return the pair (S, B) with which an utterance can start soonest ``now``, by default at
        the latest row, and the cost of the codec, which has ``windows`` windows at present.
        """
        self.now = self.now if now is None else max(self.now, now)
        lateness_s, row_s = self._resembling()
        cost = self._among_others(self.decode.bounds(self.now), settings, windows)
        trimmed_s = max(self._trimmed_s, default=0.0) * settings.frame_s / self._frame_s
        cost = replace(cost, trimmed_s=trimmed_s)
        if not len(lateness_s):
            return replace(cost, row_s=self._prior.row_s, burst_s=self._prior.burst_s)
        fast = row_s < _FAST_BELOW * self._frame_s
        bursts_s = _upper_quantile(lateness_s, _FAST_QUANTILE if fast else _SLOW_QUANTILE)
        # A burst of another process that delays the codec is not added to one that delays a row.
        bursts_s = np.maximum(0.0, bursts_s - self.decode.stolen_s)
        pairs: list[_Pace] = list(zip(self.rates_s.tolist(), bursts_s.tolist(), strict=True))
        if self._closed < _WARM_STREAMS and len(lateness_s) < _WARM_STREAMS:
            # So few observations can only make the bounds worse than the prior.
            prior = self._prior
            pairs = [
                (row_s, max(burst_s, prior.burst_s))
                for row_s, burst_s in pairs
                if row_s >= prior.row_s
            ] or [(prior.row_s, max(pairs[-1][1], prior.burst_s))]
        if self._capacity is not None:
            pairs = _no_faster(pairs, self._capacity.soon_row_s(self.live, self.now))
        left = settings.horizon_frames
        # Among pairs that need ``max_hold_frames``, take the one with the smallest burst: it does
        # not present a slow talker as a burst.
        row_s, burst_s = min(
            pairs,
            key=lambda pair: (start_frames(settings, cost, left_frames=left, pace=pair), pair[1]),
        )
        return replace(cost, row_s=row_s, burst_s=burst_s)

    def _among_others(
        self, cost: PaceBounds, settings: ScheduleSettings, windows: int
    ) -> PaceBounds:
        """Add the effect of other streams, of which each worker has its part. A worker's time is
        shared with its part of the ``windows`` windows.
        Streams that have just begun will want their next chunks at the same time as a stream that
        begins now. All these are urgent, so each may have to wait for the others. With many
        windows, the typical decode time is assumed instead of the upper bound.
        """
        usual = self.decode.usual_share
        workers = self.decode.workers
        share = _SHARED / (ceil((1 + windows) / workers) * usual)
        begun = sum(stream.rows < _BEGINNER_ROWS for stream in self._live.values())
        beside = ceil(max(self.live - 1, windows) / workers)
        others = ceil((begun - 1) / workers)
        wait_s = self._max_wait_s(cost, settings, beside) + self.decode.unexplained_s
        queue_s = min(cost.queue_s, max(wait_s, self._prior.queue_s)) + self.decode.stolen_s
        cost = replace(cost, codec_share=share, queue_s=queue_s)
        if others < 1:
            return cost
        window = sustainable_frames(settings, cost) + settings.lookahead_frames
        return replace(cost, beginners_s=others * usual * cost.decode_s(window))

    def _max_wait_s(self, cost: PaceBounds, settings: ScheduleSettings, beside: int) -> float:
        """The longest wait for which the windows of ``beside`` other streams are a reason: for one
        largest window and for one of the planned size of each stream, with room to spare.

        Longer waits came from larger chunks, and a bound by them would make chunks larger still.
        The planned size m lasts for that wait: ``m T = largest + (1 + beside) d(m + r)``, which is
        ``sustainable_frames`` with all costs multiplied.
        """
        usual = self.decode.usual_share
        lookahead = settings.lookahead_frames
        largest_s = usual * cost.decode_s(settings.max_chunk_frames + lookahead)
        if not beside:  # another stream may begin before the next window
            return largest_s
        turns = 1 + beside * usual
        crowd = replace(
            cost,
            queue_s=largest_s,
            decode_fixed_s=turns * cost.decode_fixed_s,
            decode_frame_s=turns * cost.decode_frame_s,
        )
        planned = sustainable_frames(settings, crowd) + lookahead
        return _QUEUE_SPARE * (largest_s + beside * usual * cost.decode_s(planned))

    def _resembling(self) -> tuple[Floats, float]:
        """Lateness ``[n, rates]`` of the streams under conditions most like the present, and their
        median row_s.
        """
        kept = min(self._closed, _PACE_MEMORY)
        about = self._about[:kept]
        lateness_s = self._lateness_s[:kept]
        if kept > _MIN_STREAMS:
            distance = np.abs(np.log2(about[:, 1] / max(1, self.live)))
            distance += (self.now - about[:, 0]) / _AGE_S
            nearest = np.argsort(distance)[:_NEAREST]
            similar = int(np.count_nonzero(distance[nearest] <= distance[nearest[0]] + 1))
            nearest = nearest[: max(similar, _MIN_STREAMS)]
            about = about[nearest]
            lateness_s = lateness_s[nearest]
        row_s = about[:, 2].tolist()
        under_way = [stream for stream in self._live.values() if stream.rows >= _WARM_ROWS]
        if under_way:
            row_s += [stream.row_s for stream in under_way]
            lateness_s = np.concatenate([lateness_s, StreamPace.count_all(under_way)])
        return lateness_s, median(row_s) if row_s else 0.0


def _no_faster(pairs: list[_Pace], limit_s: float) -> list[_Pace]:
    """Restrict the pairs to those that also hold once each row takes ``limit_s``: S is no less than
    that, and B allows for one late row.
    """
    return [
        (max(row_s, limit_s), max(burst_s, limit_s))
        for row_s, burst_s in pairs
        if row_s >= limit_s or row_s == pairs[-1][0]
    ]


def _upper_quantile(values: Floats, quantile: float) -> Floats:
    """Return the quantile of each column, the higher of two neighbours; of few values, but not of
    one, the second largest if the largest stands alone.
    """
    ordered = np.sort(values, axis=0)
    last = len(ordered) - 1
    upper: Floats = ordered[ceil(quantile * last)]
    if not 0 < last < _RARE:
        return upper
    second: Floats = ordered[last - 1]
    return np.where(upper > _ALONE * second, second, upper)

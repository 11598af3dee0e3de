"""Learns the pace of a talker and its codec: the ``PaceBounds`` that the schedule needs.

For a rate S, a stream's *lateness* is the highest level of a token bucket that each second
fills and each row drains by S: the smallest B with which the stream kept to
``A(j) - A(i) <= (j - i) S + B``. Each stream yields its lateness for every S of a fixed grid.
For each S, B is then a quantile of the lateness over the streams that resemble the present
most, and of all pairs (S, B) the one that lets the schedule start soonest is used.

Which streams resemble the present? Rows come slower when more streams run, and load moves
faster than any fixed window of history forgets. So every finished stream is remembered with
the number of streams that ran beside it, and the nearest ones are used: a doubling of the
load is as far as ``_AGE_S`` of age. Streams under way count as well, so a load never seen
before shows before its first stream ends.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import numpy.typing as npt

from streaming.bounds import PaceBounds, ScheduleSettings, start_frames, sustainable_frames
from streaming.capacity import Capacity
from streaming.decode_cost import DecodeCostEstimator
from streaming.stream_pace import StreamPace

Floats = npt.NDArray[np.float64]

#: Rates S that are tried, as multiples of a frame's duration.
_GRID = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
#: Finished streams remembered, and how many of them are used at a time.
_MEMORY, _NEAREST = 256, 64
#: Seconds of age that set a stream as far off as a load twice or half the present one.
_AGE_S = 60.0
#: Streams needed before the prior is dropped; rows needed before a stream counts.
_WARM_STREAMS, _WARM_ROWS = 8, 16
#: A stream with fewer rows may not have had its second window decoded yet.
_BEGINNER_ROWS = 32
#: So much of the codec's time is shared out.
_SHARED = 0.8
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
        self._grid_s = np.array(_GRID) * frame_s
        self._live: dict[int, StreamPace] = {}
        # Columns: age reference (time), streams beside, mean seconds per row.
        self._about = np.zeros((_MEMORY, 3))
        self._lateness_s = np.zeros((_MEMORY, len(_GRID)))
        self._closed = 0
        self.now = 0.0  # when the latest row of any stream came
        self._decode = DecodeCostEstimator(prior)

    @property
    def live(self) -> int:
        """Streams that are open."""
        return len(self._live)

    @property
    def rates_s(self) -> Floats:
        """The rates S that are tried, in seconds per row."""
        return self._grid_s

    def open(self) -> StreamPace:
        """A stream of rows begins."""
        stream = StreamPace(self, self._grid_s)
        self._live[id(stream)] = stream
        return stream

    def close(self, stream: StreamPace) -> None:
        """A stream of rows is over; safe to call again."""
        if self._live.pop(id(stream), None) is None or stream.rows < _WARM_ROWS:
            return
        slot = self._closed % _MEMORY
        self._about[slot] = self.now, stream.streams_beside, stream.elapsed_s / stream.rows
        self._lateness_s[slot] = stream.lateness_s
        self._closed += 1

    def on_rows(self, rows: int, seconds: float, now: float) -> None:
        """A stream waited ``seconds`` for so many rows."""
        if self._capacity is not None:
            self._capacity.talker.observe(rows, seconds, self.running, now)

    def observe_decode(
        self, frames: int, queue_s: float, decode_s: float, slack_s: float = 0.0
    ) -> None:
        """See ``DecodeCostEstimator.observe``."""
        self._decode.observe(frames, queue_s, decode_s, slack_s)

    def bounds(self, settings: ScheduleSettings, windows: int = 0) -> PaceBounds:
        """The pair (S, B) with which an utterance starts soonest now, and the codec's cost, in
        which there are so many ``windows``.
        """
        lateness_s, row_s = self._resembling()
        cost = self._among_others(self._decode.bounds(), settings, windows)
        if not len(lateness_s):
            return _with_pace(cost, self._prior.row_s, self._prior.burst_s)
        fast = row_s < _FAST_BELOW * self._frame_s
        bursts_s = _upper_quantile(lateness_s, _FAST_QUANTILE if fast else _SLOW_QUANTILE)
        pairs = [
            _with_pace(cost, float(rate_s), float(burst_s))
            for rate_s, burst_s in zip(self._grid_s, bursts_s, strict=True)
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
        usual = self._decode.usual_share
        cost = replace(cost, codec_share=_SHARED / ((1 + windows) * usual))
        others = sum(stream.rows < _BEGINNER_ROWS for stream in self._live.values()) - 1
        if others < 1:
            return cost
        chunk = sustainable_frames(settings, cost)
        window = settings.left_context_frames + chunk + settings.lookahead_frames
        return replace(cost, beginners_s=others * usual * cost.decode_s(window))

    def _resembling(self) -> tuple[Floats, float]:
        """Lateness ``[n, rates]`` of the streams most like now, and their median row_s."""
        kept = min(self._closed, _MEMORY)
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

"""The pace of one stream of rows as it comes: see :mod:`streaming.pace` for what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streaming.ports import Arrival

if TYPE_CHECKING:
    from streaming.pace import PaceEstimator

Floats = npt.NDArray[np.float64]

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

"""Learns what a window costs in the codec: an upper line ``d0 + d1 * w`` and the queue wait.

A least-squares line through recent windows is scaled until all but the slowest ones are
below it: noise grows with the window, and so does the room that is left for it. The floor f
scales it down below all but the fastest.

The queue wait is a high quantile, and as much again, over the windows that were in a hurry. The
codec takes the window whose listener runs dry first, so a busy one lets the others wait for as
long as they may: that they did says nothing of how soon an urgent one is taken, and to reckon
with it would make chunks, and so windows and waits, longer and longer. Windows of a load long
gone are forgotten with the rest of the history.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from streaming.bounds import PaceBounds

Floats = npt.NDArray[np.float64]

#: Windows remembered, windows needed before the prior is dropped, windows between two fits.
_MEMORY, _WARM, _REFIT = 256, 8, 8
#: Share of windows that keep to the upper bounds, and to the floor.
_UPPER, _LOWER = 0.995, 0.02
#: A queue has a long tail: so much longer than what nearly all windows waited, the next may.
_QUEUE_SPARE = 2.0


class DecodeCostEstimator:
    """The codec's part of the bounds; ``prior`` is used until a few windows were seen."""

    def __init__(self, prior: PaceBounds) -> None:
        self._prior = prior
        self._seen = np.zeros((_MEMORY, 2))  # window frames, decode_s
        self._waits_s: deque[float] = deque(maxlen=_MEMORY)
        self._count = 0
        self._fitted_at = 0
        self._bounds = prior
        #: What a usual window takes, over the bound of its time.
        self.usual_share = 1.0

    def observe(
        self, window_frames: int, queue_s: float, decode_s: float, slack_s: float = 0.0
    ) -> None:
        """One window of ``window_frames`` in all waited ``queue_s`` and took ``decode_s``; it was
        wanted ``slack_s`` after it was handed over.

        Raises ValueError for what cannot have been measured.
        """
        if window_frames < 1 or not (0 <= queue_s < np.inf and 0 <= decode_s < np.inf):
            raise ValueError("a window has frames, and finite times that are not negative")
        self._seen[self._count % _MEMORY] = window_frames, decode_s
        self._count += 1
        late_s = queue_s + decode_s - slack_s
        if late_s >= 0:
            self._waits_s.append(min(queue_s, self._bounds.queue_s / _QUEUE_SPARE + late_s))

    def bounds(self) -> PaceBounds:
        """Bounds whose queue and decode figures are learned; row_s and burst_s are the prior's."""
        if self._count >= _WARM and self._count - self._fitted_at >= _REFIT:
            self._bounds = self._fit()
            self._fitted_at = self._count
        return self._bounds

    def _fit(self) -> PaceBounds:
        seen = self._seen[: min(self._count, _MEMORY)]
        frames, decode_s = seen[:, 0], seen[:, 1]
        fixed, slope = self._line(frames, decode_s)
        share = decode_s / np.maximum(fixed + slope * frames, 1e-9)
        upper = max(1e-9, float(np.quantile(share, _UPPER, method="higher")))
        self.usual_share = min(1.0, 1.0 / upper)  # the line itself is what usual ones take
        lower = float(np.quantile(share, _LOWER, method="lower"))
        queue_s = self._prior.queue_s
        if self._waits_s:
            queue_s = _QUEUE_SPARE * float(np.quantile(self._waits_s, _UPPER, method="higher"))
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

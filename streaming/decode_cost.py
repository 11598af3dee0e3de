"""Learns what a window costs in the codec: an upper line ``d0 + d1 * w`` and the queue wait.

The slope d1 is the least-squares slope over recent windows, d0 lifts the line over all but
the slowest ones, and the floor f lowers it below all but the fastest. The queue wait is a
high quantile. Windows of a load long gone are forgotten with the rest of the history.
"""

from __future__ import annotations

import numpy as np

from streaming.bounds import PaceBounds

#: Windows remembered, windows needed before the prior is dropped, windows between two fits.
_MEMORY, _WARM, _REFIT = 256, 8, 8
#: Share of windows that keep to the upper bounds, and to the floor.
_UPPER, _LOWER = 0.98, 0.02


class DecodeCost:
    """The codec's part of the bounds; ``prior`` is used until a few windows were seen."""

    def __init__(self, prior: PaceBounds) -> None:
        self._prior = prior
        self._seen = np.zeros((_MEMORY, 3))  # window frames, queue_s, decode_s
        self._count = 0
        self._fitted_at = 0
        self._bounds = prior

    def observe(self, window_frames: int, queue_s: float, decode_s: float) -> None:
        """One window of ``window_frames`` in all waited ``queue_s`` and took ``decode_s``.

        Raises ValueError for what cannot have been measured.
        """
        if window_frames < 1 or not (0 <= queue_s < np.inf and 0 <= decode_s < np.inf):
            raise ValueError("a window has frames, and finite times that are not negative")
        self._seen[self._count % _MEMORY] = window_frames, queue_s, decode_s
        self._count += 1

    def bounds(self) -> PaceBounds:
        """Bounds whose queue and decode figures are learned; row_s and burst_s are the prior's."""
        if self._count >= _WARM and self._count - self._fitted_at >= _REFIT:
            self._bounds = self._fit()
            self._fitted_at = self._count
        return self._bounds

    def _fit(self) -> PaceBounds:
        seen = self._seen[: min(self._count, _MEMORY)]
        frames, queue_s, decode_s = seen[:, 0], seen[:, 1], seen[:, 2]
        spread = frames - frames.mean()
        if spread.any():
            slope = max(0.0, float(spread @ decode_s / (spread @ spread)))
        else:  # one size of window says nothing about others: keep the prior's proportions
            prior_s = self._prior.decode_s(int(frames[0]))
            share = self._prior.decode_frame_s / prior_s if prior_s else 0.0
            slope = share * float(decode_s.mean())
        rest = decode_s - slope * frames
        fixed = max(0.0, float(np.quantile(rest, _UPPER, method="higher")))
        upper = np.maximum(fixed + slope * frames, 1e-9)
        floor = float(np.quantile(decode_s / upper, _LOWER, method="lower"))
        return PaceBounds(
            row_s=self._prior.row_s,
            burst_s=self._prior.burst_s,
            queue_s=float(np.quantile(queue_s, _UPPER, method="higher")),
            decode_fixed_s=fixed,
            decode_frame_s=slope,
            decode_floor=min(1.0, max(0.0, floor)),
        )

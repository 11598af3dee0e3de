"""Whether a series of samples rises: its slope, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Two-sided 95 % quantiles of Student's t, by degrees of freedom; between them the next lower.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_T |= {10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980}
#: Samples next to each other are alike; means of so many groups of them are nearly not.
_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Trend:
    """``slope`` per unit of x, with its 95 % confidence interval."""

    slope: float
    low: float
    high: float

    @property
    def is_flat(self) -> bool:
        """Whether no rise and no fall is as likely as what was seen."""
        return self.low <= 0.0 <= self.high


def trend(x: Sequence[float], y: Sequence[float], groups: int = _GROUPS) -> Trend:
    """Least squares through the means of ``groups`` equal parts of the series. Raises
    ValueError with fewer than three samples.
    """
    if len(x) != len(y) or len(x) < 3:
        raise ValueError("a trend needs three samples at least")
    parts = min(groups, len(x))
    xs = np.array([part.mean() for part in np.array_split(np.asarray(x, float), parts)])
    ys = np.array([part.mean() for part in np.array_split(np.asarray(y, float), parts)])
    spread = xs - xs.mean()
    squares = float(spread @ spread)
    slope = float(spread @ ys) / squares
    rest = ys - ys.mean() - slope * spread
    freedom = parts - 2
    error = float(np.sqrt(rest @ rest / freedom / squares))
    reach = _quantile(freedom) * error
    return Trend(slope, slope - reach, slope + reach)


def _quantile(freedom: int) -> float:
    return _T[max(known for known in _T if known <= freedom)]

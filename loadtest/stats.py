"""Percentiles, shares and trends with their 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

_Z95 = 1.959964
#: Two-sided 95 % quantiles of Student's t, by degrees of freedom; for others the next lower one.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_T |= {10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980}
#: Neighbouring samples are correlated; the means of this many groups are almost not.
_GROUPS = 20


class Interval(Struct, frozen=True):
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Quantiles(Struct, frozen=True):
    """Percentiles of ``n`` values; None without values."""

    n: int
    p50: Interval | None = None
    p90: Interval | None = None
    p95: Interval | None = None
    p99: Interval | None = None
    max: float | None = None


def percentile_interval(ordered: Sequence[float], share: float) -> Interval:
    """Estimate a percentile of sorted values, with an interval from order statistics.

    The interval assumes nothing about the distribution: the count of values below the true
    percentile is binomial, and its normal approximation gives the ranks. With too few values for a
    rank the interval ends at the least or greatest value, and covers less than 95 % (as for a p99
    of fewer than some 370 values).
    """
    count = len(ordered)
    spread = _Z95 * math.sqrt(count * share * (1 - share))
    low = max(0, math.floor(count * share - spread) - 1)
    high = min(count - 1, math.ceil(count * share + spread))
    value = float(np.quantile(np.asarray(ordered), share))
    # Interpolation rounds: the estimate must not leave its own interval.
    return Interval(min(max(value, ordered[low]), ordered[high]), ordered[low], ordered[high])


def quantiles(values: Sequence[float]) -> Quantiles:
    """Estimate p50, p90, p95 and p99, and find the maximum."""
    if not values:
        return Quantiles(0)
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile_interval(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(len(ordered), p50, p90, p95, p99, ordered[-1])


def share_interval(hits: int, of: int) -> Interval | None:
    """Estimate a share with Wilson's interval; None if ``of`` is 0."""
    if not of:
        return None
    share = hits / of
    z2 = _Z95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    # The bounds of shares 0 and 1 are exact; rounding must not move the estimate out.
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


@dataclass(frozen=True, slots=True)
class Trend:
    """``slope`` per unit of x, with its 95 % confidence interval."""

    slope: float
    low: float
    high: float


def trend(x: Sequence[float], y: Sequence[float], groups: int = _GROUPS) -> Trend:
    """Fit a line by least squares to the means of ``groups`` equal parts of the series. Raises
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
    reach = _T[max(known for known in _T if known <= freedom)] * error
    return Trend(slope, slope - reach, slope + reach)

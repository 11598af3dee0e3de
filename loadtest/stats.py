"""Percentiles and shares with what may be said of them: pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

_Z95 = 1.959964


class Interval(Struct, frozen=True):
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Quantiles(Struct, frozen=True):
    """Of ``n`` values; None where there is none."""

    n: int
    p50: Interval | None = None
    p90: Interval | None = None
    p95: Interval | None = None
    p99: Interval | None = None
    max: float | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, linear between neighbours (numpy's default). Raises on none."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def percentile_interval(ordered: Sequence[float], share: float) -> Interval:
    """With an interval from order statistics, which asks nothing of the distribution.

    The count of values below the true percentile is binomial; its normal approximation gives
    the ranks. Too few values for a rank: the interval ends at the least or greatest value,
    and then covers less than 95 % (a p99 of fewer than some 370 values does).
    """
    count = len(ordered)
    spread = _Z95 * math.sqrt(count * share * (1 - share))
    low = max(0, math.floor(count * share - spread) - 1)
    high = min(count - 1, math.ceil(count * share + spread))
    return Interval(percentile(ordered, share), ordered[low], ordered[high])


def quantiles(values: Sequence[float]) -> Quantiles:
    """p50, p90, p95, p99 and the greatest."""
    if not values:
        return Quantiles(0)
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile_interval(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(len(ordered), p50, p90, p95, p99, ordered[-1])


def share_interval(hits: int, of: int) -> Interval | None:
    """A share with Wilson's interval; None of nothing."""
    if not of:
        return None
    share, z2 = hits / of, _Z95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    # The bounds of nothing and of all are exact; rounding must not move the estimate out.
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))

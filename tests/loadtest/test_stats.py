from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import percentile_interval, quantiles, share_interval, trend

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_quantiles_match_standard_library(values: list[float]) -> None:
    made = quantiles(values)
    percentiles = statistics.quantiles(values, n=100, method="inclusive")
    for mark, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(made, mark).value == pytest.approx(percentiles[share - 1], abs=1e-6)
    assert made.max == max(values)


@given(VALUES)
def test_quantile_intervals_contain_estimates(values: list[float]) -> None:
    made = quantiles(values)
    assert made.n == len(values)
    for mark in (made.p50, made.p90, made.p95, made.p99):
        assert mark is not None
        assert min(values) <= mark.low <= mark.value <= mark.high <= max(values)


def test_percentile_interval_has_stated_coverage() -> None:
    """At least 93 % of 1000 intervals cover ln 10, the 90th percentile of exponential waits."""
    draw = random.Random(3)
    covered = 0
    for _ in range(1000):
        sample = sorted(draw.expovariate(1) for _ in range(200))
        interval = percentile_interval(sample, 0.9)
        covered += interval.low <= np.log(10) <= interval.high
    assert covered >= 930


def test_quantiles_without_values_are_none() -> None:
    assert quantiles([]).p50 is None
    assert share_interval(0, 0) is None


def test_share_interval_is_wilson_interval() -> None:
    # Computed by hand for 8 of 10: (0.8 + z2/20 +- z sqrt(0.016 + z2/400)) / (1 + z2/10)
    made = share_interval(8, 10)
    assert made is not None
    assert (made.value, made.low, made.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-3)
    all_of_them = share_interval(30, 30)
    assert all_of_them is not None
    assert (all_of_them.value, all_of_them.high) == (1, 1)
    assert 0.85 < all_of_them.low < 0.9


def test_trend_of_exact_line_has_zero_width_interval() -> None:
    found = trend(range(100), [3.0 + 0.5 * x for x in range(100)])
    assert (found.slope, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    flat = trend(range(10), [7.0] * 10)
    assert (flat.slope, flat.low, flat.high) == (0.0, 0.0, 0.0)


def test_trend_matches_polyfit() -> None:
    rng = np.random.default_rng(1)
    x, y = np.arange(20.0), rng.normal(size=20)
    found = trend(list(x), list(y))
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    assert found.slope == pytest.approx(slope)
    assert (found.high - found.low) / 2 == pytest.approx(2.131 * np.sqrt(covariance[0, 0]))


def test_trend_interval_has_stated_coverage() -> None:
    rng = np.random.default_rng(2)
    x = np.arange(600.0)
    found = [trend(list(x), list(0.01 * x + rng.normal(size=600))) for _ in range(400)]
    covered = sum(one.low <= 0.01 <= one.high for one in found) / len(found)
    assert 0.9 < covered < 0.99


def test_trend_of_two_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="three samples"):
        trend([0, 1], [0, 1])

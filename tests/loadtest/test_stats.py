from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import percentile, percentile_interval, quantiles, share_interval

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(VALUES, st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    ours = percentile(sorted(values), share)
    assert ours == pytest.approx(np.percentile(values, 100 * share), rel=1e-9, abs=1e-6)


@given(VALUES)
def test_an_interval_holds_its_estimate(values: list[float]) -> None:
    made = quantiles(values)
    assert made.n == len(values)
    for mark in (made.p50, made.p90, made.p95, made.p99):
        assert mark is not None
        assert min(values) <= mark.low <= mark.value <= mark.high <= max(values)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of exponential waits, whose 90th percentile is ln 10. No fewer than 93 % of 1000."""
    draw = random.Random(3)
    covered = 0
    for _ in range(1000):
        sample = sorted(draw.expovariate(1) for _ in range(200))
        interval = percentile_interval(sample, 0.9)
        covered += interval.low <= np.log(10) <= interval.high
    assert covered >= 930


def test_nothing_has_no_quantiles() -> None:
    assert quantiles([]).p50 is None
    assert share_interval(0, 0) is None


def test_shares_have_wilsons_interval() -> None:
    # Worked out by hand for 8 of 10: (0.8 + z2/20 +- z sqrt(0.016 + z2/400)) / (1 + z2/10)
    made = share_interval(8, 10)
    assert made is not None
    assert (made.value, made.low, made.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-3)
    all_of_them = share_interval(30, 30)
    assert all_of_them is not None
    assert (all_of_them.value, all_of_them.high) == (1, 1)
    assert 0.85 < all_of_them.low < 0.9

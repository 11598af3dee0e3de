"""The soak's regression, against what is known of the series."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.trend import trend


def test_a_line_has_its_slope_and_no_doubt() -> None:
    found = trend(range(100), [3.0 + 0.5 * x for x in range(100)])
    assert (found.slope, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert not found.is_flat
    assert trend(range(10), [7.0] * 10).is_flat


def test_it_agrees_with_another_least_squares() -> None:
    rng = np.random.default_rng(1)
    x, y = np.arange(20.0), rng.normal(size=20)
    found = trend(list(x), list(y))
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    assert found.slope == pytest.approx(slope)
    assert (found.high - found.low) / 2 == pytest.approx(2.131 * np.sqrt(covariance[0, 0]))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    x = np.arange(600.0)
    found = [trend(list(x), list(0.01 * x + rng.normal(size=600))) for _ in range(400)]
    covered = sum(one.low <= 0.01 <= one.high for one in found) / len(found)
    assert 0.9 < covered < 0.99


def test_two_samples_are_no_trend() -> None:
    with pytest.raises(ValueError, match="three samples"):
        trend([0, 1], [0, 1])

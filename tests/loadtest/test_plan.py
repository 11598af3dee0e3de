from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadtest.plan import evenly, parse_rate, parse_share, poisson, steps


@pytest.mark.parametrize(
    ("text", "rate"), [("2/s", 2), ("90/min", 1.5), ("0.5", 0.5), (" 7200 / h ", 2), (".5/s", 0.5)]
)
def test_parse_rate_accepts_units(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "0/s", "-1/s", "2/d", "fast", "1/0"])
def test_parse_rate_refuses_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match="a rate is like"):
        parse_rate(text)


def test_parse_share_accepts_percent_and_fraction() -> None:
    assert parse_share("30%") == parse_share("0.3") == pytest.approx(0.3)
    assert parse_share("300%") == 3
    with pytest.raises(ValueError, match="a share is like"):
        parse_share("lots")


def test_arrivals_are_poisson() -> None:
    times = poisson(50, 400, 7, 10**6)
    assert all(a < b for a, b in itertools.pairwise(times))
    assert times[0] > 0
    assert times[-1] < 400
    # Counts per second: a Poisson distribution has equal mean and variance. 5 sigma.
    counts = np.bincount(np.asarray(times).astype(int), minlength=400)
    assert abs(counts.mean() - 50) < 5 * (50 / 400) ** 0.5
    assert 0.65 < counts.var() / 50 < 1.4
    # Waits are exponential: a share of 1 - 1/e is shorter than the mean.
    waits = np.diff(times)
    assert (waits < 1 / 50).mean() == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_poisson_with_same_seed_is_prefix_of_longer_run() -> None:
    short, long = poisson(3, 20, 5, 1000), poisson(3, 50, 5, 1000)
    assert long[: len(short)] == short
    assert poisson(3, 20, 6, 1000) != short
    assert poisson(3, 50, 5, 4) == long[:4]


def test_arrivals_and_sweep_loads_are_evenly_spaced() -> None:
    assert evenly(4, 2.0) == (0, 0.5, 1, 1.5)
    assert steps(0.1, 3, 1) == (3,)
    loads = steps(0.1, 3, 5)
    assert (loads[0], loads[-1]) == (0.1, 3)
    ratios = {round(b / a, 9) for a, b in itertools.pairwise(loads)}
    assert len(ratios) == 1
    with pytest.raises(ValueError, match="a sweep goes"):
        steps(0, 1, 3)

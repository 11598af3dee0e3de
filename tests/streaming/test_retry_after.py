from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from streaming.capacity import RetryAfter


def seen(*durations_s: float) -> RetryAfter:
    retry_after = RetryAfter()
    for duration in durations_s:
        retry_after.on_released(duration)
    return retry_after


def test_retry_after_averages_remaining_time_at_same_age() -> None:
    retry_after = seen(1.0, 3.0, 5.0)
    assert retry_after.remaining_s(0.0) == pytest.approx(3.0)
    assert retry_after.remaining_s(2.0) == pytest.approx(2.0)
    assert retry_after.remaining_s(4.0) == pytest.approx(1.0)
    assert retry_after.remaining_s(10.0) == pytest.approx(10.0)


def test_retry_after_is_sooner_with_many_held_slots() -> None:
    one = seen(4.0).estimate_s([0.0], 1, 0.0)
    many = seen(4.0).estimate_s([0.0] * 8, 1, 0.0)
    assert one == pytest.approx(4.0)
    assert many == pytest.approx(0.5)
    assert seen(4.0).estimate_s([0.0] * 8, 3, 0.0) == pytest.approx(1.5)


def test_retry_after_is_sooner_for_old_slot() -> None:
    assert seen(4.0, 4.1).estimate_s([3.5], 1, 0.0) < seen(4.0, 4.1).estimate_s([0.1], 1, 0.0)


def test_retry_after_spreads_waiting_callers() -> None:
    retry_after = seen(4.0)
    waits = [retry_after.estimate_s([0.0] * 4, 1, 700.0) for _ in range(6)]
    assert waits[:5] == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert waits[5] == pytest.approx(5.0), "nobody waits for more than one turnover of all slots"
    assert retry_after.estimate_s([0.0] * 4, 1, 710.0) == pytest.approx(1.0), "they have come back"


def test_retry_after_is_right_on_average() -> None:
    """The first of ten slots, each held for 5 s on average, comes free in 0.5 s on average."""
    rng, told = Random(3), []
    for _ in range(400):
        retry_after = seen(*(rng.expovariate(1 / 5) for _ in range(64)))
        told.append(retry_after.estimate_s([rng.expovariate(1 / 5) for _ in range(10)], 1, 0.0))
    # The standard error is 1 %. Old slots are compared with few longer ones, and the mean of 1 / x
    # is more than 1 / the mean of x: therefore the estimate is 3 to 4 % too short.
    assert fmean(told) == pytest.approx(0.5, rel=0.08)


def test_retry_after_forgets_old_durations() -> None:
    retry_after = seen(*[100.0] * 200, *[2.0] * 64)
    assert retry_after.remaining_s(0.0) == pytest.approx(2.0)


def test_retry_after_has_minimum() -> None:
    assert seen(4.0).remaining_s(3.999999) >= 0.05
    assert seen(0.0).estimate_s([0.0], 1, 0.0) >= 0.05


def test_retry_after_defaults_to_few_seconds() -> None:
    assert 1 < RetryAfter().estimate_s([0.0], 1, 0.0) < 10

from __future__ import annotations

from random import Random

import pytest

from streaming.departures import Departures


def seen(*stays_s: float) -> Departures:
    departures = Departures()
    for stay in stays_s:
        departures.on_left(stay)
    return departures


def test_what_is_left_of_a_stay_is_the_mean_of_those_that_lasted_longer() -> None:
    departures = seen(1.0, 3.0, 5.0)
    assert departures.left_s(0.0) == pytest.approx(3.0)
    assert departures.left_s(2.0) == pytest.approx(2.0)
    assert departures.left_s(4.0) == pytest.approx(1.0)
    assert departures.left_s(10.0) == pytest.approx(10.0)


def test_of_many_the_first_leaves_sooner() -> None:
    one = seen(4.0).wait_s([0.0], 1, 0.0)
    many = seen(4.0).wait_s([0.0] * 8, 1, 0.0)
    assert one == pytest.approx(4.0)
    assert many == pytest.approx(0.5)
    assert seen(4.0).wait_s([0.0] * 8, 3, 0.0) == pytest.approx(1.5)


def test_an_old_stay_ends_sooner_than_a_young_one() -> None:
    assert seen(4.0, 4.1).wait_s([3.5], 1, 0.0) < seen(4.0, 4.1).wait_s([0.1], 1, 0.0)


def test_those_who_wait_are_not_all_told_the_same_time() -> None:
    departures = seen(4.0)
    waits = [departures.wait_s([0.0] * 4, 1, 700.0) for _ in range(6)]
    assert waits[:5] == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert waits[5] == pytest.approx(5.0), "nobody waits for more than one change of all places"
    assert departures.wait_s([0.0] * 4, 1, 710.0) == pytest.approx(1.0), "they have come back"


def test_the_hint_is_right_on_average() -> None:
    rng, departures = Random(3), Departures()
    for _ in range(64):
        departures.on_left(rng.expovariate(1 / 5))
    told, true = [], []
    for number in range(400):
        lasts = [rng.expovariate(1 / 5) for _ in range(10)]
        ages = [rng.expovariate(1 / 5) for _ in range(10)]
        told.append(departures.wait_s(ages, 1, 1000.0 * number))
        true.append(min(lasts))  # what is left does not depend on the age
    assert sum(told) / sum(true) == pytest.approx(1.0, abs=0.5)


def test_only_the_last_stays_count() -> None:
    departures = seen(*[100.0] * 200, *[2.0] * 64)
    assert departures.left_s(0.0) == pytest.approx(2.0)


def test_nobody_is_told_to_come_at_once() -> None:
    assert seen(4.0).left_s(3.999999) >= 0.05
    assert seen(0.0).wait_s([0.0], 1, 0.0) >= 0.05


def test_before_anybody_left_a_few_seconds_are_guessed() -> None:
    assert 1 < Departures().wait_s([0.0], 1, 0.0) < 10

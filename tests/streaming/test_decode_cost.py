from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.latency import DecodeCostEstimator
from tests.streaming.schedule_cases import PRIOR

WINDOWS = st.tuples(st.integers(1, 200), st.floats(0, 2), st.floats(0, 2))


@given(st.lists(WINDOWS, min_size=8, max_size=40))
def test_bounds_are_valid_and_hold_for_most_windows(
    windows: list[tuple[int, float, float]],
) -> None:
    cost = DecodeCostEstimator(PRIOR)
    for window in windows:
        cost.observe(*window)
    bounds = cost.bounds()  # PaceBounds validates its fields
    for within in (
        [seconds <= bounds.decode_s(frames) * (1 + 1e-9) + 1e-8 for frames, _, seconds in windows],
        [queue <= bounds.queue_s for _, queue, _ in windows],
    ):
        assert within.count(False) <= 1, "of few windows the worst does not count"


def test_fixed_cost_is_never_negative() -> None:
    # Seen in a running service: rounding gave a fixed part of -1.7e-18.
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        cost = DecodeCostEstimator(PRIOR)
        for _ in range(8):
            frames = int(rng.integers(5, 60))
            cost.observe(frames, 0.0, frames**2 * rng.uniform(1e-5, 2e-5))
        assert cost.bounds().decode_fixed_s >= 0


@pytest.mark.parametrize(
    "wrong",
    [
        (0, 0.0, 0.0),
        (1, -1.0, 0.0),
        (1, 0.0, float("nan")),
        (1, 0.0, float("inf")),
        (1, 0.0, 0.0, 0.0, 0),  # in a batch of no window
    ],
)
def test_observe_refuses_impossible_measurement(
    wrong: tuple[int, float, float] | tuple[int, float, float, float, int],
) -> None:
    with pytest.raises(ValueError, match="window"):
        DecodeCostEstimator(PRIOR).observe(*wrong)


def windows(rng: Random, fixed_s: float, frame_s: float) -> list[tuple[int, float, float]]:
    sizes = [rng.choice([5, 16, 30, 64]) for _ in range(200)]
    return [
        (size, rng.uniform(0, 0.01), (fixed_s + frame_s * size) * rng.uniform(0.9, 1))
        for size in sizes
    ]


@pytest.mark.parametrize(("fixed_s", "frame_s"), [(0.005, 0.0005), (0.01, 0.004), (0.02, 0.0)])
def test_decode_cost_is_close_upper_line(fixed_s: float, frame_s: float) -> None:
    cost, seen = DecodeCostEstimator(PRIOR), windows(Random(2), fixed_s, frame_s)
    for window in seen:
        cost.observe(*window)
    bounds = cost.bounds()
    above = [decode_s <= bounds.decode_s(size) for size, _, decode_s in seen]
    assert sum(above) >= 0.99 * len(above)
    floor = [decode_s >= bounds.decode_floor * bounds.decode_s(size) for size, _, decode_s in seen]
    assert sum(floor) >= 0.95 * len(floor)
    for size in (5, 30, 64, 100):
        assert bounds.decode_s(size) == pytest.approx(fixed_s + frame_s * size, rel=0.1)
    assert bounds.decode_floor > 0.75
    assert 0.018 <= bounds.queue_s <= 0.02  # twice the longest wait, since a queue has a long tail
    assert (bounds.row_s, bounds.burst_s) == (PRIOR.row_s, PRIOR.burst_s)


def test_single_window_size_keeps_proportions_of_prior() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for _ in range(20):
        cost.observe(10, 0.0, 0.2)
    bounds = cost.bounds()
    assert bounds.decode_s(10) == pytest.approx(0.2)
    assert bounds.decode_s(20) == pytest.approx(0.2 * PRIOR.decode_s(20) / PRIOR.decode_s(10))


def test_prior_holds_for_first_windows() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for _ in range(7):
        cost.observe(10, 1.0, 1.0)
    assert cost.bounds() == PRIOR
    cost.observe(10, 1.0, 1.0)
    assert cost.bounds().queue_s == 2.0


def test_harmless_waits_do_not_raise_queue_bound() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for _ in range(20):
        cost.observe(10, 3.0, 0.01, slack_s=4.0)
    assert cost.bounds().queue_s == PRIOR.queue_s, "no window was in a hurry"
    for _ in range(20):
        cost.observe(10, 0.03, 0.01)
        cost.observe(10, 3.0, 0.01, slack_s=4.0)
    assert cost.bounds().queue_s == pytest.approx(2 * 0.03)
    for _ in range(20):
        cost.observe(10, 3.0, 0.01, slack_s=3.0)  # 10 ms too late
    assert cost.bounds().queue_s == pytest.approx(2 * 0.03 + 2 * 0.01)


def test_usual_share_gives_cost_of_typical_window() -> None:
    cost = DecodeCostEstimator(PRIOR)
    assert cost.usual_share == 1
    for number in range(80):
        cost.observe(20, 0.0, 0.1 if number == 40 else 0.01)
    cost.bounds()
    assert cost.bounds().decode_s(20) == pytest.approx(0.1)
    assert cost.bounds().decode_s(20) * cost.usual_share == pytest.approx(0.01, rel=0.2)


def test_time_of_other_windows_in_batch_counts_as_wait() -> None:
    """The warm-up decodes eight streams in a batch, which is not the cost of a single window."""
    cost = DecodeCostEstimator(PRIOR)
    for number in range(40):
        batch = 8 if number % 2 else 1
        cost.observe(20, 0.0, 0.01 * batch, slack_s=1.0, batch=batch)
    assert cost.bounds().decode_s(20) == pytest.approx(0.01)
    assert cost.bounds().queue_s == PRIOR.queue_s
    for _ in range(8):
        cost.observe(20, 0.004, 0.08, slack_s=0.0, batch=8)  # the other windows are a wait
    assert cost.bounds().queue_s == pytest.approx(2 * (0.004 + 0.07))


def test_decode_cost_follows_change() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for window in windows(Random(3), 0.1, 0.01):
        cost.observe(*window, now=1.0)
    for window in windows(Random(4), 0.005, 0.0005):
        cost.observe(*window, now=40.0)
    assert cost.bounds().decode_s(64) < 0.05


def test_waits_of_earlier_load_are_forgotten() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for number in range(400):
        cost.observe(20, 0.5 if number < 100 else 0.01, 0.01, now=0.2 * number)
    assert cost.bounds().queue_s == pytest.approx(2 * 0.01)


def test_wait_is_forgotten_without_further_waits() -> None:
    """With a single stream, at most one window of an utterance waits."""
    cost = DecodeCostEstimator(PRIOR)
    for number in range(100):
        cost.observe(20, 0.5 if number in (50, 60) else 0.0, 0.01, now=0.1 * number)
    assert cost.bounds(10.0).queue_s == pytest.approx(2 * 0.5)
    for number in range(40):
        cost.observe(20, 0.0, 0.01, slack_s=1.0, now=10.0 + number)
    assert cost.bounds(50.0).queue_s == PRIOR.queue_s, "no window was in a hurry"


def test_few_windows_remain_until_others_come_however_old_they_are() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for number in range(32):
        cost.observe(20, 0.5 if number < 2 else 0.0, 0.01, now=0.1 * number)
    assert cost.bounds(1000.0).queue_s == pytest.approx(2 * 0.5)
    for number in range(31):
        cost.observe(20, 0.0, 0.01, now=1000.0 + number)
    assert cost.bounds(1040.0).queue_s == pytest.approx(0.0), "what happened once is no rule"


@pytest.mark.parametrize("at", range(8))
def test_one_slow_window_of_first_eight_does_not_count(at: int) -> None:
    cost = DecodeCostEstimator(PRIOR)
    for number in range(8):
        frames = 1 << number
        cost.observe(frames, 0.0, 0.005 + 0.0005 * frames + (0.5 if number == at else 0.0))
    bounds = cost.bounds()
    assert max(bounds.decode_s(frames) + cost.stolen_s for frames in (1, 4, 16)) < 0.05


def test_lost_processor_counts_as_burst_or_stretch_whichever_is_less() -> None:
    """A short window is hardly delayed by what long ones lose in proportion to their length."""

    def learned(lost: Callable[[int], float]) -> tuple[float, float]:
        cost = DecodeCostEstimator(PRIOR)
        for number in range(100):
            frames = (1, 4, 16, 32)[number % 4]
            busy_s = 0.008 + 0.0015 * frames
            late_s = lost(frames) if number % 10 < 3 else 0.0
            cost.observe(frames, 0.0, busy_s + late_s, 1.0, busy_s=busy_s, now=0.1 * number)
        return cost.bounds(10.0).decode_s(1), cost.stolen_s

    decode_s, stolen_s = learned(lambda frames: 0.8 * (0.008 + 0.0015 * frames))
    assert decode_s + stolen_s < 2 * 0.0095
    decode_s, stolen_s = learned(lambda frames: 0.04)
    assert stolen_s > 0.03
    assert 0.0495 <= decode_s + stolen_s < 0.07


def test_wait_counts_if_decoding_misses_deadline() -> None:
    cost = DecodeCostEstimator(PRIOR)
    for _ in range(20):
        cost.observe(10, 0.03, 0.05, slack_s=0.06)
    assert cost.bounds().queue_s == pytest.approx(2 * 0.03)

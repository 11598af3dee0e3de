from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import PaceBounds, ScheduleSettings, start_frames, sustainable_frames
from streaming.latency import PaceEstimator
from streaming.ports import Arrival
from tests.streaming.schedule_cases import PRIOR

FRAME_S = 0.04
SETTINGS = ScheduleSettings(frame_s=FRAME_S, delay_rows=7, left_context_frames=10)


def hear(estimator: PaceEstimator, times: Sequence[float]) -> None:
    """Observe one stream whose rows come one by one at ``times``."""
    stream = estimator.open()
    for at in times:
        stream.observe(1, at)
    stream.close()


def steady(row_s: float, rows: int = 100, start: float = 0.0) -> list[float]:
    return [start + i * row_s for i in range(rows)]


def keeps_to(times: Sequence[float], bounds: PaceBounds) -> bool:
    """The definition: no two rows i < j are further apart than (j - i) S + B."""
    return all(
        times[j] - times[i] <= (j - i) * bounds.row_s + bounds.burst_s + 1e-9
        for j in range(len(times))
        for i in range(j)
    )


batches = st.lists(
    st.tuples(st.integers(1, 4), st.floats(0, 0.3, allow_subnormal=False)),
    min_size=10,
    max_size=25,
)


@given(batches)
def test_lateness_is_smallest_burst_that_fits_definition(
    steps: list[tuple[int, float]],
) -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    stream = estimator.open()
    now, times = 5.0, []
    for count, step in steps:
        now += step
        stream.observe(count, now)
        times += [now] * count
    for index, row_s in enumerate(estimator.rates_s):
        pairs = [times[j] - times[i] - (j - i) * row_s for j in range(len(times)) for i in range(j)]
        assert stream.lateness_s[index] == pytest.approx(max(0.0, *pairs), abs=1e-9)
    assert stream.rows == sum(count for count, _ in steps[1:])


def test_bounds_hold_for_observed_streams() -> None:
    rng = Random(1)
    for rho in (0.1, 0.3, 0.45):
        estimator, streams = PaceEstimator(FRAME_S, PRIOR), []
        for _ in range(40):
            steps = [rho * FRAME_S * rng.lognormvariate(0, 0.3) for _ in range(60)]
            streams.append(np.cumsum(steps).tolist())
            hear(estimator, streams[-1])
        bounds = estimator.bounds(SETTINGS)
        kept = [keeps_to(times, bounds) for times in streams]
        assert kept.count(False) <= 1, "of few streams the worst does not count"
        assert start_frames(SETTINGS, bounds, left_frames=0) <= 4


def test_slow_talker_is_bounded_by_lower_quantile() -> None:
    def learned(row_s: float) -> PaceBounds:
        estimator = PaceEstimator(FRAME_S, PRIOR)
        for index in range(60):
            times = steady(row_s)
            late = 0.5 if index % 20 == 0 else 0.0  # one stream in twenty stalls
            hear(estimator, times[:50] + [at + late for at in times[50:]])
        return estimator.bounds(SETTINGS)

    stall_s = 0.5 - 0.2
    assert learned(0.3 * FRAME_S).burst_s > stall_s
    assert learned(0.8 * FRAME_S).burst_s < stall_s


def test_prior_holds_until_enough_streams_were_observed() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    assert estimator.bounds(SETTINGS) == PRIOR
    for count in range(7):
        hear(estimator, steady(0.004, start=10.0 * count))
        bounds = estimator.bounds(SETTINGS)
        assert bounds.row_s >= PRIOR.row_s
        assert bounds.burst_s >= PRIOR.burst_s
    hear(estimator, steady(0.004, start=90.0))
    bounds = estimator.bounds(SETTINGS)
    assert bounds.row_s < PRIOR.row_s
    assert bounds.burst_s < 0.01


def test_optimistic_prior_is_corrected_by_first_stream() -> None:
    estimator = PaceEstimator(FRAME_S, replace(PRIOR, row_s=0.004, burst_s=0.0))
    times = steady(0.8 * FRAME_S)
    stream = estimator.open()
    for at in times[:30]:
        stream.observe(1, at)
    assert keeps_to(times[:30], estimator.bounds(SETTINGS))  # while the stream is open
    for at in times[30:]:
        stream.observe(1, at)
    stream.close()
    assert keeps_to(times, estimator.bounds(SETTINGS))


def test_prior_slower_than_every_tried_rate_is_kept() -> None:
    estimator = PaceEstimator(FRAME_S, replace(PRIOR, row_s=1.0))
    hear(estimator, steady(0.9))
    bounds = estimator.bounds(SETTINGS)
    assert bounds.row_s == 1.0
    assert bounds.burst_s >= PRIOR.burst_s


def run_together(estimator: PaceEstimator, streams: int, row_s: float, start: float) -> float:
    """Observe ``streams`` together, each with a row every ``row_s`` seconds; return the end."""
    opened = [estimator.open() for _ in range(streams)]
    times = steady(row_s, start=start)
    for at in times:
        for stream in opened:
            stream.observe(1, at)
    for stream in opened:
        stream.close()
    return times[-1]


def test_bounds_follow_load() -> None:
    estimator, now = PaceEstimator(FRAME_S, PRIOR), 0.0
    for _ in range(10):  # rows come ten times slower with 16 streams than with one
        for _ in range(16):
            now = run_together(estimator, 1, 0.002, now)
        now = run_together(estimator, 16, 0.02, now)
    alone = estimator.bounds(SETTINGS)
    beside = [estimator.open() for _ in range(16)]
    loaded = estimator.bounds(SETTINGS)
    assert keeps_to(steady(0.002), alone)
    assert not keeps_to(steady(0.02), alone)
    assert keeps_to(steady(0.02), loaded)
    for stream in beside:
        stream.close()
    assert estimator.bounds(SETTINGS) == alone


def test_bounds_follow_new_load_before_its_streams_end() -> None:
    estimator, now = PaceEstimator(FRAME_S, PRIOR), 0.0
    for _ in range(200):
        now = run_together(estimator, 1, 0.004, now)
    assert not keeps_to(steady(0.03, 20), estimator.bounds(SETTINGS))
    opened = [estimator.open() for _ in range(8)]
    for at in steady(0.03, 20, start=now):
        for stream in opened:
            stream.observe(1, at)
    assert keeps_to(steady(0.03, 20), estimator.bounds(SETTINGS))


def test_old_streams_of_same_load_are_forgotten() -> None:
    estimator, now = PaceEstimator(FRAME_S, PRIOR), 0.0
    for _ in range(64):
        now = run_together(estimator, 1, 0.03, now)
    for _ in range(64):
        now = run_together(estimator, 1, 0.004, now)
    assert not keeps_to(steady(0.03), estimator.bounds(SETTINGS))


def test_pause_does_not_count_as_pace() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    for index in range(10):
        stream, start = estimator.open(), 100.0 * index
        for at in steady(0.004, 50, start):
            stream.observe(1, at)
        stream.pause()
        for at in steady(0.004, 50, start + 30):
            stream.observe(1, at)
        stream.close()
    assert estimator.bounds(SETTINGS).burst_s < 0.1


def test_pause_reported_by_rows_does_not_count_as_pace() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    estimator = PaceEstimator(FRAME_S, PRIOR, capacity)
    for index in range(10):
        stream, start = estimator.open(), 100.0 * index
        for at in steady(0.004, 100, start):
            stream.observe(1, at)
        held = [
            Arrival(1, at) for at in steady(0.004, 50, start + 0.4)
        ]  # generated before the pause
        stream.pause()
        stream.observe_all([*held, Arrival(0, start + 30)])
        stream.observe_all([Arrival(1, at) for at in steady(0.004, 50, start + 30.1)])
        stream.close()
    assert estimator.bounds(SETTINGS).burst_s < 0.1
    assert capacity.talker.row_s(1, 930.0) == pytest.approx(0.004, rel=0.05)


def test_short_streams_are_ignored_and_memory_is_bounded() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    for _ in range(50):
        hear(estimator, steady(0.2, 10))
    assert estimator.bounds(SETTINGS) == PRIOR
    for index in range(600):
        hear(estimator, steady(0.004, 20, start=float(index)))
    assert estimator.live == 0
    assert len(estimator._lateness_s) == len(estimator._about) == 256
    stream = estimator.open()
    stream.observe(0, 1.0)
    stream.close()
    stream.close()
    assert stream.rows == 0


# -- with the codec's cost


def test_streams_that_begin_together_expect_longer_waits() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    alone = estimator.bounds(SETTINGS)
    streams = [estimator.open() for _ in range(5)]
    together = estimator.bounds(SETTINGS)
    chunk = sustainable_frames(SETTINGS, alone)
    window = chunk + SETTINGS.lookahead_frames
    assert together.beginners_s == pytest.approx(4 * PRIOR.decode_s(window))
    assert together.wait_s == alone.queue_s + together.beginners_s
    assert sustainable_frames(SETTINGS, together) == sustainable_frames(SETTINGS, alone)
    first, first_alone = (start_frames(SETTINGS, b, left_frames=99) for b in (together, alone))
    more_s = (first - first_alone) * FRAME_S
    assert more_s == pytest.approx(4 * PRIOR.decode_s(window), abs=FRAME_S)
    for stream in streams:
        for at in steady(0.004, 40):
            stream.observe(1, at)
    assert estimator.bounds(SETTINGS).wait_s == alone.wait_s


def test_each_of_several_workers_has_its_part_of_windows_and_streams() -> None:
    """Five streams and eight windows on two workers are as three and four on one."""
    two, one = PaceEstimator(FRAME_S, PRIOR), PaceEstimator(FRAME_S, PRIOR)
    two.decode.workers = 2
    alone = one.bounds(SETTINGS)
    assert two.bounds(SETTINGS) == alone, "a stream alone has one of them"
    for _ in range(5):
        two.open()
    for _ in range(3):
        one.open()
    assert two.bounds(SETTINGS, windows=7) == one.bounds(SETTINGS, windows=3)
    assert one.bounds(SETTINGS, windows=3).beginners_s > 0


def test_codec_share_is_divided_among_windows_in_codec() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    assert estimator.bounds(SETTINGS, windows=3).codec_share == pytest.approx(0.8 / 4)
    for number in range(300):  # one in ten takes 1.5 times as long
        estimator.decode.observe(20, 0.0, 0.03 if number % 10 else 0.045)
    bounds = estimator.bounds(SETTINGS, windows=3)
    usual_s = bounds.codec_share * bounds.decode_s(20) / 0.045
    assert usual_s == pytest.approx(0.2 * 1.4, rel=0.1), "bounds reckon with the slow ones"


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 10), st.floats(0, 10)), max_size=40),
    st.booleans(),
)
def test_any_measurement_gives_usable_bounds(
    seen: list[tuple[int, float, float]], free: bool
) -> None:
    nothing = PaceBounds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    estimator = PaceEstimator(FRAME_S, nothing if free else PRIOR)
    for frames, queue_s, decode_s in seen:
        estimator.decode.observe(frames, queue_s, decode_s)
    hear(estimator, [decode_s for _, decode_s in sorted((f, d) for f, _, d in seen)])
    bounds = estimator.bounds(SETTINGS)  # PaceBounds validates its fields
    assert start_frames(SETTINGS, bounds, left_frames=100) >= 1


@given(batches, st.integers(1, 12), st.booleans())
def test_rows_reported_together_count_like_single_reports(
    steps: list[tuple[int, float]], together: int, paused: bool
) -> None:
    one_by_one, in_groups = (
        PaceEstimator(FRAME_S, PRIOR).open(),
        PaceEstimator(FRAME_S, PRIOR).open(),
    )
    now, came = 0.0, []
    for count, step_s in 4 * steps:
        now += step_s
        came.append(Arrival(count, now))
    for first in range(0, len(came), together):
        group = came[first : first + together]
        in_groups.observe_all(group)
        for count, at, _ in group:
            one_by_one.observe(count, at)
            assert one_by_one.lateness_s.min() >= 0  # counted at once, not in blocks
        if paused and first % 3 == 0:
            one_by_one.pause()
            in_groups.pause()
    assert in_groups.lateness_s == pytest.approx(one_by_one.lateness_s, abs=1e-9)
    assert in_groups.rows == one_by_one.rows
    assert in_groups.elapsed_s == pytest.approx(one_by_one.elapsed_s)


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(0.0, 3.0)), min_size=6, max_size=30))
def test_evenly_generated_rows_count_like_single_rows(
    steps: list[tuple[int, float]],
) -> None:
    together, singly = (PaceEstimator(FRAME_S, PRIOR).open() for _ in range(2))
    now = 0.0
    for count, step_s in [(1, 0.0), *steps]:
        together.observe_all((Arrival(count, now + step_s, evenly=True),))
        for row in range(count):
            singly.observe(1, now + step_s * (row + 1) / count)
        now += step_s
    assert together.lateness_s == pytest.approx(singly.lateness_s, abs=1e-9)
    assert together.rows == singly.rows
    assert together.elapsed_s == pytest.approx(singly.elapsed_s)

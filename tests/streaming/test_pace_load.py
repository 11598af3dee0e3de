"""Effect of the running streams on the bounds of a new one."""

from __future__ import annotations

from dataclasses import replace

from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import start_frames
from streaming.latency import PaceEstimator
from tests.streaming.schedule_cases import FRAME_S, PRIOR, SETTINGS


def test_paused_stream_does_not_count_as_running() -> None:
    estimator = PaceEstimator(FRAME_S, PRIOR)
    one, two = estimator.open(), estimator.open()
    one.observe(1, 0.0)
    one.pause()
    assert (estimator.live, estimator.running) == (2, 1)
    one.observe(1, 1.0)
    assert estimator.running == 2
    one.close()
    two.close()
    assert (estimator.live, estimator.running) == (0, 0)


def test_bounds_row_s_grows_with_open_streams() -> None:
    def row_s(live: int) -> float:
        estimator = PaceEstimator(FRAME_S, PRIOR, Capacity(CapacitySettings(FRAME_S, 64)))
        for count in (1, 8) * 40:  # a talker without parallelism
            start, streams = estimator.now + 0.1, [estimator.open() for _ in range(count)]
            for row in range(1, 41):
                for stream in streams:
                    stream.observe(1, start + 0.002 * count * row)
            for stream in streams:
                stream.close()
        for _ in range(live):
            estimator.open()
        return estimator.bounds(SETTINGS).row_s

    assert row_s(8) > row_s(1)


def test_bounds_of_very_slow_talker_keep_its_rate() -> None:
    """At every tried rate the start is then limited by ``max_hold_frames``."""
    settings = replace(SETTINGS, max_hold_frames=60)
    estimator = PaceEstimator(FRAME_S, PRIOR)
    row_s = 4 * FRAME_S
    for number in range(10):
        stream = estimator.open()
        for row in range(100):
            stream.observe(1, 100.0 * number + row * row_s)
        stream.close()
    bounds = estimator.bounds(settings)
    assert start_frames(settings, bounds, left_frames=settings.horizon_frames) == 60
    assert bounds.row_s >= row_s
    assert bounds.burst_s < row_s

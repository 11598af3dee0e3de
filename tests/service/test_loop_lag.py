"""Lag of the event loop, waits that end together, and free file descriptors."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import timers as heartbeat
from service.timers import align_deadline, beat, missed
from tests.service.live import gateway
from tests.waiting import until

TIMES = st.floats(0, 1e6, allow_nan=False)


@given(TIMES, TIMES, st.floats(0.06, 10))
def test_align_deadline_ends_long_waits_early_at_common_moments(
    one: float, other: float, s: float
) -> None:
    ends = [now + align_deadline(s, now) for now in (one, other)]
    for now, end in zip((one, other), ends, strict=True):
        assert now + s - 0.025 - 1e-6 <= end <= now + s + 1e-6
    apart = (ends[1] - ends[0]) / 0.025
    assert math.isclose(apart, round(apart), abs_tol=1e-5)


@given(TIMES, st.floats(0, 0.05))
def test_align_deadline_keeps_short_waits(now: float, s: float) -> None:
    assert align_deadline(s, now) == s


async def test_beat_reports_freeze_for_full_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    now, naps = 0.0, iter([0.25, 0.25, 4.25, 0.25])

    async def sleep(seconds: float) -> None:
        nonlocal now
        nap = next(naps, None)
        if nap is None:
            raise asyncio.CancelledError
        now += nap

    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(heartbeat, "asyncio", SimpleNamespace(sleep=sleep))
    seen: list[float] = []
    with pytest.raises(asyncio.CancelledError):
        await beat(seen.append)
    assert seen == [0.0, 0.0, *(4.0 - 0.25 * n for n in range(16)), 0.0]


@given(st.floats(-1.0, 50.0))
def test_missed_counts_four_timers_per_second_of_lag(late_s: float) -> None:
    told = missed(late_s)
    assert told[0] == max(0.0, late_s)
    assert len(told) == max(1, math.ceil(late_s * 4))
    assert all(one > 0 for one in told[1:])


def test_missed_is_limited_after_long_stop() -> None:
    assert len(missed(3600.0)) == 240


async def test_lack_of_file_descriptors_is_logged_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_FILES_PERIOD_S", 0.01)
    caplog.set_level(logging.INFO)

    def told() -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with gateway():
        caplog.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            full = ("ERROR", "no file descriptor is free: new clients are closed unanswered")
            await until(lambda: full in told())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: ("INFO", "file descriptors are free again") in told())
    assert told().count(full) == 1

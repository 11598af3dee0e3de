"""How late the loop is, and waits that end together."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import timers as heartbeat
from service.timers import align_deadline, beat, missed

TIMES = st.floats(0, 1e6, allow_nan=False)


@given(TIMES, TIMES, st.floats(0.06, 10))
def test_long_waits_end_at_few_moments_and_never_later(one: float, other: float, s: float) -> None:
    ends = [now + align_deadline(s, now) for now in (one, other)]
    for now, end in zip((one, other), ends, strict=True):
        assert now + s - 0.025 - 1e-6 <= end <= now + s + 1e-6
    apart = (ends[1] - ends[0]) / 0.025
    assert math.isclose(apart, round(apart), abs_tol=1e-5)


@given(TIMES, st.floats(0, 0.05))
def test_short_waits_are_left_alone(now: float, s: float) -> None:
    assert align_deadline(s, now) == s


async def test_a_freeze_counts_for_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_timers_are_told_four_times_a_second_and_none_before_its_time(late_s: float) -> None:
    told = missed(late_s)
    assert told[0] == max(0.0, late_s)
    assert len(told) == max(1, math.ceil(late_s * 4))
    assert all(one > 0 for one in told[1:])


def test_a_stop_of_an_hour_is_not_told_for_long() -> None:
    assert len(missed(3600.0)) == 240

"""Waits that end together."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from service.heartbeat import together_s

TIMES = st.floats(0, 1e6, allow_nan=False)


@given(TIMES, TIMES, st.floats(0.06, 10))
def test_long_waits_end_at_few_moments_and_never_later(one: float, other: float, s: float) -> None:
    ends = [now + together_s(s, now) for now in (one, other)]
    for now, end in zip((one, other), ends, strict=True):
        assert now + s - 0.025 - 1e-6 <= end <= now + s + 1e-6
    apart = (ends[1] - ends[0]) / 0.025
    assert math.isclose(apart, round(apart), abs_tol=1e-5)


@given(TIMES, st.floats(0, 0.05))
def test_short_waits_are_left_alone(now: float, s: float) -> None:
    assert together_s(s, now) == s

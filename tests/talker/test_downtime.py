"""``Downtime``: the retry hint for clients while the talker process is down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streaming.errors import ErrorCode
from talker.pending_requests import RETRY_AFTER_MS, Downtime


class Clock:
    """A clock that the tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("talker.pending_requests.time", SimpleNamespace(monotonic=made.monotonic))
    return made


def hint(downtime: Downtime) -> int | None:
    error = downtime.error()
    assert error.code is ErrorCode.ENGINE_RESTARTING
    assert error.retryable
    return error.retry_after_ms


def start(downtime: Downtime, clock: Clock, seconds: float) -> None:
    downtime.begin()
    clock.now += seconds
    downtime.end()


def test_retry_after_is_default_before_first_timed_start(clock: Clock) -> None:
    downtime = Downtime()
    assert hint(downtime) == RETRY_AFTER_MS
    downtime.begin()
    clock.now += 60
    assert hint(downtime) == RETRY_AFTER_MS


def test_retry_after_counts_down_from_last_start_duration(clock: Clock) -> None:
    downtime = Downtime()
    start(downtime, clock, 30)
    clock.now += 500
    downtime.begin()
    assert hint(downtime) == 30_000
    clock.now += 18
    assert hint(downtime) == 12_000
    clock.now += 7
    downtime.end()  # a shorter start than the one before
    downtime.begin()
    assert hint(downtime) == 25_000


def test_retry_after_has_minimum_when_start_overruns(clock: Clock) -> None:
    downtime = Downtime()
    start(downtime, clock, 30)
    downtime.begin()
    for _ in range(3):
        clock.now += 29.9
        assert hint(downtime) == (RETRY_AFTER_MS // 4)


def test_uptime_does_not_change_start_duration(clock: Clock) -> None:
    downtime = Downtime()
    start(downtime, clock, 30)
    clock.now += 500
    downtime.end()
    assert hint(downtime) == RETRY_AFTER_MS
    downtime.begin()
    assert hint(downtime) == 30_000

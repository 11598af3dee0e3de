"""Housekeeping of sockets, which only the test calls, at times that it chooses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.timers import Look, TimerWheel


def take_over_housekeeping(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    """Return the list to which each new socket adds its housekeeping.

    Two calls that are over a second apart count as a pause of the server, in which no client is
    idle.
    """
    looks: list[Look] = []

    def join(wheel: TimerWheel, look: Look, wait_s: float) -> Callable[[], None]:
        looks.append(look)
        return lambda: None

    monkeypatch.setattr(TimerWheel, "join", join)
    return looks

"""Coalesced timers, work that is spread over the event loop's turns, and how late the loop is.

A wake-up of the loop costs more than the work after it, so callbacks that may run a little sooner
run together.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

_PERIOD_S = 0.25
#: A minute's: a loop that was still for longer is as bad as that, and must not count for long.
_MOST_MISSED = 240


async def beat(observe: Callable[[float], object]) -> None:
    """Tell ``observe``, four times a second and for ever, how many seconds late a timer rang.

    Timers that the loop missed while it stood still count too, each with its own lateness.
    """
    while True:
        due = time.monotonic() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        for late_s in missed(time.monotonic() - due):
            observe(late_s)


def missed(late_s: float) -> list[float]:
    """How late the timer that rings ``late_s`` seconds late is, and those that were due since."""
    count = min(math.ceil(late_s / _PERIOD_S), _MOST_MISSED)
    return [max(0.0, late_s - _PERIOD_S * number) for number in range(max(1, count))]


_TOGETHER_S = 0.025


def align_deadline(wait_s: float, now: float) -> float:
    """``wait_s``, or up to 25 ms less if it is longer than 50, so that many end together."""
    return wait_s - (now + wait_s) % _TOGETHER_S if wait_s > 2 * _TOGETHER_S else wait_s


#: Takes monotonic seconds, returns in how many to call it again. It must not raise.
Look = Callable[[float], float]


@dataclass(slots=True, eq=False)
class _Member:
    look: Look | None


class TimerWheel:
    """Calls each member's ``look``, on the event loop, when it wants or up to 25 ms sooner."""

    def __init__(self) -> None:
        #: By the millisecond in which it ends: a wait, and those who are called then.
        self._waits: dict[int, tuple[asyncio.TimerHandle, list[_Member]]] = {}

    def join(self, look: Look, wait_s: float) -> Callable[[], None]:
        """Have ``look`` called in ``wait_s`` seconds. Returns what ends that."""
        member = _Member(look)
        self._put(member, wait_s, time.monotonic())

        def leave() -> None:
            member.look = None

        return leave

    def soon(self) -> None:
        """Call every member as soon as the present callback is over, whenever it was due."""
        now = time.monotonic()
        waits, self._waits = self._waits, {}
        for timer, members in waits.values():
            timer.cancel()
            for member in members:
                self._put(member, 0.0, now)

    def _put(self, member: _Member, wait_s: float, now: float) -> None:
        wait_s = align_deadline(wait_s, now)
        key = round(1000 * (now + wait_s))
        if key not in self._waits:
            timer = asyncio.get_running_loop().call_later(wait_s, self._ring, key)
            self._waits[key] = timer, []
        self._waits[key][1].append(member)

    def _ring(self, key: int) -> None:
        _, members = self._waits.pop(key)
        now = time.monotonic()
        for member in members:
            if member.look is None:
                continue
            wait_s = member.look(now)
            if member.look is not None:
                self._put(member, wait_s, now)


class LoopTurns:
    """Calls callbacks in order, one in each turn of the event loop and none in the present one: so
    what is read meanwhile, and answered, waits for one of them at most. They must not raise.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def put(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called when it is its turn, for the caller who is served now."""
        self._waiting.append(partial(copy_context().run, callback))
        if len(self._waiting) == 1:
            self._in_a_turn()

    def _in_a_turn(self) -> None:
        """Call in the turn after the next, in which the tasks woken now write their answers."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._call)

    def _call(self) -> None:
        callback = self._waiting[0]
        try:
            callback()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._in_a_turn()

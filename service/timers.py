"""Coalesced timers, work spread over turns of the event loop, and watches over the process.

A wake-up of the loop costs more than the work that follows, so callbacks that may run a little
early run together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

log = logging.getLogger(__name__)
_PERIOD_S = 0.25
#: A minute of timers. A longer stall counts as one minute, since counting must be quick.
_MOST_MISSED = 240


async def beat(observe: Callable[[float], object]) -> None:
    """Call ``observe`` four times a second, for ever, with the seconds by which a timer was late.

    Timers that the loop missed while it was blocked count too, each with its own lateness.
    """
    while True:
        due = time.monotonic() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        for late_s in missed(time.monotonic() - due):
            observe(late_s)


def missed(late_s: float) -> list[float]:
    """Return the lateness of a timer that fired ``late_s`` late, and of those due since then."""
    count = min(math.ceil(late_s / _PERIOD_S), _MOST_MISSED)
    return [max(0.0, late_s - _PERIOD_S * number) for number in range(max(1, count))]


#: Seconds between looks for a free file descriptor, and at least between two errors of them.
_FILES_PERIOD_S, _FILES_QUIET_S = 1.0, 60.0


async def watch_files() -> None:
    """Log, for ever, when this process has no free file descriptor. uvloop then closes new
    connections and tells nobody.
    """
    is_full, quiet_until = False, 0.0
    while True:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            now = time.monotonic()
            if not is_full and now >= quiet_until:
                is_full, quiet_until = True, now + _FILES_QUIET_S
                message = "no file descriptor is free: new clients are closed unanswered"
                log.error(message, extra={"reason": error.strerror})
        else:
            if is_full:
                log.info("file descriptors are free again")
            is_full = False
        await asyncio.sleep(_FILES_PERIOD_S)


_TOGETHER_S = 0.025


def align_deadline(wait_s: float, now: float) -> float:
    """Shorten a wait of more than 50 ms by up to 25 ms, so that many end together."""
    return wait_s - (now + wait_s) % _TOGETHER_S if wait_s > 2 * _TOGETHER_S else wait_s


#: Takes the monotonic time, and returns the seconds until its next call. It must not raise.
Look = Callable[[float], float]


@dataclass(slots=True, eq=False)
class _Member:
    look: Look | None


class TimerWheel:
    """Calls each member's ``look`` on the event loop, when it is due or up to 25 ms sooner."""

    def __init__(self) -> None:
        #: By the millisecond when it is due: a timer, and the members that are called then.
        self._waits: dict[int, tuple[asyncio.TimerHandle, list[_Member]]] = {}

    def join(self, look: Look, wait_s: float) -> Callable[[], None]:
        """Call ``look`` in ``wait_s`` seconds, and return a function that stops its calls."""
        member = _Member(look)
        self._put(member, wait_s, time.monotonic())

        def leave() -> None:
            member.look = None

        return leave

    def soon(self) -> None:
        """Call every member right after the current callback, whenever it was due."""
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
    """Calls callbacks in order, one in each turn of the event loop and none in the current turn.
    Input that is read meanwhile waits for at most one of them. They must not raise.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[object, Callable[[], object]] = OrderedDict()
        self._is_scheduled = False

    def put(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call ``callback`` in its turn, on behalf of the current caller.

        Returns: a function that withdraws the callback, so that others need not wait for it.
        """
        key = object()
        self._waiting[key] = partial(copy_context().run, callback)
        self._schedule()
        return partial(self._waiting.pop, key, None)

    def _schedule(self) -> None:
        """Call in the turn after the next one, in which tasks that wake up now write responses."""
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._call)

    def _call(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            _, callback = self._waiting.popitem(last=False)
            try:
                callback()
            finally:
                self._schedule()

"""Looking after many at little cost: those whose time is near are looked after together.

A task for each, asleep most of the time, costs 40 us each time that it wakes: with a thousand
sockets, looked after twice a second, a twelfth of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from service.heartbeat import together_s

#: Looks after one, at monotonic seconds; returns in how many seconds it wants to again. It must
#: not raise.
Look = Callable[[float], float]


@dataclass(slots=True, eq=False)
class _Member:
    look: Look | None
    context: Context = field(default_factory=copy_context)


class Rounds:
    """Calls each member's ``look`` when it wants, or up to 25 ms sooner, in the context in which
    it joined. All methods belong to the event loop.
    """

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
        """Look after everyone as soon as what happens now is over, and not when it was wanted."""
        now = time.monotonic()
        waits, self._waits = self._waits, {}
        for timer, members in waits.values():
            timer.cancel()
            for member in members:
                self._put(member, 0.0, now)

    def _put(self, member: _Member, wait_s: float, now: float) -> None:
        wait_s = together_s(wait_s, now)
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
            wait_s = member.context.run(member.look, now)
            if member.look is not None:
                self._put(member, wait_s, now)

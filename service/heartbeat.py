"""How late the event loop is, the one thing that delays every client at once; and when those
wake together who need not wake at a moment of their own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

_PERIOD_S = 0.25
#: A minute's: a loop that was still for longer is as bad as that, and must not count for long.
_MOST_MISSED = 240


async def beat(observe: Callable[[float], object]) -> None:
    """Tell ``observe``, four times a second and for ever, how many seconds late a timer rang.

    While the loop stands still timers are missed, which would each have rung late: they are told
    too. Else a long freeze would be one time among the many of the seconds before and after it.
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


#: A wake-up costs as much as what is done after it, and its cold caches more than that.
_TOGETHER_S = 0.025


def together_s(wait_s: float, now: float) -> float:
    """A little less than ``wait_s``, so that the waits of many end at the same time. Very short
    ones are left as they are.
    """
    return wait_s - (now + wait_s) % _TOGETHER_S if wait_s > 2 * _TOGETHER_S else wait_s

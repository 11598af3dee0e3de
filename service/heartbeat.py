"""How late the event loop is, the one thing that delays every client at once; and when those
wake together who need not wake at a moment of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_PERIOD_S = 0.25


async def beat(observe: Callable[[float], object]) -> None:
    """Tell ``observe``, four times a second and for ever, how many seconds late a timer rang."""
    while True:
        due = time.monotonic() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        observe(max(0.0, time.monotonic() - due))


#: A wake-up costs as much as what is done after it, and its cold caches more than that.
_TOGETHER_S = 0.025


def together_s(wait_s: float, now: float) -> float:
    """A little less than ``wait_s``, so that the waits of many end at the same time. Very short
    ones are left as they are.
    """
    return wait_s - (now + wait_s) % _TOGETHER_S if wait_s > 2 * _TOGETHER_S else wait_s

"""How late the event loop is: the one thing that delays every client at once."""

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

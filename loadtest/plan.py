"""The plan of a run: its load, and the arrival of each session.

Arrivals are drawn before the run, independently of the server: the loop is open. A generator that
waits for an answer before its next request slows down with the server, and so misses the very waits
that it should measure.
"""

from __future__ import annotations

import random
import re
from typing import Literal

from msgspec import Struct

from loadtest.workload import Workload

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}

#: Protocols of a service; ``openai`` has neither leads nor playback reports.
Protocol = Literal["native", "openai"]


class Plan(Struct, frozen=True):
    """The parameters of a run, from which all workers draw the same sessions.

    Sessions arrive as a Poisson process. If ``streams`` is set instead, that many sessions begin
    evenly over the warm-up and speak turn after turn, so that the number of streams is constant.
    """

    #: Address of the service.
    url: str
    #: Seconds in which sessions arrive and turns are measured.
    duration_s: float
    #: Seconds at the beginning whose turns are not measured.
    warmup_s: float
    #: Sessions that arrive per second.
    rate_per_s: float = 0.0
    #: Constant number of streams; 0: sessions arrive at the rate.
    streams: int = 0
    #: What sessions say.
    workload: Workload = Workload()
    #: Of arrivals and sessions.
    seed: int = 1
    #: Number of worker processes.
    processes: int = 1
    #: Maximum number of sessions of the run.
    max_sessions: int = 20_000
    #: Maximum number of sessions at once.
    max_open: int = 2_000
    #: Lead that contexts ask for; None: the server's default.
    max_lead_ms: int | None = 2_000
    #: Seconds between playback reports.
    report_every_s: float = 0.5
    #: Seconds without progress (text sent or audio received) after which a turn fails.
    turn_limit_s: float = 60.0
    #: Seconds after ``duration_s`` in which turns may still end.
    grace_s: float = 30.0
    protocol: Protocol = "native"
    #: Sessions that would have arrived in so many seconds before the run, and would not be over,
    #: take part from the first turn that is due in it. So the load is complete from its beginning.
    under_way_s: float = 0.0


def warmup_within(warmup_s: float, duration_s: float) -> float:
    """Check a warm-up against the run. Raises ValueError if no time is left to measure."""
    if warmup_s >= duration_s:
        raise ValueError(
            f"the warm-up of {warmup_s:g} s is as long as the run; nothing would be measured"
        )
    return warmup_s


def parse_rate(text: str) -> float:
    """Parse ``2/s``, ``90/min`` or ``0.5`` (a second) into a rate per second. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(?:/\s*(s|sec|min|h))?\s*", text)
    if found is None or not float(found[1]):
        raise ValueError(f"a rate is like 2/s, 90/min or 0.5, not {text!r}")
    return float(found[1]) / _UNITS[found[2] or "s"]


def parse_share(text: str) -> float:
    """Parse ``30%`` or ``0.3`` into 0.3. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    if found is None:
        raise ValueError(f"a share is like 30% or 0.3, not {text!r}")
    return float(found[1]) / (100 if found[2] else 1)


def poisson(rate_per_s: float, duration_s: float, seed: int, max_count: int) -> tuple[float, ...]:
    """Draw the arrival times of a Poisson process on ``[0, duration_s)``, at most ``max_count``.

    The same seed gives the same times; a longer duration only adds to them. Raises ValueError for a
    rate that is not positive, or a negative duration.
    """
    if rate_per_s <= 0 or duration_s < 0:
        raise ValueError("the rate must be positive and the duration not negative")
    draw = random.Random(f"arrivals:{seed}")
    times: list[float] = []
    at = draw.expovariate(rate_per_s)
    while at < duration_s and len(times) < max_count:
        times.append(at)
        at += draw.expovariate(rate_per_s)
    return tuple(times)


def arrivals(plan: Plan) -> tuple[float, ...]:
    """Draw the beginning of each session; one before 0 is in progress when the run begins."""
    if plan.streams:
        return evenly(plan.streams, plan.warmup_s)
    whole_s = plan.under_way_s + plan.duration_s
    times = poisson(plan.rate_per_s, whole_s, plan.seed, plan.max_sessions)
    return tuple(at - plan.under_way_s for at in times)


def evenly(count: int, over_s: float) -> tuple[float, ...]:
    """Space ``count`` arrivals evenly in ``[0, over_s)``, for a fixed number of streams."""
    return tuple(index * over_s / count for index in range(count))


def steps(lowest: float, highest: float, count: int) -> tuple[float, ...]:
    """Space ``count`` loads from ``lowest`` to ``highest`` in equal ratios, both included. Raises
    ValueError unless both are positive and in this order.
    """
    if count < 1 or not 0 < lowest <= highest:
        raise ValueError("a sweep goes from a load above 0 to one not below it")
    if count == 1:
        return (highest,)
    ratio = (highest / lowest) ** (1 / (count - 1))
    return (*(lowest * ratio**index for index in range(count - 1)), highest)

"""When sessions begin: arrivals drawn before the run, whatever the server does during it.

That is what makes the loop open. A generator that waits for an answer before it asks again
slows down with the server, and so leaves out exactly the waits that it was to measure.
"""

from __future__ import annotations

import random
import re

from loadtest.records import Plan

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}


def parse_rate(text: str) -> float:
    """``2/s``, ``90/min``, ``0.5`` (a second) -> per second. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(?:/\s*(s|sec|min|h))?\s*", text)
    if found is None or not float(found[1]):
        raise ValueError(f"a rate is like 2/s, 90/min or 0.5, not {text!r}")
    return float(found[1]) / _UNITS[found[2] or "s"]


def parse_share(text: str) -> float:
    """``30%`` or ``0.3`` -> 0.3. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    if found is None:
        raise ValueError(f"a share is like 30% or 0.3, not {text!r}")
    return float(found[1]) / (100 if found[2] else 1)


def poisson(rate_per_s: float, duration_s: float, seed: int, most: int) -> tuple[float, ...]:
    """The arrival times of a Poisson process on ``[0, duration_s)``, the first ``most`` of them.

    The same seed gives the same times; a longer duration only adds to them.
    """
    if rate_per_s <= 0 or duration_s < 0:
        raise ValueError("the rate must be positive and the duration not negative")
    draw = random.Random(f"arrivals:{seed}")
    times: list[float] = []
    at = draw.expovariate(rate_per_s)
    while at < duration_s and len(times) < most:
        times.append(at)
        at += draw.expovariate(rate_per_s)
    return tuple(times)


def arrivals(plan: Plan) -> tuple[float, ...]:
    """When each session of the plan begins; before 0: it is under way when the run begins."""
    if plan.streams:
        return evenly(plan.streams, plan.warmup_s)
    whole_s = plan.under_way_s + plan.duration_s
    times = poisson(plan.rate_per_s, whole_s, plan.seed, plan.max_sessions)
    return tuple(at - plan.under_way_s for at in times)


def evenly(count: int, over_s: float) -> tuple[float, ...]:
    """``count`` arrivals at equal distances in ``[0, over_s)``: for a fixed number of streams."""
    return tuple(index * over_s / count for index in range(count))


def steps(lowest: float, highest: float, count: int) -> tuple[float, ...]:
    """``count`` loads from ``lowest`` to ``highest`` in equal ratios, both included."""
    if count < 1 or not 0 < lowest <= highest:
        raise ValueError("a sweep goes from a load above 0 to one not below it")
    if count == 1:
        return (highest,)
    ratio = (highest / lowest) ** (1 / (count - 1))
    return (*(lowest * ratio**index for index in range(count - 1)), highest)

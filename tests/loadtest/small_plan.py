"""A load short enough for a test, and the server's metrics."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Any

from loadtest import worker
from loadtest.plan import Plan
from loadtest.records import TurnRecord
from loadtest.workload import Workload

#: Answers of one to two seconds, half of them cut off.
WORK = Workload(
    turns=(1, 2),
    texts=("Yes. It is here.", "No, not today.", "Thank you for that."),
    tokens_per_s=80,
    barge_in=0.5,
    think_s=0.1,
)


def plan(url: str, **changes) -> Plan:
    """Twelve sessions of ``WORK`` within three seconds, except for ``changes``."""
    fields: dict[str, Any] = {
        "duration_s": 3.0,
        "warmup_s": 0.5,
        "rate_per_s": 8.0,
        "max_sessions": 12,
        "workload": WORK,
        "processes": 2,
        "max_lead_ms": 500,
        "report_every_s": 0.1,
    }
    return Plan(url=url, **fields | changes)


def metrics(url: str) -> dict[str, float]:
    """The server's metrics by name."""
    address = url.replace("ws:", "http:").replace("/v1/tts/stream", "/metrics")
    with urllib.request.urlopen(address, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {x.rsplit(" ", 1)[0]: float(x.rsplit(" ", 1)[1]) for x in lines if x[0] != "#"}


async def carried_out(plan: Plan, monkeypatch) -> list[TurnRecord]:
    """Carry out a plan in this process and return its records."""
    records: list[TurnRecord] = []
    monkeypatch.setattr(worker, "emit", records.append)
    await worker.run(plan, worker.scripts(plan, 0), time.monotonic(), asyncio.Event())
    return records

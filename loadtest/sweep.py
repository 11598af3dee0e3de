"""Series of runs: a sweep over loads, and the gateway against a bare server."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadtest import servers
from loadtest.figures import open_spans
from loadtest.plan import Plan, warmup_within
from loadtest.records import TurnRecord, write_records
from loadtest.report import Row
from loadtest.run import LoadTestError, OnProgress, Result, run_plan
from loadtest.workload import Workload, session

#: Announces the next run; returns the callback for its progress.
Announce = Callable[[str, Plan], OnProgress]

#: Sessions of a calibration, and its duration.
_CALIBRATION_SESSIONS = 4
_CALIBRATION_S = 90.0
#: Sessions drawn to estimate the mean length of their texts.
_DRAWN = 500
#: Answers of some 20 seconds, one after another: a stream that hardly ever pauses.
_STEADY = Workload(turns=(1, 1), sentences=(4, 4), barge_in=0.0, think_s=0.2)


def context_seconds(workload: Workload, seed: int, records: Sequence[TurnRecord]) -> float:
    """Estimate how long a session keeps contexts open. Raises LoadTestError without any.

    Only the time per character is measured. The mean length is computed from the script, since a
    few sessions say little about it.
    """
    served = [r for r in records if r.outcome in ("complete", "cancelled")]
    if not served:
        codes = sorted({record.code for record in records if record.code})
        why = f" ({', '.join(codes)})" if codes else ""
        raise LoadTestError(f"no session was served{why}, so the load of one is not known")
    open_s = sum(end - begin for begin, end in open_spans(served))
    drawn = sum(turn.characters for i in range(_DRAWN) for turn in session(workload, seed, i))
    return open_s / sum(record.characters for record in served) * drawn / _DRAWN


def longest_s(workload: Workload, seed: int) -> float:
    """Estimate the duration of the longest of the drawn sessions."""
    return max(sum(turn.estimated_s for turn in session(workload, seed, i)) for i in range(_DRAWN))


def labels(loads: Sequence[float]) -> list[str]:
    """Format each load in per cent, with as many digits as needed to distinguish them."""
    named: list[str] = []
    for digits in range(4):
        named = [f"{100 * load:.{digits}f} %" for load in loads]
        if len(set(named)) == len(set(loads)):
            break
    return named


async def calibrate(plan: Plan) -> float:
    """Measure the context seconds per session at a low load; this also warms up the server. Raises
    LoadTestError if no session is served, or if the user stops it, since a session's length is then
    unknown.
    """
    quiet = Plan(
        url=plan.url,
        duration_s=_CALIBRATION_S,
        warmup_s=4.0,
        streams=_CALIBRATION_SESSIONS,
        workload=plan.workload,
        seed=plan.seed + 1,
        max_lead_ms=plan.max_lead_ms,
        protocol=plan.protocol,
    )
    result = await run_plan(quiet)
    if result.stopped:
        raise LoadTestError("stopped before the first load: how long a session takes is not known")
    return context_seconds(plan.workload, plan.seed, result.records)


async def sweep(
    plan: Plan,
    loads: Sequence[float],
    capacity: float,
    *,
    pid: int | None,
    slo_ttfa_ms: float,
    announce: Announce,
) -> list[tuple[Row, list[TurnRecord]]]:
    """Run each load at the rate that keeps ``load * capacity`` contexts open if all are served
    (Little's law). Some sessions are in progress at the beginning, so the load is complete from
    then on. Ctrl-C ends the series with the run that it stops.
    """
    held_s = await calibrate(plan)
    under_way_s = longest_s(plan.workload, plan.seed)
    runs: list[tuple[Row, list[TurnRecord]]] = []
    for label, load in zip(labels(loads), loads, strict=True):
        rate = load * capacity / held_s
        step = msgspec.structs.replace(plan, rate_per_s=rate, under_way_s=under_way_s)
        progress = announce(f"{label} ({rate:.2f} sessions/s)", step)
        result = await run_plan(step, pid=pid, slo_ttfa_ms=slo_ttfa_ms, on_progress=progress)
        runs.append((Row(label, step, result.figures, load, result.stopped), result.records))
        if result.stopped:
            break
    return runs


def steady_plan(streams: int, duration_s: float, processes: int, seed: int) -> Plan:
    """Make a plan with a fixed number of streams, each of answer after answer. Raises ValueError if
    there are none, or if ``duration_s`` is too short to measure any.
    """
    if streams < 1:
        raise ValueError("the numbers of streams are at least 1")
    warmup_s = warmup_within(max(5.0, duration_s / 3), duration_s)
    turns = math.ceil(duration_s / 5)
    return Plan(
        url="",
        duration_s=duration_s,
        warmup_s=warmup_s,
        streams=streams,
        workload=msgspec.structs.replace(_STEADY, turns=(turns, turns)),
        seed=seed,
        processes=processes,
        max_open=2 * streams + processes,
    )


async def gateway_against_bare(
    counts: Sequence[int],
    duration_s: float,
    processes: int,
    *,
    seed: int,
    slo_ttfa_ms: float,
    announce: Announce,
) -> list[Row]:
    """Run for each number of streams the gateway with fakes, then a bare server that sends the same
    bytes at the same times.
    """
    rows: list[Row] = []
    plans = [steady_plan(count, duration_s, processes, seed) for count in counts]

    async def measure(label: str, plan: Plan, command: servers.Command) -> Result:
        async with servers.started(command) as server:
            target = msgspec.structs.replace(plan, url=server.url)
            progress = announce(label, target)
            result = await run_plan(
                target, pid=server.pid, slo_ttfa_ms=slo_ttfa_ms, on_progress=progress
            )
        rows.append(Row(label, target, result.figures, None, result.stopped))
        return result

    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder, "recording.jsonl")
        for count, plan in zip(counts, plans, strict=True):
            options = ["--capacity", str(2 * count), "--connections", str(2 * count)]
            result = await measure(f"gateway {count}", plan, servers.fake(options))
            if result.stopped:
                break
            write_records(recording, result.records)
            result = await measure(f"bare {count}", plan, servers.bare(recording))
            if result.stopped:
                break
    return rows

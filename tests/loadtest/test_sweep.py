from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from loadtest import servers
from loadtest.figures import figures
from loadtest.plan import Plan, arrivals
from loadtest.records import TurnRecord
from loadtest.run import LoadTestError, Result
from loadtest.sweep import context_seconds, labels, longest_s, steady_plan, sweep
from loadtest.worker import Share, scripts
from loadtest.workload import Workload, session


def test_context_seconds_combines_measured_pace_and_script_length() -> None:
    work = Workload(texts=("ten chars!", "twenty characters ok"), turns=(2, 2))
    spans = [(1.0, 2.0, 10), (5.0, 7.0, 20)]  # a tenth of a second per character
    records = [
        TurnRecord(0, i, n, 0, 0, 0, "complete", opened_s=a, ended_s=b)
        for i, (a, b, n) in enumerate(spans)
    ]
    texts = [sum(turn.characters for turn in session(work, 1, i)) for i in range(500)]
    held_s = context_seconds(work, 1, records)
    assert held_s == pytest.approx(0.1 * sum(texts) / 500)
    assert 2.8 < held_s < 3.2  # two turns of 15 characters on average
    failed = TurnRecord(1, 0, 9, 0, 0, 0, "failed", code="http_401", opened_s=1.0, ended_s=1.001)
    assert context_seconds(work, 1, [*records, failed]) == held_s
    with pytest.raises(LoadTestError, match=r"no session was served \(http_401\)"):
        context_seconds(work, 1, [failed])
    with pytest.raises(LoadTestError, match="no session was served"):
        context_seconds(work, 1, [])


def speaking(sessions: Sequence[Share], begin_s: float, end_s: float) -> float:
    """Mean number of turns at a time if each takes its estimated duration."""
    whole = 0.0
    for _, at, turns in sessions:
        for turn in turns:
            ends = at + turn.estimated_s
            whole += max(0.0, min(ends, end_s) - max(at, begin_s))
            at = ends
    return whole / (end_s - begin_s)


def test_scripts_under_way_give_steady_load_from_start() -> None:
    work = Workload()
    plan = Plan(url="", duration_s=100.0, warmup_s=15.0, rate_per_s=5.0, workload=work)
    warmed = msgspec.structs.replace(plan, under_way_s=longest_s(work, plan.seed))
    cold, warm = list(scripts(plan, 0)), list(scripts(warmed, 0))
    steady = speaking(cold, 60, 100)
    assert speaking(cold, 10, 30) < 0.7 * steady
    # Poisson arrivals, about 150 sessions at a time: within a few times 1 / sqrt(150).
    assert speaking(warm, 15, 35) == pytest.approx(steady, rel=0.25)
    times = [at for _, at, _ in warm]
    assert times == sorted(times)
    assert times[0] >= 0
    begun = {number for number, at in enumerate(arrivals(warmed)) if at < 0}
    kept = {number: turns for number, _, turns in warm}
    assert any(len(kept[n]) < len(session(work, 1, n)) for n in begun & kept.keys())
    assert all(kept[n] == session(work, 1, n) for n in kept.keys() - begun)


def test_labels_distinguish_loads() -> None:
    assert labels((0.1, 0.31, 3.0)) == ["10 %", "31 %", "300 %"]
    assert labels((0.99, 0.994, 0.998)) == ["99.0 %", "99.4 %", "99.8 %"]


async def test_sweep_stopped_during_calibration_raises(monkeypatch) -> None:
    record = TurnRecord(0, 0, 9, 0, 0, 0, "complete", opened_s=0.0, ended_s=1.0)
    plan = Plan(url="", duration_s=25.0, warmup_s=5.0)
    ran = []

    async def run_plan(mine: Plan, **options) -> Result:
        ran.append(mine)
        return Result(figures(mine, [record], slo_ttfa_ms=500), [record], len(ran) == 1)

    monkeypatch.setattr("loadtest.sweep.run_plan", run_plan)
    with pytest.raises(LoadTestError, match="stopped before the first load"):
        await sweep(
            plan, (0.5,), 16, pid=None, slo_ttfa_ms=500, announce=lambda *_: lambda *_: None
        )
    assert len(ran) == 1


def test_steady_plan_refuses_short_run_or_no_streams() -> None:
    with pytest.raises(ValueError, match="nothing would be measured"):
        steady_plan(3, 5.0, 1, 1)
    with pytest.raises(ValueError, match="at least 1"):
        steady_plan(0, 30.0, 1, 1)


@pytest.mark.long
@pytest.mark.slow
async def test_sweep_opens_given_share_of_capacity() -> None:
    work = Workload(turns=(1, 1), sentences=(1, 2), tokens_per_s=80, barge_in=0, think_s=0)
    plan = Plan(url="", duration_s=25.0, warmup_s=5.0, workload=work)
    announced: list[tuple[str, float]] = []

    def announce(label: str, mine: Plan):
        announced.append((label, mine.rate_per_s))
        return lambda elapsed_s, turns: None

    async with servers.started(servers.fake(["--capacity", "60"])) as server:
        mine = msgspec.structs.replace(plan, url=server.url)
        options: dict[str, Any] = {"pid": server.pid, "slo_ttfa_ms": 500.0, "announce": announce}
        ((row, records),) = await sweep(mine, (0.5,), 60, **options)
    assert [rate for _, rate in announced] == [row.plan.rate_per_s]
    assert (row.label, row.load) == ("50 %", 0.5)
    assert {record.outcome for record in records} == {"complete"}
    # Half of 60, as far as Poisson arrivals of 4 s sessions fluctuate over 20 s.
    assert 20 < row.figures.streams < 40

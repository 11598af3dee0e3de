from __future__ import annotations

import msgspec
import pytest

from loadtest import servers
from loadtest.records import Plan, TurnRecord
from loadtest.run import LoadTestError
from loadtest.script import Workload, session
from loadtest.sweep import context_seconds, sweep


def test_a_sessions_load_follows_from_the_time_per_character_and_the_script() -> None:
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
    with pytest.raises(LoadTestError, match="no session was served"):
        context_seconds(work, 1, [])


@pytest.mark.long
@pytest.mark.slow
async def test_a_sweep_opens_the_share_of_the_capacity_that_it_says() -> None:
    work = Workload(turns=(1, 1), sentences=(1, 2), tokens_per_s=80, barge_in=0, think_s=0)
    plan = Plan(url="", duration_s=25.0, warmup_s=5.0, workload=work)
    announced: list[tuple[str, float]] = []

    def announce(label: str, mine: Plan):
        announced.append((label, mine.rate_per_s))
        return lambda elapsed_s, turns: None

    async with servers.started(servers.fake(["--capacity", "60"])) as server:
        mine = msgspec.structs.replace(plan, url=server.url)
        options = {"pid": server.pid, "slo_ttfa_ms": 500.0, "announce": announce}
        ((row, records),) = await sweep(mine, (0.5,), 60, **options)
    assert [rate for _, rate in announced] == [row.plan.rate_per_s]
    assert (row.label, row.load) == ("50 %", 0.5)
    assert {record.outcome for record in records} == {"complete"}
    # Half of 60, as Poisson arrivals fluctuate over 20 s of sessions of 4 s or so.
    assert 20 < row.figures.streams < 40

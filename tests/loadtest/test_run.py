"""Runs in separate processes, as a user starts them, against the gateway with fake engines."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np
import psutil
import pytest

from loadtest import servers
from loadtest.plan import arrivals
from loadtest.records import TurnRecord, read_records, write_records
from loadtest.run import LoadTestError, require_local, run_plan
from loadtest.worker import shares
from loadtest.workload import Workload, session
from tests.loadtest.small_plan import WORK, metrics, plan
from tests.service.auth.keyring import entry, write_keys
from tests.service.live import gateway


def listener(record: TurnRecord, prebuffer_s: float) -> bool:
    """Whether a listener never runs out of audio until the end or the barge-in, computed chunk by
    chunk.
    """
    begin = record.arrivals[0][0] + prebuffer_s
    got = 0
    cut = [(record.cancel_s, 0)] if record.cancel_s is not None else []
    for at, samples in (*record.arrivals, *cut):
        if got and (at - begin) * record.sample_rate > got + 1e-6 * record.sample_rate:
            return False
        got += samples
    return True


@pytest.mark.slow
async def test_run_plan_figures_match_recomputation(monkeypatch) -> None:
    monkeypatch.setattr("loadtest.process_stats._EVERY_S", 0.05)  # two samples come in any case
    async with servers.started(servers.fake(["--capacity", "32"])) as server:
        done = await run_plan(plan(server.url), pid=server.pid)
        told = metrics(server.url)
        assert servers.capacity(server.url) == 32
    records, made = done.records, done.figures
    assert not done.stopped
    assert {r.session for r in records} == set(range(12))

    # The server counted as many ends of contexts.
    for outcome in ("complete", "cancelled"):
        mine = sum(r.outcome == outcome for r in records)
        assert mine > 0
        name = f'tts_contexts_total{{outcome="{outcome}",protocol="native"}}'
        assert told[name] == mine
    assert {r.outcome for r in records} == {"complete", "cancelled"}

    # It counted the same audio, and what was on its way at a cancel: at most the lead, a chunk, and
    # what was sent while the cancel was late.
    heard = [[samples / r.sample_rate for _, samples in r.arrivals] for r in records]
    unread_s = told['tts_audio_seconds_total{protocol="native"}'] - sum(map(sum, heard))
    assert (
        -1e-3
        <= unread_s
        <= mine * (0.5 + max(map(max, heard)))
        + sum(r.cancelled_s - r.arrivals[-1][0] for r in records if r.cancelled_s)
    )

    # Sessions began at the Poisson arrivals of this seed and followed their script.
    due = arrivals(plan(server.url))
    for record in records:
        turns = session(WORK, 1, record.session)
        turn = turns[record.turn]
        assert record.characters == turn.characters
        assert record.sentence_s - record.intended_s == pytest.approx(turn.sentence_s)
        assert record.started_s >= record.intended_s - 0.01
        if not record.turn:
            assert record.intended_s == due[record.session]
        if record.outcome == "cancelled":
            assert turn.barge_in_s is not None
            assert record.cancel_s is not None
            assert record.cancelled_s is not None
            assert record.last_audio_s is not None
            # A timer of the event loop may fire a millisecond early.
            assert record.cancel_s >= record.arrivals[0][0] + turn.barge_in_s - 0.002
            assert record.last_audio_s <= record.cancelled_s
            assert record.rtf is not None  # the metrics come after the answer

    measured = [r for r in records if 0.5 <= r.intended_s < 3]
    assert made.measured_turns == len(measured) > 5
    ttfb = [1000 * (r.arrivals[0][0] - r.intended_s) for r in measured]
    ttfa = [t + (r.silence or 0) / 24 for t, r in zip(ttfb, measured, strict=True)]
    for mark, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(made.ttfb, mark).value == pytest.approx(np.percentile(ttfb, share))
        assert getattr(made.ttfa, mark).value == pytest.approx(np.percentile(ttfa, share))
    gaps = [1000 * (b[0] - a[0]) for r in measured for a, b in itertools.pairwise(r.arrivals)]
    assert made.gap.p99 is not None
    assert made.gap.p99.value == pytest.approx(np.percentile(gaps, 99))
    acks = [1000 * (r.cancelled_s - r.cancel_s) for r in measured if r.cancel_s and r.cancelled_s]
    assert made.cancel_ack.n == len(acks)
    for held, free in made.gap_free.items():
        assert free is not None
        served = np.mean([listener(r, int(held) / 1000) for r in measured])
        assert free.value == pytest.approx(served)
    tenths = np.arange(0.5, 3, 0.001)
    open_s = [(r.opened_s, r.ended_s) for r in records]
    busy = np.mean([sum(bool(a and b and a <= t < b) for a, b in open_s) for t in tenths])
    assert made.streams == pytest.approx(busy, rel=0.02)
    assert made.server is not None
    assert made.server.cores > 0
    assert made.server.rss_mib > 20


@pytest.mark.long
@pytest.mark.slow
async def test_run_plan_counts_refusals() -> None:
    async with servers.started(servers.fake(["--capacity", "1"])) as server:
        made = (await run_plan(plan(server.url, rate_per_s=10.0, duration_s=3.0))).figures
    assert set(made.outcomes) <= {"complete", "cancelled", "refused"}
    assert made.outcomes["refused"] > 0
    assert made.codes == {"overloaded": made.outcomes["refused"]}
    assert made.refusal.n == made.outcomes["refused"]


async def test_run_plan_without_server_counts_failures() -> None:
    made = (await run_plan(plan("ws://127.0.0.1:9/", duration_s=0.5, warmup_s=0.0))).figures
    assert set(made.codes) == {"NoServerError"}
    assert made.outcomes == {"failed": made.measured_turns}


@pytest.mark.long
@pytest.mark.slow
async def test_run_plan_counts_dropped_sessions() -> None:
    async with servers.started(servers.fake()) as server:
        small = plan(server.url, max_open=2, rate_per_s=10.0, duration_s=3.0, warmup_s=0.0)
        made = (await run_plan(small)).figures
    assert made.outcomes["dropped"] > 0
    assert made.codes == {"max_open": made.outcomes["dropped"]}


@pytest.mark.long
@pytest.mark.slow
async def test_bare_server_replays_chunk_sizes_of_gateway(tmp_path) -> None:
    steady = plan(
        "", streams=4, duration_s=5.0, warmup_s=1.0, workload=Workload((2, 2), (1, 1), barge_in=0)
    )

    def sizes(records: list[TurnRecord]) -> dict[str, list[int]]:
        return {
            r.context_id: [n for _, n in r.arrivals] for r in records if r.outcome == "complete"
        }

    path = tmp_path / "recording.jsonl"
    async with servers.started(servers.fake()) as server:
        gateway = await run_plan(msgspec.structs.replace(steady, url=server.url))
    write_records(path, gateway.records)
    assert len(read_records(path)) == len(gateway.records)
    async with servers.started(servers.bare(path)) as server:
        bare = await run_plan(msgspec.structs.replace(steady, url=server.url))
    first, second = sizes(gateway.records), sizes(bare.records)
    assert len(first) >= 4
    assert all(second[name] == first[name] for name in first.keys() & second.keys())
    assert first.keys() & second.keys() >= {"s0t0", "s1t0", "s2t0", "s3t0"}


@pytest.mark.long
async def test_run_prints_report_when_interrupted(tmp_path) -> None:
    command = [sys.executable, "-m", "loadtest", "run", "--fake", "--rate", "5/s", "--duration"]
    command += ["300", "--warmup", "0", "--out", str(tmp_path), "--raw", str(tmp_path / "raw")]
    for patience_s in (4, 15, 60):  # on a busy machine the first turns take longer
        out = await interrupted(command, patience_s)
        (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
        if row["figures"]["measured_turns"]:
            break
    assert row["stopped"] is True
    assert row["figures"]["window_s"] < 300
    assert re.search(r"^\| 5/s \| \d+ \|", out, re.M)
    assert len(read_records(tmp_path / "raw")) >= row["figures"]["measured_turns"] > 0


@pytest.mark.long
async def test_run_ends_worker_and_server_on_sigterm(tmp_path) -> None:
    command = [sys.executable, "-m", "loadtest", "run", "--fake", "--duration", "300"]
    gone: list[psutil.Process] = []

    def look(pid: int) -> None:
        while len(gone) < 2:  # a worker and the server
            gone[:] = psutil.Process(pid).children(recursive=True)
            time.sleep(0.05)

    out = await interrupted(command, 1, signal.SIGTERM, look)
    assert "| 1/s |" in out
    assert not any(each.is_running() for each in gone)


async def interrupted(
    command: list[str],
    after_s: float,
    number: int = signal.SIGINT,
    look: Callable[[int], None] = lambda pid: None,
) -> str:
    """Signal the program's process group, as terminals and timeout(1) do, ``after_s`` seconds into
    its run. Returns its output.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    await process.stderr.readline()  # the run begins
    await asyncio.sleep(after_s)
    look(process.pid)
    os.killpg(process.pid, number)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_require_local_refuses_other_machines() -> None:
    assert require_local("ws://127.0.0.1:8000/v1/tts/stream") == 8000
    assert require_local("ws://[::1]:81/") == 81
    with pytest.raises(LoadTestError, match="another machine"):
        require_local("ws://192.0.2.7:8000/")
    with pytest.raises(LoadTestError, match="not an address for this protocol"):
        require_local("http://127.0.0.1/")
    with pytest.raises(LoadTestError, match="--protocol openai speaks HTTP"):
        require_local("http://127.0.0.1:8000/v1/tts/stream")


async def test_server_that_does_not_start_is_reported_with_its_log() -> None:
    """A log may end within a character, since only its first MiB is read."""
    program = "import sys; sys.stderr.buffer.write(b'no room \\xe2\\x82'); sys.exit(1)"
    broken = servers.Command([sys.executable, "-c", program], {})
    with pytest.raises(LoadTestError, match="did not start:\nno room"):
        async with servers.started(broken):
            pytest.fail("it started")


async def test_worker_that_does_not_start_in_time_is_reported(monkeypatch) -> None:
    monkeypatch.setattr("loadtest.run._START_S", 0.0)
    with pytest.raises(LoadTestError, match="a worker process did not start"):
        await run_plan(plan("ws://127.0.0.1:1/", processes=1))


async def test_capacity_of_server_with_keys_needs_admin_key(tmp_path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("boss", "acme", "admin"), entry("joe", "acme"))
    async with gateway(api_keys_file=keys, max_contexts=5) as server:
        told = [await asyncio.to_thread(servers.capacity, server.url, k) for k in ("boss", "joe")]
    assert told == [5, None]


def test_worker_shares_cover_all_sessions() -> None:
    whole = plan("ws://127.0.0.1:1/", processes=3, max_sessions=100, duration_s=60.0)
    parts = [shares(whole, index) for index in range(3)]
    assert sorted(itertools.chain(*parts)) == list(enumerate(arrivals(whole)))

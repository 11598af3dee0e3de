"""Readings and reports of the soak test, also after errors and interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import time
import urllib.request
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from loadtest import soak
from talkwire_client import Client, ConnectionLostError, NoServerError


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[psutil.Process, int]]:
    yield psutil.Process(os.getpid()), 1


@pytest.fixture
def quick(monkeypatch) -> None:
    """No service, no pauses; readings count up."""
    at = itertools.count()
    monkeypatch.setattr(soak, "served", served)
    monkeypatch.setattr(soak, "_QUIET_S", 0.0)
    monkeypatch.setattr(soak, "_READ_S", 0.01)
    monkeypatch.setattr(soak, "read", lambda process, port: {"gateway fds": float(next(at))})


async def no_client(url: str, seed: int, until: float, done: dict[str, int]) -> None:
    done["heard"] = 1


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), RuntimeError("a mistake")])
async def test_soak_reports_after_error(quick, monkeypatch, error) -> None:
    at = itertools.count()

    def read(process: psutil.Process, port: int) -> soak.Reading:
        if (count := next(at)) == 8:
            raise error
        return {"gateway fds": float(count)}

    monkeypatch.setattr(soak, "read", read)
    monkeypatch.setattr(soak, "client", no_client)
    report: dict[str, Any] = await soak.soak(10, 1)
    assert report["ended_by"] == f"{type(error).__name__}: {error}"
    assert report["utterances"] == {"heard": 1}
    row = report["series"]["gateway fds"]
    assert row["slope"] > 0
    assert (row["before"], row["after"]) == (0, None)
    json.dumps(report, allow_nan=False)


async def test_soak_counts_failed_reading(quick, monkeypatch) -> None:
    at = itertools.count()

    def read(process: psutil.Process, port: int) -> soak.Reading:
        if next(at) == 2:
            raise TimeoutError("no answer")
        return {"gateway fds": 1.0}

    monkeypatch.setattr(soak, "read", read)
    monkeypatch.setattr(soak, "client", no_client)
    report = await soak.soak(3 / 60, 1)
    assert (report["ended_by"], report["missed_readings"]) == (None, 1)


async def test_soak_reports_interrupt(quick, monkeypatch) -> None:
    monkeypatch.setattr(soak, "client", no_client)
    working = asyncio.create_task(soak.soak(10, 1))
    await asyncio.sleep(0.1)
    working.cancel()
    report = await working
    assert report["ended_by"] == "interrupt"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--json", "{tmp}"], "cannot write {tmp}: Is a directory"),
        (["--minutes", "nan"], "'nan' is not a number from 0.01 on"),
        (["--minutes", "-1"], "'-1' is not a number from 0.01 on"),
        (["--clients", "0"], "'0' is not a number from 1 on"),
    ],
)
def test_soak_refuses_bad_arguments_before_run(
    tmp_path, monkeypatch, capsys, arguments: list[str], told: str
) -> None:
    monkeypatch.setattr(soak, "carry_out", lambda work: pytest.fail("something was measured"))
    with pytest.raises(SystemExit) as ended:
        soak.main([each.format(tmp=tmp_path) for each in arguments])
    assert ended.value.code == 2
    assert told.format(tmp=tmp_path) in capsys.readouterr().err


async def test_soak_client_counts_errors_and_continues(monkeypatch) -> None:
    met = iter([NoServerError("gone"), ConnectionLostError(1006, "")])
    monkeypatch.setattr(random.Random, "expovariate", lambda self, rate: 0.0)
    until = time.monotonic() + 60
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)

    async def connect(client: Client) -> None:
        nonlocal now
        error = next(met, None)
        if error is None:
            now = until + 1
            error = NoServerError("again")
        raise error

    monkeypatch.setattr(soak, "time", clock)
    monkeypatch.setattr(Client, "connect", connect)
    done: dict[str, int] = {}
    await soak.client("ws://h/", 1, until, done)
    assert done == {"NoServerError": 2, "ConnectionLostError": 1}


class Child:
    """A stand-in for ``psutil.Process``."""

    def __init__(self, pid: int, *command: str, gone: bool = False) -> None:
        self.pid, self._command, self._gone = pid, list(command), gone

    def cmdline(self) -> list[str]:
        if self._gone:
            raise psutil.NoSuchProcess(self.pid)
        return self._command

    def oneshot(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=self.pid << 20)

    def num_fds(self) -> int:
        return self.pid

    num_threads = num_fds


class Root(Child):
    def children(self, recursive: bool) -> list[Child]:
        assert recursive
        return [
            Child(4, "python", "-m", "talker.process"),
            Child(3, "python", "-m", "talker.process"),
            Child(5, "VLLM::EngineCore"),
            Child(6, "python", "-m", "codec.worker", gone=True),
        ]


def test_soak_reads_every_descendant(monkeypatch) -> None:
    answer = contextlib.nullcontext(SimpleNamespace(read=lambda: b"tts_contexts_active 2\n"))
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: answer)
    values = soak.read(Root(1), 1)
    told = {name: value for name, value in values.items() if name.endswith("fds")}
    assert told == {"gateway fds": 1, "talker fds": 3, "talker 2 fds": 4, "other fds": 5}
    assert values["gateway contexts_active"] == 2

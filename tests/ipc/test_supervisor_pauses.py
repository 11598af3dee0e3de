"""Waiting times of the supervisor: for a starting child, and before a restart."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from ipc import supervisor
from ipc.child_process import ChildProcess
from ipc.supervisor import Watch
from tests.ipc.nest import PATIENT, Nest
from tests.waiting import until


def pauses_s(caplog: pytest.LogCaptureFixture) -> list[float]:
    """Return the delay of each restart so far."""
    return [
        vars(record)["restart_in_s"] for record in caplog.records if record.msg == "child ended"
    ]


async def kill(nest: Nest) -> None:
    """Kill the child, and wait for the next one."""
    lives = len(nest.pids)
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, signal.SIGKILL)
    await nest.until(lambda: len(nest.pids) > lives)


async def test_starting_child_may_be_silent_and_idle() -> None:
    nest = Nest("slow", Watch(start_timeout_s=60.0, hang_timeout_s=1.0, still_timeout_s=0.5))
    await nest.supervisor.start()
    assert (len(nest.pids), nest.supervisor.restarts) == (1, 0)
    await nest.supervisor.stop()


@pytest.mark.parametrize(
    ("healthy_s", "pauses"),
    [(3600.0, [0.0, 0.5, 1.0]), (0.0, [0.0, 0.0, 0.0])],
    ids=["they die young", "they were of use"],
)
async def test_restart_is_immediate_at_first_and_after_healthy_child(
    healthy_s: float, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    nest = Nest(watch=replace(PATIENT, healthy_s=healthy_s))
    await nest.supervisor.start()
    with caplog.at_level(logging.WARNING, "ipc.supervisor"):
        for _ in pauses:
            await kill(nest)
    await nest.supervisor.stop()
    assert pauses_s(caplog) == pauses


async def test_child_is_launched_after_restart_delay_which_grows_to_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[float | str] = []
    enough = asyncio.Event()

    class Mayfly(ChildProcess[Any]):
        """A child that is ready at once, and dies."""

        async def run(self) -> None:
            steps.append("launch")
            self._program.on_ready(None)

    async def sleep(delay_s: float) -> None:
        steps.append(delay_s)
        if len(steps) == 14:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(supervisor, "ChildProcess", Mayfly)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    nest = Nest(watch=replace(PATIENT, healthy_s=3600.0))
    nest.on_ready = lambda _: None
    await nest.supervisor.start()
    await enough.wait()
    await nest.supervisor.stop()
    assert steps[::2] == ["launch"] * 7
    assert steps[1::2] == [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0]


async def test_restart_delay_grows_while_child_cannot_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It grows even if the previous child was healthy."""
    nest = Nest(watch=replace(PATIENT, healthy_s=0.0))
    await nest.supervisor.start()
    program = nest.supervisor._program
    nest.supervisor._program = replace(program, args=[*program.args[:-1], "crash"])
    assert nest.supervisor.pid is not None
    with caplog.at_level(logging.WARNING, "ipc.supervisor"):
        os.kill(nest.supervisor.pid, signal.SIGKILL)
        await until(lambda: len(pauses_s(caplog)) >= 4)
    await nest.supervisor.stop()
    assert pauses_s(caplog)[:4] == [0.0, 0.0, 0.5, 1.0]

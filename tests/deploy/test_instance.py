"""deploy/systemd/instance.sh: services load one after another, each beside its GPU."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deploy.container import ROOT
from tests.faults.fake_service import free_port
from tests.service.live import gateway
from tests.waiting import until

INSTANCE = ROOT / "deploy" / "systemd" / "instance.sh"
#: Stands for the service: says that it runs, with its process id, and answers when it is told.
PROGRAM = """\
#!{python}
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health/startup" else 404)
        self.end_headers()

    def log_message(self, *args):
        pass

print("runs", os.getpid(), *sys.argv[1:], flush=True)
sys.stdin.readline()
HTTPServer(("127.0.0.1", int(os.environ["TALKWIRE_PORT"])), Answers).serve_forever()
"""


class Started:
    """A started instance: its process, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def runs(self) -> list[str]:
        """Wait until the program runs; return its process id and arguments."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        word, *rest = line.decode().split()
        assert word == "runs"
        return rest

    def load(self) -> None:
        """Let the program answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@contextlib.asynccontextmanager
async def instances(folder: Path, **env: str) -> AsyncIterator[list[Started]]:
    """Two instances that share a lock; the first runs and has not loaded."""
    program = folder / "talkwire"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    shared = {"TALKWIRE": str(program), "LOCK": str(folder / "lock"), "PYTHONPATH": ""}
    started: list[Started] = []

    async def start(number: int) -> Started:
        port = free_port()
        own = {"TALKWIRE_PORT": str(port), "CUDA_VISIBLE_DEVICES": str(number)}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(INSTANCE, "run", "serve", "--config", "file"),
            env=os.environ | shared | own | env,
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,
        )
        started.append(Started(process, port))
        return started[-1]

    try:
        first = await start(0)
        assert await first.runs() == [str(first.process.pid), "serve", "--config", "file"]
        await start(1)
        yield started
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            await one.process.communicate()
            assert one.process.stdin is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await one.process.stdin.wait_closed()


def has_waiter(lock: Path) -> bool:
    """Whether a process waits for the lock."""
    inode = str(lock.stat().st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


@pytest.mark.parametrize("ends", ["loads", "dies"])
async def test_next_instance_starts_once_the_first_has_loaded_or_died(
    ends: str, tmp_path: Path
) -> None:
    async with instances(tmp_path) as (first, second):
        await until(lambda: has_waiter(tmp_path / "lock"))
        runs = asyncio.create_task(second.runs())
        if ends == "loads":
            first.load()
        else:
            first.process.kill()
            await first.process.wait()
        assert await runs == [str(second.process.pid), "serve", "--config", "file"]
        assert (first.process.returncode is None) == (ends == "loads")


async def test_waiting_instance_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async with instances(tmp_path) as (first, second):
        await until(lambda: has_waiter(tmp_path / "lock"))
        second.process.terminate()
        # not wait(), which also waits for flock's pipes: systemd kills what is left of a unit
        await until(lambda: second.process.returncode == -signal.SIGTERM)
        assert first.process.returncode is None


async def test_wait_returns_when_the_real_gateway_has_loaded() -> None:
    async with gateway() as server:
        waiting = await asyncio.create_subprocess_exec(
            *(INSTANCE, "wait"),
            env=os.environ | {"TALKWIRE_PORT": server.http.rpartition(":")[2]},
        )
        assert await asyncio.wait_for(waiting.wait(), 60) == 0


async def test_instance_is_bound_to_the_node_of_its_gpu(tmp_path: Path) -> None:
    """The tools are scripts here: what they are asked, and what becomes of their answers."""
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    for name, lines in {
        "nvidia-smi": '[ "$1" = --id=0 ] || [ "$1" = --id=1 ] || exit 1\necho 00000000:3B:00.0',
        "numactl": f'echo "$@" >> {tmp_path}/bound\nshift 3\nexec "$@"',
    }.items():
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{lines}\n")
        tool.chmod(0o755)
    tools = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SYSFS": str(tmp_path / "sys")}
    async with instances(tmp_path, **tools) as (first, second):
        (device / "numa_node").write_text("-1\n")
        first.load()
        await second.runs()
    (bound,) = (tmp_path / "bound").read_text().splitlines()
    assert bound.startswith("--cpunodebind=1 --preferred=1 -- ")


@pytest.mark.parametrize("arguments", [[], ["stop"]])
async def test_other_verbs_are_refused(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        INSTANCE,
        *arguments,
        env=os.environ | {"TALKWIRE_PORT": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert (process.returncode, "run or wait" in errors.decode()) == (2, True)

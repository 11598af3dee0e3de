"""A log that cannot be written: workers restart, speech continues and the server shuts down."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.faults.fake_service import Instance, free_port, instance
from tests.faults.rig import PATIENCE_S


def broken_sink(kind: str) -> tuple[int, list[int]]:
    """A file descriptor to log to, and others to keep open while it is used."""
    if kind == "disk full":
        return os.open("/dev/full", os.O_WRONLY), []
    reading, writing = os.pipe()
    if kind == "reader gone":
        os.close(reading)
        return writing, []
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return writing, [reading]


def worker_of(server: Instance) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(child for child in children if "tests.faults.faulty_worker" in child.cmdline())


@pytest.mark.parametrize(
    "kind", ["reader stopped", "reader gone", pytest.param("disk full", marks=pytest.mark.long)]
)
async def test_broken_log_blocks_neither_worker_restart_nor_shutdown(
    kind: str, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    faults.touch()
    sink, kept = broken_sink(kind)
    try:
        async with instance(free_port(), stderr=sink, FAULTS=str(faults)) as server:
            await server.speak(1)
            worker_of(server).send_signal(signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while not await server.metric('tts_worker_restarts_total{worker="codec"}'):
                    await asyncio.sleep(0.05)
                while not await server.is_ready():
                    await asyncio.sleep(0.05)
            await server.speak(2)
            if kind != "reader stopped":  # its lines wait in the queue: they may still be read
                assert await server.metric("tts_log_lines_dropped_total")
            assert await server.terminate() == 0
    finally:
        for fd in (sink, *kept):
            os.close(fd)

"""Draining: open contexts are sent without pacing; those that are cut get an error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.runtime import Runtime
from tests.faults.fake_service import ROOT, free_port, instance
from tests.faults.history import Script
from tests.faults.labelled_audio import LabelTalker
from tests.faults.rig import (
    PATIENCE_S,
    Gateway,
    Listener,
    assert_right,
    cartesia,
    gateway,
    native,
    openai,
)
from tests.service.auth.keyring import entry, write_keys

#: 30 seconds of audio; the lead is one second.
FRAMES = (2500, 2500, 2500)
LEAD: dict[str, Any] = {"default_lead_ms": 1000}


class Drain:
    """Starts the drain at the first audio."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.task: asyncio.Task[None] | None = None

    async def begin(self, listener: Listener) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self._runtime.lifecycle.drain())


@contextlib.asynccontextmanager
async def ending(row_s: float, drain_s: float) -> AsyncIterator[tuple[Gateway, Drain]]:
    talker = LabelTalker(row_s=row_s, capacity=64)
    async with gateway(talker, drain_s=drain_s, **LEAD) as server:
        drain = Drain(server.runtime)
        yield server, drain
        assert drain.task is not None
        await drain.task


async def test_drain_completes_contexts_longer_than_drain_time() -> None:
    async with ending(row_s=0.0004, drain_s=20.0) as (server, drain):
        listeners = [Listener(Script(1, FRAMES), on_audio=drain.begin)]
        listeners += [Listener(Script(voice, FRAMES)) for voice in (2, 3)]
        await asyncio.gather(
            native(server.port, listeners[:1]),
            cartesia(server.port, listeners[1:2]),
            openai(server.port, listeners[2]),
        )
        assert_right(listeners, "complete")
        assert server.runtime.metrics.cut_by_drain._value.get() == 0


async def test_drain_timeout_sends_draining_error_and_counts_cut_context() -> None:
    async with ending(row_s=0.003, drain_s=1.0) as (server, drain):
        listener = Listener(Script(1, FRAMES), on_audio=drain.begin)
        await native(server.port, [listener])
        assert_right([listener], "broken")
        assert [error["code"] for error in listener.errors] == ["draining"]
        assert server.runtime.metrics.cut_by_drain._value.get() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_ends_server_that_is_still_speaking(number: signal.Signals) -> None:
    """Without it the drain would wait for the end of the context, for twenty minutes."""
    async with instance(free_port(), TALKWIRE_DRAIN_S="7200") as server:

        async def send(listener: Listener) -> None:
            if not listener.history[1:]:
                server.process.send_signal(number)
                async with asyncio.timeout(PATIENCE_S):
                    while await server.is_ready():
                        await asyncio.sleep(0.02)
                server.process.send_signal(number)

        listener = Listener(Script(1, (60_000,)), on_audio=send)
        await native(server.port, [listener])
        async with asyncio.timeout(PATIENCE_S):
            assert await server.process.wait() == os.EX_OK
        assert_right([listener], "broken")


@pytest.mark.long
async def test_sigterm_completes_long_context() -> None:
    """A real process, whose talker runs at an RTF of 0.5."""
    async with instance(
        free_port(), TALKWIRE_DRAIN_S="100", TALKWIRE_DEFAULT_LEAD_MS="1000"
    ) as server:

        async def terminate(listener: Listener) -> None:
            if not ended:
                ended.append(asyncio.create_task(server.terminate()))

        ended: list[asyncio.Task[int]] = []
        listener = Listener(Script(1, FRAMES), on_audio=terminate)
        await native(server.port, [listener])
        assert_right([listener], "complete")
        assert await ended[0] == os.EX_OK


async def test_sigterm_ends_server_with_thread_that_hangs(tmp_path: Path) -> None:
    """Nothing can wake a thread that waits for a dead network file system."""
    program = """
import threading
from service import reloading
from tests.faults import fake_service

def hang(path):
    if threading.current_thread() is threading.main_thread():  # the first time, at the start
        return None
    print("hangs", flush=True)
    threading.Event().wait()

reloading.RELOAD_S, reloading.file_state = 0.01, hang
fake_service.main()
"""
    keys = write_keys(tmp_path / "keys.json", entry("one", "acme"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "--port", "0"),
        cwd=ROOT,
        env=os.environ | {"TALKWIRE_API_KEYS_FILE": str(keys)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"hangs\n"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

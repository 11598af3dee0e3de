"""Speech that is cut at every step of the event loop ends once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from streaming.errors import CapacityError, ErrorCode
from streaming.events import Failed
from tests.service.memory import MemorySocket, Served, served

TEXT = "One. And two."
BODIES: dict[str, dict[str, Any]] = {
    "/v1/audio/speech": {"input": TEXT, "response_format": "pcm"},
    "/v1/audio/speech/batch": {"items": [{"input": TEXT}, {"input": TEXT}]},
}
#: Fewer steps than any of these takes to its end, and more.
LEAST_STEPS, MOST_STEPS = 20, 60


@pytest.fixture(autouse=True)
def _no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if an error was logged, as for an exception in a callback or of a forgotten task."""
    yield
    gc.collect()
    errors = [one for one in caplog.get_records("call") if one.levelno >= logging.ERROR]
    assert [(one.name, one.getMessage()) for one in errors] == []


def at_every_step(cut: Callable[[Served, int], Awaitable[bool]]) -> None:
    """Call ``cut`` with a step, from 0 until it returns that all was over by then."""

    async def run() -> None:
        async with served(max_contexts=4) as server:
            step = 0
            while not await cut(server, step):
                await server.until_free()
                assert not server.runtime.lifecycle.open_contexts
                assert not server.runtime.lifecycle.connections
                step += 1
            assert step > LEAST_STEPS

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", BODIES)
def test_request_cut_by_servers_end_leaves_nothing_behind(path: str) -> None:
    async def cut(server: Served, step: int) -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            async with server.request(path, BODIES[path]) as exchange:
                await steps(step)
                assert exchange._task is not None
                return not exchange._task.cancel()
        return False

    at_every_step(cut)


@pytest.mark.parametrize("path", BODIES)
def test_request_of_leaving_client_leaves_nothing_behind(path: str) -> None:
    async def cut(server: Served, step: int) -> bool:
        async with server.request(path, BODIES[path]) as exchange:
            await steps(step)
            assert exchange._task is not None
            return exchange._task.done()

    at_every_step(cut)


def cancel(server: Served, socket: MemorySocket) -> None:
    socket.send({"type": "context.cancel", "context_id": "c"})


def fail(server: Served, socket: MemorySocket) -> None:
    for context in list(server.runtime.lifecycle.open_contexts):
        context.post(Failed(CapacityError(ErrorCode.DRAINING, "cut")))


def drain(server: Served, socket: MemorySocket) -> None:
    server.runtime.lifecycle.begin_drain()
    server.runtime.lifecycle.end_drain()


def flush_and_end(server: Served, socket: MemorySocket) -> None:
    socket.send({"type": "context.flush", "context_id": "c", "flush_id": "f"})
    socket.send({"type": "context.end", "context_id": "c"})


@pytest.mark.parametrize("act", [cancel, fail, drain, flush_and_end])
def test_disturbed_context_ends_once(act: Callable[[Served, MemorySocket], None]) -> None:
    async def cut(server: Served, step: int) -> bool:
        ends, kind = 0, ""
        async with server.socket("/v1/tts/stream") as socket:
            socket.send({"type": "context.create", "context_id": "c"})
            socket.send({"type": "text.append", "context_id": "c", "text": TEXT})
            if act is not flush_and_end:
                socket.send({"type": "context.end", "context_id": "c"})
            while not server.runtime.lifecycle.open_contexts:
                await asyncio.sleep(0)
            await steps(step)
            is_over = not server.runtime.lifecycle.open_contexts or step > MOST_STEPS
            act(server, socket)
            while kind != "pong" and (said := await socket.next()) is not None:
                if isinstance(said, dict):
                    kind = said["type"]
                    assert said.get("code") != "internal"
                    if kind in ("context.done", "context.cancelled"):
                        ends += 1
                        socket.send({"type": "ping"})
            assert ends == 1
        return is_over

    at_every_step(cut)

"""R6: two services are restarted one after the other, by SIGTERM; no utterance is lost or cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator

import pytest

from tests.faults.fake_service import Instance, instance
from tests.faults.history import Script
from tests.faults.rig import PATIENCE_S, Listener, assert_right, native, openai

FRAMES = (60, 90)
#: The time of day may do what it likes meanwhile.
ENV = {"CLOCK": "wild"}


class Balancer:
    """Sends each new connection to the next instance that says it is ready, as kube-proxy would;
    what it believes may be a moment old.
    """

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.ready: list[Instance] = []
        self.port = 0
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self) -> None:
        """For ever: ask the instances whether they are ready."""
        while True:
            self.ready = [one for one in list(self.instances) if await one.is_ready()]
            await asyncio.sleep(0.1)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            chosen = self.ready[next(self._turn) % len(self.ready)]
            there = await asyncio.open_connection("127.0.0.1", chosen.port)
        except (OSError, ZeroDivisionError):
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        for end in (writer, there[1]):
            end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 14):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@contextlib.asynccontextmanager
async def balancer() -> AsyncIterator[Balancer]:
    made = Balancer()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    looking = asyncio.create_task(made.look())
    yield made
    looking.cancel()
    server.close()


async def client(between: Balancer, over: asyncio.Event, voices: itertools.count[int]) -> int:
    """Speaks until it is ``over``; what is refused is asked again, as clients are told to do.
    Returns how many utterances were heard: all that were asked for.
    """
    heard = 0
    while not over.is_set():
        voice = next(voices)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                listener = Listener(Script(voice, FRAMES))
                await speak(between.port, voice, listener)
                if listener.ended == "complete":
                    break
                assert not listener.samples, "an utterance was cut short"
                await asyncio.sleep(0.05)
        assert_right([listener], "complete")
        heard += 1
    return heard


async def speak(port: int, voice: int, listener: Listener) -> None:
    if voice % 2:
        await native(port, [listener])
    else:
        await openai(port, listener)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_rolling_restart_loses_no_utterance() -> None:
    over, voices = asyncio.Event(), itertools.count(1)
    async with contextlib.AsyncExitStack() as stack, balancer() as between:
        for _ in range(2):
            between.instances.append(await stack.enter_async_context(instance(free_port(), **ENV)))
        while len(between.ready) < 2:
            await asyncio.sleep(0.05)
        clients = [asyncio.create_task(client(between, over, voices)) for _ in range(6)]
        for old in list(between.instances):
            await asyncio.sleep(0.5)
            assert await old.terminate() == 0
            new = await stack.enter_async_context(instance(free_port(), **ENV))
            between.instances = [one for one in between.instances if one is not old] + [new]
            while new not in between.ready:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        over.set()
        heard = await asyncio.gather(*clients)
        assert min(heard) >= 1
        assert sum(heard) >= 12
        for one in between.instances:
            assert await one.terminate() == 0

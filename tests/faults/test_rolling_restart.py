"""R6: two instances restart one after the other by SIGTERM without losing or cutting utterances."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.fake_service import Instance, free_port, instance
from tests.faults.history import SPEC, Script
from tests.faults.rig import PATIENCE_S, Listener, assert_right, cartesia, native, openai

FRAMES = (60, 90)
#: Two minutes of audio, in sentences of ten seconds.
TWO_MINUTES = (round(10 / SPEC.frame_s),) * 12
#: The wall clock jumps during these tests.
ENV: dict[str, Any] = {"CLOCK": "wild"}


class Balancer:
    """Sends each new connection to the next ready instance, as kube-proxy would.

    Its view of readiness may be slightly stale.
    """

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.ready: list[Instance] = []
        self.port = 0
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self) -> None:
        """Poll the readiness of the instances forever."""
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
    """Speak until ``over`` is set, retrying what is refused; return the number of utterances.

    An utterance that has begun must complete.
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


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_rolling_restart_loses_no_utterance() -> None:
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


async def begin_two_minutes(
    port: int, voices: itertools.count[int]
) -> tuple[list[Listener], asyncio.Task[None]]:
    """Start a context in each of three protocols; return when all have begun to speak."""
    begun: dict[int, asyncio.Event] = {}

    async def on_audio(listener: Listener) -> None:
        begun[listener.script.voice].set()

    listeners = [Listener(Script(next(voices), TWO_MINUTES), on_audio=on_audio) for _ in range(3)]
    begun.update((one.script.voice, asyncio.Event()) for one in listeners)

    async def speak_all() -> None:
        a, b, c = listeners
        await asyncio.gather(native(port, [a]), cartesia(port, [b]), openai(port, c))

    speaking = asyncio.create_task(speak_all())
    for event in begun.values():
        await event.wait()
    return listeners, speaking


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_rolling_restart_completes_two_minute_contexts() -> None:
    """SIGTERM arrives while each instance speaks, some seconds ahead of its listeners; the rest
    of the two minutes is then sent as fast as the fake talker makes it.
    """
    quick, voices = {"ROW_S": "0.0002", **ENV}, itertools.count(1)
    heard: list[Listener] = []
    async with contextlib.AsyncExitStack() as stack, balancer() as between:
        for _ in range(2):
            between.instances.append(
                await stack.enter_async_context(instance(free_port(), **quick))
            )
        turns: list[asyncio.Task[None]] = []
        for old in list(between.instances):
            while set(between.ready) != set(between.instances):
                await asyncio.sleep(0.05)
            listeners, speaking = await begin_two_minutes(between.port, voices)
            heard += listeners
            turns.append(speaking)
            assert await old.metric("tts_contexts_active") >= 1
            assert await old.terminate() == 0
            new = await stack.enter_async_context(instance(free_port(), **quick))
            between.instances = [one for one in between.instances if one is not old] + [new]
        for last in between.instances:
            assert await last.terminate() == 0
        await asyncio.gather(*turns)
    assert_right(heard, "complete")

"""Two real services behind HAProxy, as on a machine with two GPUs: spread, kill, drain, restart."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from talkwire_client import (
    ChunkingOptions,
    Client,
    ClientError,
    ConnectionLostError,
    ErrorCode,
    ServerError,
)
from tests.deploy.balancer import HAPROXY, Balancer, balancer
from tests.e2e.live import Service, service
from tests.faults.fake_service import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(HAPROXY is None, reason="no haproxy (requirements/system.sh)"),
]
SHORT = "This is a short utterance."
#: Half a minute, which takes seconds to make.
LONG = " ".join(f"Sentence number {n} of a long story is spoken now." for n in range(1, 13))
#: Decoded with full lookahead, the same text is the same audio. Nobody listens at its pace.
OPTIONS: dict[str, Any] = {
    "temperature": 0.0,
    "chunking": ChunkingOptions(lookahead_frames=10),
    "max_lead_ms": 120_000,
}
#: WebSocket close code of a server that shuts down.
GOING_AWAY = 1001
BOTH = {"free": "gpu0 gpu1", "ready": "gpu0 gpu1"}


def only(number: int) -> dict[str, str]:
    return {"free": f"gpu{number}", "ready": f"gpu{number}"}


@contextlib.contextmanager
def started(port: int) -> Iterator[Service]:
    with service("--port", str(port)) as one:
        yield one


class Pair:
    """Two services and the balancer in front of them."""

    def __init__(self, services: list[Service], between: Balancer) -> None:
        self.services, self.between = services, between

    async def connections(self) -> list[int]:
        """Return the number of open sockets of each service."""
        line = "tts_connections_active "
        return [int(await asyncio.to_thread(one.metric, line)) for one in self.services]

    async def clients(self, stack: contextlib.AsyncExitStack) -> list[Client]:
        """Connect two clients through the balancer; return each service's own."""
        async with asyncio.timeout(60):
            while any(await self.connections()):  # earlier ones, which are being closed
                await asyncio.sleep(0.02)
        one = await stack.enter_async_context(Client(self.between.url))
        first = await self.connections()
        two = await stack.enter_async_context(Client(self.between.url))
        assert sorted(first) == [0, 1]
        assert await self.connections() == [1, 1]
        return [one, two] if first[0] else [two, one]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with started(free_port()) as one, started(free_port()) as two:
        async with balancer(one.port, two.port) as between:
            await between.until(**BOTH)
            yield Pair([one, two], between)


async def say(url: str, text: str) -> bytes:
    async with Client(url) as client, client.speak(text, **OPTIONS) as speech:
        return await speech.read()


async def test_sockets_are_spread_and_a_killed_service_takes_only_its_own(pair: Pair) -> None:
    short, whole = [await say(pair.services[0].url, text) for text in (SHORT, LONG)]
    async with contextlib.AsyncExitStack() as stack:
        clients = await pair.clients(stack)
        speeches = [
            await stack.enter_async_context(client.speak(LONG, **OPTIONS)) for client in clients
        ]
        cut, kept = [aiter(speech) for speech in speeches]
        heard, rest = (await anext(cut)).data, (await anext(kept)).data
        pair.services[0].process.kill()
        # At once: no check has to find it first.
        assert [await say(pair.between.url, SHORT) for _ in range(4)] == [short] * 4
        try:
            async for chunk in cut:
                heard += chunk.data
            pytest.fail("its service was killed")
        except ConnectionLostError:
            pass
        assert len(heard) < len(whole)
        assert whole.startswith(heard)
        async for chunk in kept:
            rest += chunk.data
        assert rest == whole
    await pair.between.until(**only(1))


async def test_draining_service_ends_its_contexts_whole(pair: Pair) -> None:
    short, whole = [await say(pair.services[0].url, text) for text in (SHORT, LONG)]
    async with contextlib.AsyncExitStack() as stack:
        leaving, staying = await pair.clients(stack)
        speeches = [
            await stack.enter_async_context(client.speak(LONG, **OPTIONS))
            for client in (leaving, staying)
        ]
        begun = [(await anext(aiter(speech))).data for speech in speeches]
        pair.services[0].process.send_signal(signal.SIGTERM)
        later = [asyncio.create_task(say(pair.between.url, SHORT)) for _ in range(4)]
        rest = await asyncio.gather(*(speech.read() for speech in speeches))
        assert [a + b for a, b in zip(begun, rest, strict=True)] == [whole] * 2
        assert await asyncio.gather(*later) == [short] * 4
        assert leaving.going_away is not None
        assert staying.going_away is None
    assert await asyncio.to_thread(pair.services[0].process.wait, 60) == 0


def is_before_notice(error: ClientError) -> bool:
    """Whether an utterance came while the notice that its service goes was on its way."""
    if isinstance(error, ConnectionLostError):
        return error.code == GOING_AWAY
    return isinstance(error, ServerError) and error.code == ErrorCode.DRAINING


@dataclass
class Talker:
    """A program that speaks short utterances, one after another, as the client's README says."""

    url: str
    want: bytes
    spoken: int = 0
    #: Utterances that were refused, or whose socket closed, before they began.
    begun_again: int = 0

    async def run(self, over: asyncio.Event) -> None:
        """Speak until ``over`` is set. An utterance that has begun must be whole."""
        client: Client | None = None
        try:
            while not over.is_set():
                if client is None or not client.is_open or client.going_away is not None:
                    if client is not None:
                        await client.close()
                    client = Client(self.url)
                    await client.connect()  # never refused: one of the services is ready
                pcm = b""
                try:
                    async with client.speak(SHORT, **OPTIONS) as speech:
                        async for chunk in speech:
                            pcm += chunk.data
                except (ServerError, ConnectionLostError) as error:
                    if pcm or not is_before_notice(error):
                        raise
                    self.begun_again += 1
                else:
                    assert pcm == self.want
                    self.spoken += 1
        finally:
            if client is not None:
                await client.close()


async def test_rolling_restart_under_load_loses_no_utterance() -> None:
    over = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        services = [stack.enter_context(started(free_port())) for _ in range(2)]
        between = await stack.enter_async_context(balancer(*(one.port for one in services)))
        await between.until(**BOTH)
        want = await say(services[0].url, SHORT)
        talkers = [Talker(between.url, want) for _ in range(4)]
        running = [asyncio.create_task(talker.run(over)) for talker in talkers]
        stack.callback(over.set)

        async def until_all_spoke() -> None:
            """Wait until each talker has spoken twice more."""
            wanted = [talker.spoken + 2 for talker in talkers]
            async with asyncio.timeout(300):
                while any(t.spoken < n for t, n in zip(talkers, wanted, strict=True)):
                    for task in running:
                        if task.done():
                            await task
                            pytest.fail("a talker has ended")
                    await asyncio.sleep(0.05)

        for number, old in enumerate(services):
            await until_all_spoke()
            old.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(old.process.wait, 120) == 0
            await between.until(**only(1 - number))
            await until_all_spoke()
            new = await asyncio.to_thread(stack.enter_context, started(old.port))
            assert new.port == old.port
            await between.until(**BOTH)
        await until_all_spoke()
        over.set()
        await asyncio.gather(*running)
    assert sum(talker.spoken for talker in talkers) >= 40

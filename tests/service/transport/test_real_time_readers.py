"""Clients that read as fast as they play: they answer pings late, and take data in large steps."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN

from loadtest.fakes.talker import FakeTalker
from service.dialects.native import NativeDialect
from service.timers import Look
from service.transport.intake import Intake, ParseTurns
from service.transport.websocket_protocol import EXTENSION, WebSocketProtocol, _Connection
from tests.service.contexts.fake_pinging import FakePinging
from tests.service.housekeeping import take_over_housekeeping
from tests.service.memory import MemorySocket, Served, served

READ, UNKNOWN = bytes(8), bytes([1] * 8)


class Room(asyncio.Event):
    """Whether the client takes messages; ``blocked`` once the server waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = asyncio.Event()

    async def wait(self) -> bool:  # type: ignore[override]
        if not self.is_set():
            self.blocked.set()
        return await super().wait()


class Choking(FakePinging):
    """Takes no more messages after a number of pings, none of which it has answered."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.room, self._most = Room(), most
        self.room.set()
        self.conn = _Connection()

    def ping(self, payload: bytes) -> None:
        super().ping(payload)
        if len(self.pings) == self._most:
            self.room.clear()

    def abort_in(self, seconds: float) -> None:
        """Nothing is left to abort."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    return take_over_housekeeping(monkeypatch)


@contextlib.asynccontextmanager
async def speaking(server: Served, pinging: Choking) -> AsyncIterator[MemorySocket]:
    """Open a socket, and ask for speech."""
    scope = server._scope("websocket", "/v1/tts/stream", {})
    extensions = {"websocket.http.response": {}, EXTENSION: pinging}
    talk = MemorySocket(server.app, scope | {"subprotocols": [], "extensions": extensions})
    talk.reading = pinging.room
    async with talk, asyncio.timeout(60):
        await talk.open()
        talk.send({"type": "context.create", "context_id": "c", "max_lead_ms": 120_000})
        talk.send({"type": "text.append", "context_id": "c", "text": "A longer speech. " * 6})
        talk.send({"type": "context.end", "context_id": "c"})
        yield talk


@pytest.mark.parametrize("reads", [True, False])
async def test_client_that_takes_nothing_is_slow_unless_it_answers_pings(
    reads: bool, looks: list[Look]
) -> None:
    pings = 20
    pinging, talker = Choking(pings), FakeTalker(frames_per_character=20)
    async with served(talker) as server, speaking(server, pinging) as talk:
        await pinging.room.blocked.wait()
        (look,), began = looks, time.monotonic()
        for step in range(pings):  # twice as long as slow_consumer_s
            if reads:
                pinging.answer(step)
            look(began + step)
        talk.reading.set()
        last: dict[str, Any] = {}
        while (message := await talk.next()) is not None:
            last = message if isinstance(message, dict) else last
            if last.get("type") == "context.done":
                break
        assert (last.get("reason"), last.get("code")) == (
            ("complete", None) if reads else (None, "slow_consumer")
        )


@pytest.mark.parametrize(
    ("reads", "drains", "seconds", "is_slow"),
    [
        (True, False, 15, False),
        (True, False, 70, True),
        (False, False, 15, True),
        (True, True, 15, True),
    ],
    ids=["playing", "has played", "has nothing to play", "draining"],
)
async def test_client_with_audio_to_play_need_not_answer_pings(
    reads: bool, drains: bool, seconds: int, is_slow: bool, looks: list[Look]
) -> None:
    pinging, talker = Choking(20), FakeTalker(frames_per_character=20)
    async with served(talker) as server, speaking(server, pinging) as talk:
        await pinging.room.blocked.wait()
        (look,), began = looks, time.monotonic()
        if reads:
            pinging.answer(len(pinging.pings) - 2)
        if drains:
            server.runtime.lifecycle.begin_drain()
        for step in range(seconds):
            look(began + step)
        talk.reading.set()
        codes = list[str]()
        while (message := await talk.next()) is not None:
            if isinstance(message, dict) and message["type"] == "error":
                codes.append(message["code"])
            if isinstance(message, dict) and message["type"] == "context.done":
                break
        assert ("slow_consumer" in codes) is is_slow


async def test_drain_waits_until_all_audio_was_read(
    looks: list[Look], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list[NativeDialect]()
    monkeypatch.setattr(NativeDialect, "on_leave", lambda dialect: left.append(dialect))
    pinging = Choking(1000)
    async with served() as server, speaking(server, pinging) as talk:
        while not isinstance(message := await talk.next(), dict) or (
            message["type"] != "context.done"
        ):
            pass
        (look,), began = looks, time.monotonic()
        server.runtime.lifecycle.begin_drain()
        look(began + 1.0)
        going = await talk.next()
        assert isinstance(going, dict)
        assert going["type"] == "going_away"
        look(began + 1.5)
        assert not left
        pinging.answer()
        look(began + 2.0)
        assert left
        while await talk.next() is not None:
            pass
        assert talk.close_code == 1001


class Transport:
    """Unsent data of which nothing is taken."""

    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return 1000

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
async def link() -> AsyncIterator[tuple[WebSocketProtocol, Transport]]:
    """A connection whose client has read the audio before the ping ``READ``."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nothing was asked")

    transport: Any = Transport()
    intake = Intake(ParseTurns(), transport, lambda _: None, "")
    link = WebSocketProtocol(
        app, {}, ServerState(), intake, max_message_bytes=1000, slow_consumer_s=5.0
    )
    link.transport = transport
    link.conn.state = OPEN
    link.on_pong = READ.__eq__
    yield link, transport
    link.connection_lost(None)


@pytest.mark.parametrize("payload", [READ, UNKNOWN], ids=["read", "unknown"])
async def test_keepalive_ping_may_wait_behind_audio_that_is_read(
    payload: bytes, link: tuple[WebSocketProtocol, Transport]
) -> None:
    protocol, _ = link
    protocol._send_keepalive()
    first = protocol._timers["keepalive"]
    protocol.handle_pong(Frame(Opcode.PONG, payload))
    assert first.cancelled() is (payload == READ)
    assert not protocol._timers["keepalive"].cancelled()


@pytest.mark.parametrize("payload", [READ, UNKNOWN], ids=["read", "unknown"])
async def test_unsent_data_may_wait_for_client_that_reads(
    payload: bytes, link: tuple[WebSocketProtocol, Transport]
) -> None:
    protocol, transport = link
    protocol._drop_unless_taken(math.inf)
    protocol.handle_pong(Frame(Opcode.PONG, payload))
    protocol._drop_unless_taken(transport.get_write_buffer_size(), again=True)
    assert transport.is_aborted is (payload != READ)
    protocol._drop_unless_taken(transport.get_write_buffer_size(), again=True)
    assert transport.is_aborted


async def test_client_with_audio_to_play_keeps_its_connection(
    link: tuple[WebSocketProtocol, Transport],
) -> None:
    protocol, transport = link
    protocol.unplayed_s = lambda: 100.0
    protocol.keepalive_timeout()
    protocol._drop_unless_taken(math.inf)
    later = asyncio.get_running_loop().time() + 99.0
    assert all(protocol._timers[purpose].when() > later for purpose in ("keepalive", "drop"))
    protocol.unplayed_s = lambda: 0.0  # it was played, and nothing was read or taken
    protocol.keepalive_timeout()
    protocol._drop_unless_taken(transport.get_write_buffer_size())
    assert all(protocol._timers[purpose].when() < later for purpose in ("keepalive", "drop"))


async def test_timers_that_fire_before_anything_is_read_end_nothing(
    link: tuple[WebSocketProtocol, Transport],
) -> None:
    """After a pause of the process, a pong may still wait, and unsent data may have room."""
    protocol, transport = link
    protocol.keepalive_payload = b"ping"
    protocol.keepalive_timeout()
    protocol._drop_unless_taken(transport.get_write_buffer_size())
    protocol.handle_pong(Frame(Opcode.PONG, b"ping"))
    assert not protocol.keepalive_payload
    assert not transport.is_aborted
    assert protocol.conn.state is OPEN

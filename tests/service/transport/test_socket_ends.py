"""Ends of sockets: last messages, close codes and released resources."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from loadtest.fakes.talker import FakeTalker
from service.dialects.native import NativeDialect
from service.transport import websocket as socket
from service.transport import websocket_protocol
from service.transport.websocket_protocol import WebSocketProtocol
from tests.service.dialects.native.texts import TEXT
from tests.service.live import Client, Gateway, append, client, gateway, write
from tests.service.memory import served
from tests.waiting import until

#: Settings under which one text gives more audio than the outbox may hold.
TOO_MUCH: dict[str, Any] = {"max_outbox_bytes": 1 << 16, "max_lead_ms": 10**7}


@contextlib.asynccontextmanager
async def unread_speech(server: Gateway) -> AsyncIterator[ClientConnection]:
    """Connect a client that has a long text spoken and reads nothing of it."""
    async with connect(server.url, compression=None, max_queue=1, close_timeout=0.1) as stalled:
        c = Client(stalled)
        await c.next()
        await c.create(max_lead_ms=10**7)
        stalled.transport.pause_reading()
        await c.send("text.append", context_id="c", text=TEXT * 4)
        yield stalled


async def rest(c: Client) -> list[dict[str, Any]]:
    """Return the messages up to the close, without audio."""
    said = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            if isinstance(message := await c.next(), dict):
                said.append(message)
    return said


@pytest.mark.parametrize("looks_s", [0.0, 60.0])
async def test_full_outbox_closes_socket_as_slow_consumer(
    looks_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", looks_s)
    talker = FakeTalker(frames_per_character=20)
    async with gateway(talker, **TOO_MUCH) as server, client(server.url) as c:
        await c.create(max_lead_ms=10**7)
        await c.send("text.append", context_id="c", text=TEXT)
        last = (await rest(c))[-1]
        assert (last["type"], last.get("code")) == ("error", "slow_consumer")
        assert c.socket.close_code == 1008
        await server.until_free()


@pytest.mark.parametrize("encoding", ["pcm_s16le", "opus"])
async def test_audio_too_long_for_outbox_fails_only_its_context(encoding: str) -> None:
    talker, options = FakeTalker(frames_per_character=20), {"mode": "whole"}
    async with gateway(talker, max_outbox_bytes=1 << 16) as server, client(server.url) as c:
        await c.create(audio={"encoding": encoding}, **options)
        await c.send("text.append", context_id="c", text="This is much too long.")
        await c.send("context.end", context_id="c")
        error = await c.error()
        assert (error["code"], error["context_id"]) == ("text_too_long", "c")
        assert (await c.until("context.done"))["reason"] == "error"
        await c.create("d", audio={"encoding": encoding}, **options)
        await c.send("text.append", context_id="d", text="A")
        await c.send("context.end", context_id="d")
        assert (await c.until("context.done", "d"))["reason"] == "complete"
        await server.until_free()


async def test_whole_audio_without_room_beside_other_audio_fails_only_its_context() -> None:
    limits: dict[str, Any] = {"max_outbox_bytes": 1 << 16}
    async with served(**limits) as server, server.socket("/v1/tts/stream") as talk:
        await talk.next()
        for name in "ab":
            talk.send({"type": "context.create", "context_id": name, "mode": "whole"})
            await talk.next()
        talk.reading.clear()
        for name in "ab":  # 20 frames of 1920 bytes each, of which one has room
            talk.send(append("Ten chars.") | {"context_id": name})
            talk.send({"type": "context.end", "context_id": name})
        await until(lambda: not server.runtime.lifecycle.open_contexts)
        talk.reading.set()
        ends, codes = dict[str, str](), list[str]()
        while len(ends) < 2:
            message = await talk.next()
            assert message is not None, "the socket was closed"
            if isinstance(message, dict) and message["type"] == "error":
                codes.append(message["code"])
            elif isinstance(message, dict) and message["type"] == "context.done":
                ends[message["context_id"]] = message["reason"]
        assert (sorted(ends.values()), codes) == (["complete", "error"], ["overloaded"])


async def test_housekeeping_exception_closes_only_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", 0.05)
    on_tick, broken = NativeDialect.on_tick, list[NativeDialect]()

    def tick(dialect: NativeDialect, now: float) -> None:
        if not broken or dialect in broken:
            broken.append(dialect)
            raise ZeroDivisionError("nobody's business")
        on_tick(dialect, now)

    async with gateway() as server, client(server.url) as c:
        await c.create()
        monkeypatch.setattr(NativeDialect, "on_tick", tick)
        said = await rest(c)
        assert "nobody's business" not in str(said)
        assert "context.cancelled" not in [message["type"] for message in said]
        assert (c.socket.close_code, c.socket.close_reason) == (1011, "")
        await server.until_free()
        async with client(server.url) as another:
            assert len(await another.say("Still here.")) > 0


async def test_messages_after_session_close_are_not_answered() -> None:
    async with gateway() as server, client(server.url) as c:
        write(c, [{"type": "session.close"}, {"type": "ping", "id": "7"}, append("a")])
        assert await rest(c) == []
        assert c.socket.close_code == 1000


async def test_message_during_close_opens_no_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = list[WebSocketProtocol]()
    close, receive = NativeDialect.close, WebSocketProtocol.data_received

    def note(link: WebSocketProtocol, data: bytes) -> None:
        links.append(link)
        receive(link, data)

    def close_and_hear(dialect: NativeDialect) -> None:
        close(dialect)
        if (tell := links[-1].on_message) is not None:
            tell(json.dumps({"type": "context.create", "context_id": "late"}))

    monkeypatch.setattr(WebSocketProtocol, "data_received", note)
    monkeypatch.setattr(NativeDialect, "close", close_and_hear)
    talker = FakeTalker(frames_per_character=20)
    async with gateway(talker, **TOO_MUCH) as server:
        async with client(server.url) as c:
            await c.create(max_lead_ms=10**7)
            await c.send("text.append", context_id="c", text=TEXT)
            last = (await rest(c))[-1]
            assert (last["type"], last.get("code")) == ("error", "slow_consumer")
        assert server.runtime.admission.active == 0
        await until(lambda: not server.runtime.lifecycle.connections, timeout_s=20)


async def test_socket_opened_at_start_of_drain_gets_going_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", 60.0)
    hello = NativeDialect.open

    async with gateway() as server:

        def going(dialect: NativeDialect) -> None:
            hello(dialect)
            server.runtime.lifecycle.begin_drain()

        monkeypatch.setattr(NativeDialect, "open", going)
        async with client(server.url) as c:
            assert [message["type"] for message in await rest(c)] == ["going_away"]
            assert c.socket.close_code == 1001


async def test_silent_client_that_answers_pings_stays_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "_PING_S", 1.0)
    async with gateway() as server, client(server.url) as c:
        await asyncio.sleep(2.2)  # an unanswered ping would have closed the socket
        assert len(await c.say("Still here.")) > 0


async def test_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "_FLUSH_S", 0.1)
    lost = asyncio.Event()
    connection_lost = WebSocketProtocol.connection_lost

    def note(link: WebSocketProtocol, exc: Exception | None) -> None:
        connection_lost(link, exc)
        lost.set()

    monkeypatch.setattr(WebSocketProtocol, "connection_lost", note)
    talker = FakeTalker(frames_per_character=100)
    limits: dict[str, Any] = {"slow_consumer_s": 0.5, "max_lead_ms": 10**7}
    async with (
        gateway(talker, **limits) as server,
        unread_speech(server) as stalled,
    ):
        async with asyncio.timeout(40):
            await lost.wait()
        assert stalled.close_code is None  # the client did not close the socket
        await server.until_free()


async def test_server_can_end_while_client_that_has_closed_has_not_read_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "_FLUSH_S", 0.1)
    choked: list[WebSocketProtocol] = []
    pause_writing = WebSocketProtocol.pause_writing

    def note(link: WebSocketProtocol) -> None:
        pause_writing(link)
        choked.append(link)

    monkeypatch.setattr(WebSocketProtocol, "pause_writing", note)
    async with (
        gateway(FakeTalker(frames_per_character=100), max_lead_ms=10**7) as server,
        unread_speech(server) as stalled,
    ):
        await until(lambda: choked)
        stalled.transport.write(Frame(Opcode.CLOSE, b"").serialize(mask=True))
        await until(lambda: choked[0].transport.is_closing())
        choked[0].shutdown()  # as uvicorn does at the server's end

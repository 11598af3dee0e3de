"""Silent and slow connections: limits on their time and number."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.http11 import Request

from service.settings import Settings
from service.transport import http_protocol
from service.transport import http_routes as http_route
from service.transport.http_protocol import HttpProtocol
from service.transport.server_config import SPARE, ServerConfig, server_config
from service.transport.websocket_protocol import WebSocketProtocol
from tests.service.live import client, gateway, hold_codec
from tests.service.server import Server
from tests.service.transport.raw_connection import raw, rest
from tests.waiting import until


class Deadlines:
    """An event loop for connections, whose deadlines pass only when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set: list[tuple[asyncio.TimerHandle, Callable[..., object], tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(
        self, seconds: float, call: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        if isinstance(call, partial):  # a second look at what came during a pause
            return self._loop.call_later(seconds, call, *args)
        handle = self._loop.call_later(3600, call, *args)
        if getattr(call, "__func__", None) is HttpProtocol._expire:  # the others are uvicorn's
            self._set.append((handle, call, args))
        return handle

    def expire(self) -> None:
        """Let the deadlines pass that are set now."""
        due, self._set = self._set, []
        for handle, call, args in due:
            if not handle.cancelled():
                handle.cancel()
                call(*args)


@pytest_asyncio.fixture
async def deadlines(monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    """The deadlines of all connections of HTTP and of handshakes."""
    made, protocol = Deadlines(asyncio.get_running_loop()), ServerConfig._protocol

    def on_loop(own: ServerConfig, **uvicorns: Any) -> asyncio.Protocol:
        return protocol(own, **uvicorns | {"_loop": made})

    monkeypatch.setattr(ServerConfig, "_protocol", on_loop)
    return made


UPGRADE = (
    b"GET /v1/tts/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)
POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HT", UPGRADE, b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100],
    ids=["nothing", "half a line", "half a handshake", "half a head"],
)
async def test_unfinished_head_is_cut_off(said: bytes) -> None:
    async with gateway(handshake_s=0.3) as server, raw(server) as (reader, writer):
        writer.write(said)
        assert await rest(reader) == b""


async def test_handshake_deadline_holds_for_trickled_bytes() -> None:
    async with gateway(handshake_s=0.5) as server, raw(server) as (reader, writer):

        async def trickle() -> None:
            for byte in UPGRADE * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert await rest(reader) == b""
        trickling.cancel()


async def test_handshake_deadline_holds_for_next_request_of_connection(
    deadlines: Deadlines,
) -> None:
    async with gateway() as server, raw(server) as (reader, writer), asyncio.timeout(60):
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /health/live HTTP/1.1\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"}")
        deadlines.expire()
        assert await rest(reader) == b"", body


@pytest.mark.parametrize("length", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_missing_body_is_answered_with_idle_timeout(
    length: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_route, "_BODY_S", 0.3)
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(POST + b"Connection: close\r\n" + length + b"\r\n\r\n")
        answer = await rest(reader)
        assert b'"code":"idle_timeout"' in answer.replace(b" ", b"")
        assert server.runtime.admission.active == 0


@pytest.mark.parametrize(
    "path", [b"/v1/audio/voices", b"/tts/bytes", b"/v1/text-to-speech/default", b"/v1/speak"]
)
async def test_missing_body_gets_408_in_every_dialect(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_route, "_BODY_S", 0.1)
    async with gateway() as server, raw(server) as (reader, writer):
        head = POST.replace(b"/v1/audio/speech", path)
        writer.write(head + b"Connection: close\r\nContent-Length: 100\r\n\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_missing_body_for_unknown_route_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_BODY_S", 0.3)
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
        assert b"404" in await rest(reader)


async def test_oldest_silent_connections_are_closed_over_limit() -> None:
    most = SPARE + 2
    async with gateway(max_connections=2) as server, contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw(server)) for _ in range(most + 20)]
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(server.http + "/health/ready")).status_code == 200
        async with client(server.url) as talk:
            assert len(await talk.say("Hello there.")) > 0
        for reader, _ in silent[:20]:  # the oldest were closed
            assert await rest(reader) == b""
        assert not silent[-1][0].at_eof()


@pytest.mark.parametrize("crowd", ["127.0.0.1", "127.0.0.2"], ids=["same", "other"])
async def test_crowd_of_silent_connections_evicts_no_body_that_arrives(crowd: str) -> None:
    body = b'{"input":"Hello there.","response_format":"pcm"}'
    async with gateway(max_connections=2) as server, contextlib.AsyncExitStack() as stack:
        reader, writer = await stack.enter_async_context(raw(server))
        writer.write(POST + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n")
        for byte in body:
            writer.write(bytes((byte,)))
            for _ in range(4):
                await stack.enter_async_context(raw(server, crowd))
        async with asyncio.timeout(30):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_network_with_most_waiting_connections_gives_one_up() -> None:
    async with gateway(max_connections=2) as server, contextlib.AsyncExitStack() as stack:
        modest = await stack.enter_async_context(raw(server, "127.0.0.2"))
        many = [await stack.enter_async_context(raw(server)) for _ in range(SPARE + 5)]
        for reader, _ in many[:4]:
            assert await rest(reader) == b""
        modest[1].write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            assert b" 200 " in await modest[0].readuntil(b"\r\n\r\n")


async def test_unread_requests_over_limit_are_told_to_come_again() -> None:
    """When many clients reconnect at once, all are accepted before a request is read."""
    many = SPARE + 2 + 20
    async with gateway(max_connections=2) as server:
        url = httpx.URL(server.http)
        # without a turn of the loop, so that the server sees them together
        clients = [socket.create_connection((url.host, url.port or 0)) for _ in range(many)]
        for each in clients:
            each.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = []
        for each in clients:
            reader, writer = await asyncio.open_connection(sock=each)
            async with asyncio.timeout(60):
                answers.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()
    busy = [each for each in answers if b" 503 " in each]
    assert len(busy) == 20
    assert all(b"retry-after: 1\r\n" in each for each in busy)
    assert all(each in busy or b" 200 " in each for each in answers)


async def test_handshake_deadline_does_not_hold_for_accepted_socket(
    deadlines: Deadlines,
) -> None:
    async with gateway() as server, client(server.url) as talk:
        deadlines.expire()
        await talk.send("ping", id="x")
        assert (await talk.until("pong"))["id"] == "x"


async def test_handshake_deadline_does_not_hold_for_slow_answer(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        asked, may_answer = hold_codec(server, monkeypatch)
        body = {"input": "Hello there, my dear.", "response_format": "pcm"}
        asking = asyncio.create_task(http.post(server.http + "/v1/audio/speech", json=body))
        async with asyncio.timeout(60):
            await asked.wait()
        deadlines.expire()
        may_answer.set()
        answer = await asking
        assert answer.status_code == 200
        assert len(answer.content) > 24_000


ANSWER = bytes(1 << 20)


@contextlib.asynccontextmanager
async def reading_slowly(**settings: Any) -> AsyncIterator[tuple[asyncio.StreamReader, set[Any]]]:
    """Yield a reader that has requested ``ANSWER``, and the server's connections.

    Little of the answer fits into the kernel's buffers.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        length = (b"content-length", str(len(ANSWER)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": ANSWER})

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    config = server_config(answer, Settings(**settings), grace_s=2)
    config.lifespan = "off"
    async with Server(config, listener) as server:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, listener.getsockname())
        reader, writer = await asyncio.open_connection(sock=own, limit=8192)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        try:
            yield reader, server.server_state.connections
        finally:
            writer.close()


async def test_slow_reader_of_long_answer_is_not_cut_off(deadlines: Deadlines) -> None:
    async with reading_slowly() as (reader, connections):
        (connection,) = connections
        unread = connection.transport.get_write_buffer_size
        for _ in range(7):
            before = unread()
            await reader.readexactly(len(ANSWER) // 14)
            await until(lambda: unread() < before)  # noqa: B023
            deadlines.expire()
        async with asyncio.timeout(60):
            await reader.readexactly(len(ANSWER) - 7 * (len(ANSWER) // 14))


async def test_reader_may_take_nothing_for_longer_than_next_request_may_take() -> None:
    async with reading_slowly(handshake_s=0.2) as (reader, _):
        await reader.readexactly(1000)
        await asyncio.sleep(0.8)  # the fault itself
        assert len(await rest(reader)) == len(ANSWER) - 1000


async def test_reader_that_stops_in_long_answer_is_cut_off(deadlines: Deadlines) -> None:
    async with reading_slowly() as (reader, connections), asyncio.timeout(30):
        await reader.readexactly(1000)
        while connections:
            deadlines.expire()
            await asyncio.sleep(0.02)


async def test_message_with_empty_fragments_is_answered() -> None:
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(UPGRADE + b"\r\n")
        async with asyncio.timeout(30):
            assert b"101" in await reader.readuntil(b"\r\n\r\n")
            mask = bytes(4)
            text = b'{"type":"ping","id":"whole"}'
            writer.write(b"\x01\x80" + mask + (b"\x00\x80" + mask) * 4_000)
            writer.write(bytes((0x80, 0x80 | len(text))) + mask + text)
            while b'"whole"' not in await reader.read(65536):
                pass


async def test_message_of_too_many_fragments_is_closed_with_1008() -> None:
    """Empty fragments would pass every limit of size."""
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(UPGRADE + b"\r\n")
        async with asyncio.timeout(30):
            assert b"101" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\x01\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * 100_000)
        assert (1008).to_bytes(2, "big") in await rest(reader)


async def test_compression_offer_is_declined() -> None:
    async with (
        gateway() as server,
        connect(server.url, compression="deflate") as socket,
    ):
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


async def test_client_that_leaves_during_hold_logs_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, lost, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    connection_lost = WebSocketProtocol.connection_lost
    run = WebSocketProtocol._run

    def note_lost(link: WebSocketProtocol, exc: Exception | None) -> None:
        connection_lost(link, exc)
        lost.set()

    async def note_over(link: WebSocketProtocol, handshake: Request) -> None:
        await run(link, handshake)
        over.set()

    async def hold() -> None:
        held.set()
        await lost.wait()

    monkeypatch.setattr(WebSocketProtocol, "connection_lost", note_lost)
    monkeypatch.setattr(WebSocketProtocol, "_run", note_over)
    async with gateway() as server:
        monkeypatch.setattr(server.runtime.lifecycle, "hold_until_ready", hold)
        async with raw(server) as (_, writer), asyncio.timeout(30):
            writer.write(UPGRADE + b"\r\n")
            await held.wait()
            writer.close()
            await over.wait()
        assert server.runtime.lifecycle.connections == 0
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]

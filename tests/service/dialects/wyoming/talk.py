"""A client of Wyoming, which shares no code with the service, and a listener for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from service.dialects.wyoming.listener import serve_wyoming
from service.listening import configure_listener
from service.runtime import Runtime
from tests.waiting import until

#: Seconds for anything that must happen.
PATIENCE_S = 30


class Heard(NamedTuple):
    """An event of the server."""

    type: str
    data: dict[str, Any]
    payload: bytes


class WyomingTalk:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, type_: str, payload: bytes = b"", **data: Any) -> None:
        """Send an event, with its data after the line."""
        line: dict[str, Any] = {"type": type_, "version": "1.10.2"}
        more = json.dumps(data).encode() if data else b""
        if more:
            line["data_length"] = len(more)
        if payload:
            line["payload_length"] = len(payload)
        self.send_bytes(json.dumps(line).encode() + b"\n" + more + payload)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, of which the server need not read all."""
        with contextlib.suppress(OSError):
            self.writer.write(data)

    def pause(self) -> None:
        """Stop reading."""
        assert isinstance(self.writer.transport, asyncio.ReadTransport)
        self.writer.transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        assert isinstance(self.writer.transport, asyncio.ReadTransport)
        self.writer.transport.resume_reading()

    async def next(self) -> Heard | None:
        """Return the next event; None once the server has ended the connection."""
        async with asyncio.timeout(PATIENCE_S):
            if not (line := await self.reader.readline()):
                return None
            event = json.loads(line)
            data = event.get("data", {})
            if length := event.get("data_length"):
                data |= json.loads(await self.reader.readexactly(length))
            payload = await self.reader.readexactly(event.get("payload_length") or 0)
        return Heard(event["type"], data, payload)

    async def until(self, type_: str) -> list[Heard]:
        """Return the events up to one of a type."""
        heard: list[Heard] = []
        while not heard or heard[-1].type != type_:
            event = await self.next()
            assert event is not None, f"ended before {type_}, after {heard[-1:]}"
            assert event.type == type_ or event.type != "error", event.data
            heard.append(event)
        return heard

    async def error(self) -> dict[str, Any]:
        """Return the error that ends the connection, which follows anything else."""
        event = (await self.until("error"))[-1]
        assert await self.next() is None
        return event.data

    async def speak(self, text: str, **data: Any) -> bytes:
        """Return the samples of a text."""
        self.send("synthesize", text=text, **data)
        return samples_of(await self.until("audio-stop"))


def samples_of(events: list[Heard]) -> bytes:
    """Return the samples in events, which all have the same format."""
    audio = [event for event in events if event.type in ("audio-start", "audio-chunk")]
    formats = {(e.data["rate"], e.data["width"], e.data["channels"]) for e in audio}
    assert formats <= {(24_000, 2, 1)}
    return b"".join(event.payload for event in audio)


@contextlib.asynccontextmanager
async def listening(runtime: Runtime, send_bytes: int | None = None) -> AsyncIterator[int]:
    """Serve Wyoming during the block, on the port that this yields. ``send_bytes``: the kernel's
    buffer of each connection, if it is not to be the service's own.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    configure_listener(listener, runtime.settings.slow_consumer_s)
    if send_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    listener.setblocking(False)
    async with serve_wyoming(runtime, listener):
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def connected(port: int, receive_bytes: int | None = None) -> AsyncIterator[WyomingTalk]:
    """Connect, and disconnect after the block. ``receive_bytes``: the kernel's buffer."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=client)
    try:
        yield WyomingTalk(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def talking(runtime: Runtime) -> AsyncIterator[WyomingTalk]:
    """Serve one client, whose leaving ends its connection before the listener does."""
    async with listening(runtime) as port:
        async with connected(port) as talk:
            yield talk
        await until_left(runtime)


async def until_left(runtime: Runtime) -> None:
    """Wait until the service has no connection."""
    await until(lambda: not runtime.lifecycle.connections, timeout_s=PATIENCE_S)

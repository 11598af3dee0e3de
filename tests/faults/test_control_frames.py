"""Pings of a client that reads no pongs: bounded memory, dropped connections, a flood limit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from service.transport import websocket_protocol
from tests.faults.rig import PATIENCE_S, Gateway, gateway

UPGRADE = (
    b"GET /v1/tts/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def ping(number: int) -> bytes:
    """The largest ping frame, masked with zeros."""
    return b"\x89\xfd" + bytes(4) + struct.pack(">I", number) + bytes(121)


def pong(number: int) -> bytes:
    return b"\x8a\x7d" + struct.pack(">I", number) + bytes(121)


@contextlib.asynccontextmanager
async def raw(server: Gateway) -> AsyncIterator[Raw]:
    """A WebSocket with a small receive buffer."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.setblocking(False)
    await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=wire, limit=1 << 10)
    try:
        writer.write(UPGRADE)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()


def waiting_bytes(server: Gateway) -> int:
    """Bytes in the server's write buffers."""
    connections = server.server.server_state.connections
    return sum(each.transport.get_write_buffer_size() for each in connections)


async def send_pings(server: Gateway, writer: asyncio.StreamWriter, count: int) -> int:
    """Send pings; return the largest number of bytes that the server buffered meanwhile."""
    most = 0
    async with asyncio.timeout(PATIENCE_S):
        for number in range(count):
            writer.write(ping(number))
            if number % 100 == 99:
                await writer.drain()
                most = max(most, waiting_bytes(server))
    return most


async def test_pongs_use_bounded_memory_and_last_ping_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "_MOST_CONTROL_FRAMES", 1 << 30)
    async with gateway() as server, raw(server) as (reader, writer):
        count = 60_000  # 8 MB
        assert await send_pings(server, writer, count) < 1 << 20
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while pong(count - 1) not in data:
                data = data[-200:] + await reader.read(1 << 16)


async def test_client_that_reads_no_pongs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "_MOST_CONTROL_FRAMES", 1 << 30)
    async with gateway(slow_consumer_s=0.1) as server, raw(server) as (_, writer):
        with contextlib.suppress(OSError):
            await send_pings(server, writer, 60_000)
        await server.until_free()


async def test_ping_flood_closes_connection_with_1008(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "_MOST_CONTROL_FRAMES", 30)
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(b"".join(map(ping, range(40))))
        async with asyncio.timeout(PATIENCE_S):
            data = await reader.read(-1)
        assert pong(29) in data
        assert struct.pack(">H", 1008) in data
        await server.until_free()

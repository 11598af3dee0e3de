"""A minimal WebSocket client over TCP that can send invalid frames.

It shares no code with the service or its libraries.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


@dataclass(frozen=True)
class Frame:
    """A received frame: ``first`` is its first byte, with FIN and the reserved bits on top."""

    first: int
    payload: bytes

    @property
    def opcode(self) -> int:
        return self.first & 15

    @property
    def close_code(self) -> int | None:
        return int.from_bytes(self.payload[:2], "big") if len(self.payload) > 1 else None


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes | None = b"\x12\x34\x56\x78",
    length: int | None = None,
    wide: int = 0,
) -> bytes:
    """An encoded frame.

    ``length`` overrides the length in the header; ``wide`` selects a longer form of the length
    than is needed.
    """
    size = len(payload) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = 0 if mask is None else 128
    if size < 126 and not wide:
        head += bytes([bit | size])
    elif size < 65536 and wide < 8:
        head += bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    stream = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return head + mask + bytes(a ^ b for a, b in zip(payload, stream, strict=True))


class Wire:
    """One connection after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def next(self) -> Frame | None:
        """The next frame, or None when the connection has ended."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(60):
                first, size = await self.reader.readexactly(2)
                assert not size & 128, "a server masks nothing"
                if size > 125:
                    data = await self.reader.readexactly(2 if size == 126 else 8)
                    size = int.from_bytes(data, "big")
                return Frame(first, await self.reader.readexactly(size))
        return None

    async def rest(self) -> list[Frame]:
        """All frames up to the end of the connection."""
        frames = []
        while (came := await self.next()) is not None:
            frames.append(came)
        return frames


@contextlib.asynccontextmanager
async def wire(port: int, path: str = "/", extra: str = "") -> AsyncIterator[Wire]:
    """Open a connection and complete the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Sec-WebSocket-Version: 13\r\n{extra}\r\n".encode()
        )
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # RFC 6455, section 1.3
        assert b"Sec-WebSocket-Extensions" not in head
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

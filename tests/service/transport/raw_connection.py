"""Bare TCP connections to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx

from tests.service.live import Gateway

Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def raw(server: Gateway, address: str = "127.0.0.1") -> AsyncIterator[Raw]:
    """Connect from a local address."""
    url = httpx.URL(server.http)
    reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes; fail if the connection stays open."""
    data = b""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                data += piece
    return data

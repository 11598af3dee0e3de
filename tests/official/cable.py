"""A TCP connection to the service that a test can cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cable:
    """A TCP connection to the service that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._joined: list[asyncio.Event] = []
        self.connections = 0

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        self._joined.append(apart := asyncio.Event())
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        apart.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        for apart in self._joined:
            await apart.wait()


@asynccontextmanager
async def cable(port: int) -> AsyncIterator[tuple[Cable, str]]:
    laid = Cable(port)
    server = await asyncio.start_server(laid.join, "127.0.0.1", 0)
    near = server.sockets[0].getsockname()[1]
    try:
        yield laid, f"ws://127.0.0.1:{near}/v1/tts/stream"
    finally:
        await laid.cut()
        server.close()

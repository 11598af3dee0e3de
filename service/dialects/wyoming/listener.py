"""The listener of Wyoming, beside that of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from service.dialects.wyoming.connection import Connection
from service.dialects.wyoming.info import info_body
from service.listening import BACKLOG
from service.runtime import Runtime


@contextlib.asynccontextmanager
async def serve_wyoming(runtime: Runtime, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve Wyoming on ``listener``, if any, during the block, whose end cuts connections. In a
    drain they end by themselves. Clients are held until the engines are ready, for ``hold_s``.
    """
    if listener is None:
        yield
        return
    info, serving = info_body(runtime), set[asyncio.Task[None]]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(Connection(runtime, info, reader, writer).serve())
        serving.add(task)
        task.add_done_callback(serving.discard)

    limit = runtime.settings.max_message_bytes
    server = await asyncio.start_server(accept, sock=listener, limit=limit, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

"""The service's WebSocket stack with a dialect that echoes every message.

WebSocket test suites need an echo server. The listener, middleware, handshake, reader, writer and
outbox (``service.transport``) are the real ones; only the dialect differs.
``python -m tests.conformance.echo_server`` prints its port and serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from fastapi import FastAPI, WebSocket

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.access.gate import OriginGuard
from service.build import assemble
from service.engines.contracts import Engines
from service.errors import NATIVE_TABLE
from service.runtime import Runtime
from service.settings import Settings
from service.transport.server_config import server_config
from service.transport.websocket import Dialect, serve_socket
from streaming.errors import TalkwireError
from tests.service.live import SPEC
from tests.service.server import Server


class Echo(Dialect):
    """Echoes text and binary messages."""

    def on_text(self, text: str) -> None:
        self.socket.send(text)

    def on_bytes(self, data: bytes) -> None:
        self.socket.send(data)

    def on_tick(self, now: float) -> None: ...

    def is_settled(self, now: float) -> bool:
        return True

    def render_error(self, error: TalkwireError) -> str:
        return error.message

    def close(self) -> None: ...


def _app(runtime: Runtime) -> FastAPI:
    app = FastAPI()
    app.add_middleware(OriginGuard, allowed=(), errors=runtime.errors)

    @app.websocket("/")
    async def echo(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, Echo, NATIVE_TABLE)

    return app


@contextlib.asynccontextmanager
async def echo_server(**settings: int) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port."""
    chosen = Settings(**{"max_outbox_bytes": 128 << 20, **settings})  # type: ignore[arg-type]
    runtime = assemble(chosen, Engines(FakeTalker(), FakeCodecEngine(SPEC, 0.0)))
    await runtime.start()
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        async with Server(server_config(_app(runtime), chosen, 1), listener) as server:
            yield server.port
    finally:
        await runtime.stop()


async def _main() -> None:
    async with echo_server(max_message_bytes=32 << 20) as port:
        print(port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())

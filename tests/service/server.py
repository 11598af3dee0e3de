"""uvicorn in the test's own process, which reports why an application did not start or stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Self

import uvicorn

from service.app import create_app
from service.listening import configure_listener
from service.runtime import Runtime
from service.transport.server_config import server_config

#: Ends a hang; nothing waits this long on success.
_PATIENCE_S = 240.0


class Server(uvicorn.Server):
    """Serves the application of ``config`` on ``listener`` while it is entered.

    It ends as soon as it is left; uvicorn polls ten times a second, which slows tests. Leaving it
    raises what the application's lifespan raised, which uvicorn only logs.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._over = asyncio.Event()
        self._failure: Exception | None = None
        app: Any = config.app

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                if scope["type"] == "lifespan":
                    self.fail(error)
                raise

        config.app = watched

    def fail(self, error: Exception) -> None:
        """End, because of an error of the application."""
        self._failure = self._failure or error
        self._over.set()

    async def until(self, event: asyncio.Event) -> None:
        """Wait for an event of the application. Raises what ended the server before it."""
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.wait(
            (waiting, self._serving), timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if event.is_set():
            return
        if not self._serving.done():
            raise TimeoutError("the application did not become ready")
        await self._serving
        raise self._failure or RuntimeError("the server ended")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to pytest."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as status:  # in a task it would end the event loop
            raise self._failure or RuntimeError("the server did not start") from status

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._over.wait()

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._over.set()
        try:
            await self._serving
        finally:
            self._listener.close()  # uvicorn closes it only if it has started
        if self._failure is not None and error is None:
            raise self._failure


def runtime_server(runtime: Runtime) -> Server:
    """Return a server of the service's own application on a free port; it ends if the engines do
    not start.
    """

    def on_fatal(error: Exception) -> None:
        server.fail(error)

    settings = runtime.settings
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    configure_listener(listener, settings.slow_consumer_s)
    server = Server(server_config(create_app(runtime, on_fatal), settings, grace_s=2), listener)
    return server

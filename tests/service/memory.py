"""The application with fake engines over ASGI, without a server or a network.

For tests of messages, not of their transport. A client that stops reading blocks ``send``, as a
full connection does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI
from starlette.types import Message

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.app import create_app
from service.build import assemble
from service.engines.contracts import Engines
from service.runtime import Runtime
from service.settings import Settings
from tests.service.live import SPEC, FakeService
from tests.waiting import until

_PATIENCE_S = 60
_HOST = "127.0.0.1:8000"


class Refused(Exception):
    """A handshake was refused."""

    def __init__(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.headers, self.body = status, headers, body


class Exchange:
    """One ASGI request or socket, as its client sees it."""

    def __init__(self, app: FastAPI, scope: dict[str, Any]) -> None:
        self._app, self._scope = app, scope
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue()
        #: While cleared, nothing is read, and the application waits in ``send``.
        self.reading = asyncio.Event()
        self.reading.set()
        self._task: asyncio.Task[None] | None = None

    def tell(self, message: Message) -> None:
        """Give the application a message."""
        self._incoming.put_nowait(message)

    async def hear(self) -> Message:
        """Return the application's next message; fail if it has ended or raised."""
        assert self._task is not None
        coming = asyncio.ensure_future(self._outgoing.get())
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.wait({coming, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done() and self._outgoing.empty():
            coming.cancel()
            self._task.result()
            raise AssertionError("the application ended without another message")
        return await coming

    async def _send(self, message: Message) -> None:
        await self.reading.wait()
        self._outgoing.put_nowait(message)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._incoming.get, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect, and wait until the application has ended."""
        assert self._task is not None
        self.leave()
        self.reading.set()
        async with asyncio.timeout(_PATIENCE_S):
            await self._task

    def leave(self) -> None:
        """Disconnect without a close."""
        kind = self._scope["type"]
        self.tell({"type": f"{kind}.disconnect", "code": 1006})


class MemorySocket(Exchange):
    """A WebSocket; ``close_code`` is known once the application has closed it."""

    close_code: int | None = None
    subprotocol: str | None = None

    async def open(self) -> None:
        """Perform the handshake. Raises Refused."""
        self.tell({"type": "websocket.connect"})
        answer = await self.hear()
        if answer["type"] == "websocket.accept":
            self.subprotocol = answer.get("subprotocol")
            return
        status, body, more = answer.get("status", 403), b"", answer["type"] != "websocket.close"
        while more:
            piece = await self.hear()
            body, more = body + piece.get("body", b""), piece.get("more_body", False)
        headers = {k.decode(): v.decode() for k, v in answer.get("headers", ())}
        raise Refused(status, headers, json.loads(body or b"null"))

    def send(self, message: Any) -> None:
        """Send text or bytes as they are, anything else as JSON."""
        if isinstance(message, bytes):
            self.tell({"type": "websocket.receive", "bytes": message})
            return
        text = message if isinstance(message, str) else json.dumps(message)
        self.tell({"type": "websocket.receive", "text": text})

    async def next(self) -> dict[str, Any] | bytes | None:
        """Return the next message, JSON as an object; None once the socket is closed."""
        message = await self.hear()
        if message["type"] == "websocket.close":
            self.close_code = message.get("code", 1000)
            return None
        text = message.get("text")
        return bytes(message["bytes"]) if text is None else dict(json.loads(text))


class Served(FakeService):
    """The application; ``http`` sends it whole requests."""

    def __init__(
        self, app: FastAPI, runtime: Runtime, talker: FakeTalker, codec: FakeCodecEngine
    ) -> None:
        super().__init__(runtime, talker, codec)
        self.app = app
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=f"http://{_HOST}", timeout=_PATIENCE_S
        )

    def _scope(self, kind: str, address: str, headers: Mapping[str, str]) -> dict[str, Any]:
        parts = urlsplit(address)
        raw = {"host": _HOST, **{name.lower(): value for name, value in headers.items()}}
        return {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws" if kind == "websocket" else "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "root_path": "",
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }

    @contextlib.asynccontextmanager
    async def socket(self, address: str, **headers: str) -> AsyncIterator[MemorySocket]:
        """Open a socket. Raises Refused."""
        scope = self._scope("websocket", address, headers)
        scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
        async with MemorySocket(self.app, scope) as socket:
            await socket.open()
            yield socket

    @contextlib.asynccontextmanager
    async def request(self, address: str, body: Any, **headers: str) -> AsyncIterator[Exchange]:
        """Send a POST whose answer comes piece by piece."""
        scope = self._scope("http", address, {"content-type": "application/json", **headers})
        async with Exchange(self.app, scope | {"method": "POST"}) as exchange:
            exchange.tell({"type": "http.request", "body": json.dumps(body).encode()})
            yield exchange

    async def until_rows(self, made: int) -> None:
        """Wait until the talker has made more than ``made`` rows."""
        await until(lambda: self.talker.rows_made != made)


@contextlib.asynccontextmanager
async def served(
    talker: FakeTalker | None = None, codec_delay_s: float = 0.0, **settings: Any
) -> AsyncIterator[Served]:
    """Run the application until the block ends. Admission is fixed by default."""
    talker = talker or FakeTalker()
    codec = FakeCodecEngine(SPEC, codec_delay_s)
    runtime = assemble(Settings(**{"admission": "fixed"} | settings), Engines(talker, codec))
    talker.source = runtime.voices.library

    app = create_app(runtime)
    await runtime.start()
    serving = Served(app, runtime, talker, codec)
    try:
        async with serving.http:
            yield serving
    finally:
        await runtime.stop()

"""The FastAPI application: routes, health, metrics. What they mean lives elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service import __version__
from service.origin import OriginGuard
from service.page import add_page
from service.protocols.native import NativeDialect
from service.protocols.openai import openai_router
from service.runtime import Phase, Runtime
from service.socket import Socket
from streaming.errors import ErrorCode, TalkwireError
from streaming.wire import SUBPROTOCOL

log = logging.getLogger(__name__)

#: Called once if the engines cannot start; the server should end.
OnFatal = Callable[[BaseException], None]


def create_app(runtime: Runtime, on_fatal: OnFatal | None = None) -> FastAPI:
    """The application around a runtime, which starts and stops with it.

    Serving begins at once, so that probes get answers while the engines load; speech is
    refused with ``not_ready`` until they have.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(runtime, on_fatal))
        try:
            yield
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await runtime.stop()

    app = FastAPI(title="Talkwire", version=__version__, lifespan=lifespan)
    app.state.runtime = runtime
    app.add_middleware(
        OriginGuard,
        allowed=runtime.settings.allowed_origins,
        on_refused=lambda: runtime.metrics.on_error(ErrorCode.FORBIDDEN_ORIGIN),
    )
    add_page(app)
    _add_health(app, runtime)
    _add_speech(app, runtime)
    app.include_router(openai_router(runtime))
    return app


async def _start(runtime: Runtime, on_fatal: OnFatal | None) -> None:
    try:
        await runtime.start()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        log.error("the engines did not start")
        if on_fatal is None:
            raise
        on_fatal(error)


def _add_health(app: FastAPI, runtime: Runtime) -> None:
    def answer(ok: bool) -> Response:
        body = {"status": "ok" if ok else "unavailable", "phase": runtime.phase.value}
        return JSONResponse(body, 200 if ok else 503)

    @app.get("/health/live", tags=["health"])
    async def live() -> Response:
        """Whether the event loop turns; saturation does not change it."""
        return answer(True)

    @app.get("/health/ready", tags=["health"])
    async def ready() -> Response:
        """Whether new contexts are served now."""
        return answer(runtime.is_ready)

    @app.get("/health/startup", tags=["health"])
    async def startup() -> Response:
        """Whether the models have been loaded and have spoken once."""
        return answer(runtime.phase is not Phase.STARTING)

    @app.get("/metrics", tags=["metrics"])
    async def metrics() -> Response:
        """Prometheus' exposition format."""
        return PlainTextResponse(runtime.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _add_speech(app: FastAPI, runtime: Runtime) -> None:
    @app.websocket("/v1/tts/stream")
    async def stream(websocket: WebSocket) -> None:
        """The native protocol (docs/protocol.md)."""
        offered = websocket.scope.get("subprotocols", [])
        if offered and SUBPROTOCOL not in offered:
            message = "Offer the subprotocol talkwire.tts.v1."
            await _deny(websocket, runtime, 400, ErrorCode.UNSUPPORTED, message)
            return
        if runtime.connections >= runtime.settings.max_connections:
            message = "The server has no connection to spare."
            await _deny(websocket, runtime, 503, ErrorCode.OVERLOADED, message)
            return
        try:
            runtime.require_ready()
        except TalkwireError as error:
            await _deny(websocket, runtime, 503, error.code, error.message)
            return
        with runtime.connection():
            await websocket.accept(SUBPROTOCOL if offered else None)
            async with asyncio.TaskGroup() as tasks:
                socket = Socket(websocket, runtime)
                dialect = NativeDialect(runtime, socket.outbox, tasks)
                await socket.run(dialect, tasks)


async def _deny(
    websocket: WebSocket, runtime: Runtime, status: int, code: ErrorCode, message: str
) -> None:
    """Refuse the handshake with a real status, which clients use to decide on a retry."""
    runtime.metrics.on_error(code)
    headers = {"retry-after": "1"} if status == 503 else {}
    body = {"error": {"code": code.value, "message": message, "retryable": status == 503}}
    await websocket.send_denial_response(JSONResponse(body, status, headers))

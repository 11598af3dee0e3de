"""The FastAPI application: its routes, and what stands before them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, WebSocket
from starlette.exceptions import HTTPException

from service import __version__
from service.gate import PUBLIC, Gate
from service.handshake import refuse, serve_socket
from service.health import add_health
from service.native_refusal import refusal
from service.openapi_keys import describe_keys
from service.origin import OriginGuard
from service.page import add_page
from service.protocols.cartesia import add_cartesia
from service.protocols.deepgram import add_deepgram
from service.protocols.elevenlabs import add_elevenlabs
from service.protocols.native import NativeDialect
from service.protocols.openai import openai_router
from service.protocols.openai_errors import no_route
from service.protocols.vllm_omni import add_vllm_omni
from service.protocols.voices import voices_router
from service.runtime import Runtime
from service.tracing import TraceHeaders
from streaming.errors import ErrorCode, RequestError
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
    app.add_exception_handler(HTTPException, no_route)
    app.add_middleware(
        Gate,
        runtime=runtime,
        router=app.router,
        decisions=PUBLIC,
        bound=runtime.settings.host,
    )
    app.add_middleware(
        OriginGuard,
        allowed=runtime.settings.allowed_origins,
        on_refused=lambda: runtime.metrics.on_error(ErrorCode.FORBIDDEN_ORIGIN),
    )
    if runtime.tracing is not None:
        app.add_middleware(TraceHeaders)
    add_page(app)
    add_health(app, runtime)
    _add_speech(app, runtime)
    app.include_router(openai_router(runtime))
    app.include_router(voices_router(runtime))
    add_elevenlabs(app, runtime)
    add_deepgram(app, runtime)
    add_vllm_omni(app, runtime)
    add_cartesia(app, runtime)
    describe_keys(app, runtime, PUBLIC)
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


def _add_speech(app: FastAPI, runtime: Runtime) -> None:
    @app.websocket("/v1/tts/stream")
    async def stream(websocket: WebSocket) -> None:
        """The native protocol (docs/protocol.md)."""
        offered = websocket.scope.get("subprotocols", [])
        if offered and SUBPROTOCOL not in offered:
            message = "Offer the subprotocol talkwire.tts.v1."
            error = RequestError(ErrorCode.UNSUPPORTED, message)
            await refuse(websocket, runtime, error, refusal)
            return
        await serve_socket(
            websocket,
            runtime,
            lambda socket, tasks: NativeDialect(runtime, socket.outbox, tasks),
            refusal,
            SUBPROTOCOL if offered else None,
        )

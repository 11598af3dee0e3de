"""The FastAPI application: its routes and middleware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import APIRouter, FastAPI
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from service import __version__
from service.access.gate import Gate, OriginGuard, describe_keys
from service.access.rules import Access, Rule, declare
from service.admin import health_router
from service.dialects.cartesia.routes import cartesia_router
from service.dialects.deepgram.routes import deepgram_router
from service.dialects.elevenlabs.routes import elevenlabs_router
from service.dialects.fish.routes import fish_router
from service.dialects.livekit import livekit_router
from service.dialects.native import native_router
from service.dialects.no_route import no_route, not_found
from service.dialects.openai.routes import openai_router
from service.dialects.vapi import vapi_router
from service.dialects.vllm_omni import vllm_omni_router
from service.dialects.voices import voices_router
from service.errors import NATIVE_TABLE
from service.page.routes import page_router
from service.runtime import Runtime
from service.runtime_metrics import RuntimeCollector
from service.tracing import TraceHeaders

log = logging.getLogger(__name__)

#: All routers, in the order in which their routes are matched. Each declares its access rule. To
#: serve a new dialect, add its router.
ROUTERS: tuple[Callable[[Runtime], APIRouter], ...] = (
    page_router,
    health_router,
    native_router,
    openai_router,
    voices_router,
    elevenlabs_router,
    deepgram_router,
    vllm_omni_router,
    cartesia_router,
    vapi_router,
    fish_router,
    livekit_router,
)
#: Response headers that a page of an allowed origin may read.
_EXPOSED = (
    "x-request-id",
    "request-id",
    "dg-request-id",
    "dg-error",
    "dg-model-name",
    "dg-model-uuid",
    "dg-char-count",
    "retry-after",
    "retry-after-ms",
    "x-talkwire-ignored",
    "x-talkwire-warning",
    "x-sample-rate",
    "x-channels",
    "x-bit-depth",
)
#: Called once if the engines cannot start; the server should end.
OnFatal = Callable[[Exception], None]


def create_app(runtime: Runtime, on_fatal: OnFatal | None = None) -> FastAPI:
    """Create the application of a runtime, which starts and stops with it. While the engines load,
    probes are answered, and speech is refused with ``not_ready``.
    """

    async def start() -> None:
        try:
            await runtime.start()
        except Exception as error:
            log.error("the engines did not start")
            if on_fatal is None:
                raise
            on_fatal(error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(start())
        try:
            yield
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await runtime.stop()

    app = FastAPI(
        title="Talkwire",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.runtime = runtime
    runtime.metrics.registry.register(RuntimeCollector(runtime))
    app.router.default = not_found
    app.add_exception_handler(HTTPException, no_route)
    app.add_middleware(Gate, runtime=runtime, router=app.router, bound=runtime.settings.host)
    origins = runtime.settings.allowed_origins
    app.add_middleware(OriginGuard, allowed=origins, errors=runtime.errors)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=_EXPOSED,
        )
    if runtime.tracing is not None:
        app.add_middleware(TraceHeaders)
    _add_document(app)
    # ``include_router`` would build the routes again, which takes most of the time
    for router in ROUTERS:
        app.router.routes += router(runtime).routes
    describe_keys(app, runtime.settings)
    return app


def _add_document(app: FastAPI) -> None:
    """Add the route of the OpenAPI document, which is made once, in a thread."""
    made: list[bytes] = []
    making = asyncio.Lock()

    @app.get("/openapi.json", include_in_schema=False)
    @declare(Rule(Access.ANY_KEY, NATIVE_TABLE))
    async def document() -> Response:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(lambda: to_json(app.openapi())))
        return Response(made[0], media_type="application/json")

"""Endpoints for operators: health, readiness, metrics and draining (docs/guides/operations.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from service import __version__
from service.access.gate import Gate
from service.access.rules import Access, GuardedRouter, Rule, declare
from service.admission import Admission
from service.auth.keys import Scope
from service.dialects.no_route import no_route, not_found
from service.errors import NATIVE_TABLE, validation_error
from service.lifecycle import Lifecycle
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError


def health_router(runtime: Runtime, metrics_access: Access = Access.METRICS) -> GuardedRouter:
    """Create the routes ``/health/*``, and ``/metrics`` for callers with ``metrics_access``."""
    router = GuardedRouter(Rule(Access.PROBE, NATIVE_TABLE))

    def answer(ok: bool) -> Response:
        body = {"status": "ok" if ok else "unavailable", "phase": runtime.lifecycle.phase.value}
        return JSONResponse(body, 200 if ok else 503)

    unavailable: dict[int | str, Any] = {503: {"description": "Not now; `phase` has the reason."}}

    @router.get("/health/live", tags=["health"])
    async def live() -> Response:
        """Whether the event loop is running. The answer does not depend on the load."""
        return answer(True)

    @router.get("/health", tags=["health"], responses=unavailable)
    @router.get("/health/ready", tags=["health"], responses=unavailable)
    async def ready() -> Response:
        """Whether new contexts are accepted now. Other servers have it at `/health`."""
        return answer(runtime.lifecycle.is_ready)

    @router.get("/health/free", tags=["health"], responses=unavailable)
    async def free() -> Response:
        """Whether a new client would be served now, for balancers: ready, with a free slot."""
        return answer(runtime.has_room)

    @router.get("/health/startup", tags=["health"], responses=unavailable)
    async def startup() -> Response:
        """Whether the models have been loaded and warmed up."""
        return answer(runtime.lifecycle.ready.is_set())

    @router.get(
        "/metrics",
        tags=["metrics"],
        response_class=PlainTextResponse,
        responses={code: {"description": "The scope admin is needed."} for code in (401, 403)},
    )
    @declare(Rule(metrics_access, NATIVE_TABLE))
    async def metrics() -> Response:
        """Metrics in Prometheus' exposition format."""
        return PlainTextResponse(runtime.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router


_PATH = "/admin/drain"
_CONFLICT = 409


def create_admin_app(runtime: Runtime, end: Callable[[], None]) -> FastAPI:
    """Create the admin app of a runtime that another app runs. ``end`` does what SIGTERM does."""
    app = FastAPI(title="Talkwire admin", version=__version__, openapi_url=None)
    app.state.runtime = runtime
    app.router.default = not_found
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_middleware(Gate, runtime=runtime, router=app.router, bound=runtime.settings.admin_host)
    app.router.routes += health_router(runtime, Access.SCRAPE).routes
    app.router.routes += _drain_router(runtime.lifecycle, runtime.admission, end).routes
    return app


def _drain_router(
    lifecycle: Lifecycle, admission: Admission, end: Callable[[], None]
) -> GuardedRouter:
    """Create the routes of ``/admin/drain``, for a listener that is protected by its network."""
    router = GuardedRouter(Rule(Scope.ADMIN, NATIVE_TABLE), tags=["admin"])

    def drain_state(status: int = 200) -> Response:
        body = {
            "draining": lifecycle.draining.is_set(),
            "connections": lifecycle.connections,
            "contexts": admission.active,
        }
        return JSONResponse(body, status)

    @router.get(_PATH)
    async def drain_status() -> Response:
        """Whether the server is draining, with its open connections and contexts."""
        return drain_state()

    @router.post(_PATH)
    async def drain(request: Request, exit: bool = False) -> Response:
        """Drain: accept no new work and tell clients to leave. With ``exit``, end as on SIGTERM."""
        if refused := _refuse_page(request):
            return refused
        if exit:
            end()
        lifecycle.begin_drain()
        return drain_state(202)

    @router.delete(_PATH)
    async def end_drain(request: Request) -> Response:
        """Accept new work again, unless the process is about to end (409)."""
        if refused := _refuse_page(request):
            return refused
        return drain_state(200 if lifecycle.end_drain() else _CONFLICT)

    return router


async def _refuse_query(request: Request, error: Exception) -> Response:
    """Respond to a query with an invalid value."""
    assert isinstance(error, RequestValidationError)
    return _refusal(request, validation_error(error.errors()))


def _refuse_page(request: Request) -> Response | None:
    """Refuse requests of web pages, which a browser lets POST to any host; they have an Origin."""
    if "origin" not in request.headers:
        return None
    error = RequestError(ErrorCode.FORBIDDEN_ORIGIN, "Web pages may not do this.")
    return _refusal(request, error)


def _refusal(request: Request, error: RequestError) -> Response:
    runtime: Runtime = request.app.state.runtime
    return runtime.errors.refusal(error, NATIVE_TABLE)

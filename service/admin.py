"""The admin listener's application: health, metrics and draining (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from service import __version__
from service.gate import ADMIN, Gate
from service.health import add_health
from service.native_refusal import refusal
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError

_PATH = "/admin/drain"
_CONFLICT = 409


def create_admin_app(runtime: Runtime, end: Callable[[], None]) -> FastAPI:
    """The application around a runtime that another application starts and stops.

    ``end`` does what SIGTERM does.
    """
    app = FastAPI(title="Talkwire admin", version=__version__, docs_url=None, redoc_url=None)
    app.openapi_url = None
    app.router.routes.clear()
    app.add_middleware(
        Gate,
        runtime=runtime,
        router=app.router,
        decisions=ADMIN,
        bound=runtime.settings.admin_host,
    )
    add_health(app, runtime)
    _add_drain(app, runtime, end)
    return app


def _add_drain(app: FastAPI, runtime: Runtime, end: Callable[[], None]) -> None:
    def standing(status: int = 200) -> Response:
        body = {
            "draining": runtime.draining.is_set(),
            "connections": runtime.connections,
            "contexts": runtime.admission.active,
        }
        return JSONResponse(body, status)

    @app.get(_PATH, tags=["admin"])
    async def drain_status() -> Response:
        """Whether the server drains, and what is still under way."""
        return standing()

    @app.post(_PATH, tags=["admin"])
    async def drain(request: Request, exit: bool = False) -> Response:
        """Take no new work and tell clients to go; with ``exit`` end as after SIGTERM."""
        if _is_from_page(request):
            return _forbidden()
        if exit:
            end()
        runtime.begin_drain()
        return standing(202)

    @app.delete(_PATH, tags=["admin"])
    async def end_drain(request: Request) -> Response:
        """Take new work again, unless the process is about to end (409)."""
        if _is_from_page(request):
            return _forbidden()
        return standing(200 if runtime.end_drain() else _CONFLICT)


def _is_from_page(request: Request) -> bool:
    """A browser's page may send a POST anywhere, this machine included; it says so."""
    return "origin" in request.headers


def _forbidden() -> Response:
    return refusal(RequestError(ErrorCode.FORBIDDEN_ORIGIN, "Web pages may not do this."))

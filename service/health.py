"""Health and metrics: what those who run the service ask of it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.runtime import Runtime


def add_health(app: FastAPI, runtime: Runtime) -> None:
    """Add ``/health/*`` and ``/metrics``."""

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
        return answer(runtime.ready.is_set())

    @app.get(
        "/metrics",
        tags=["metrics"],
        response_class=PlainTextResponse,
        responses={401: {"description": "A key is needed."}},
    )
    async def metrics() -> Response:
        """Prometheus' exposition format."""
        return PlainTextResponse(runtime.metrics.render(), media_type=CONTENT_TYPE_LATEST)

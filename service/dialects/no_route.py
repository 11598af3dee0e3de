"""Responses to addresses and methods without a route, in the format of the client's vendor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from fastapi import Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from service.access.rules import rule_of
from service.dialects import vapi
from service.dialects.cartesia import messages as cartesia
from service.dialects.deepgram import messages as deepgram
from service.dialects.elevenlabs import messages as elevenlabs
from service.dialects.openai import errors as openai
from service.errors import ErrorTable, HttpError
from service.runtime import Runtime

_MESSAGES = {
    404: "There is nothing at this address.",
    405: "This address does not take that method.",
}
#: Headers that a vendor's clients send with every request, and the beginning of their values.
_HEADERS = (
    ("xi-api-key", "", elevenlabs.TABLE),
    ("cartesia-version", "", cartesia.TABLE),
    ("authorization", "token ", deepgram.TABLE),
    ("x-vapi-secret", "", vapi.TABLE),
)
_VERSION = re.compile(r"v\d+")


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """End a router with a 404 for ``no_route``, also for a handshake. Starlette would close that,
    which the client sees as 403.
    """
    raise HTTPException(404)


async def no_route(request: HTTPConnection, error: Exception) -> Response:
    """Respond to a path or method without a route, and to handshakes too."""
    assert isinstance(error, HTTPException)
    message = _MESSAGES.get(error.status_code)
    if message is None:
        assert isinstance(request, Request)
        return await http_exception_handler(request, error)
    errors = replace(_table(request), dialect="none")
    runtime: Runtime = request.app.state.runtime
    response = runtime.errors.refusal(HttpError(error.status_code, message), errors)
    if error.status_code == 405:  # Starlette names the methods of one route of the path
        routes = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
        methods = {name for route in routes for name in route.methods}
        response.headers["allow"] = ", ".join(sorted(methods))
    return response


def _table(request: HTTPConnection) -> ErrorTable:
    """Return the errors of the vendor whose client asks, or whose address is nearest."""
    for name, start, table in _HEADERS:
        value = request.headers.get(name)
        if value is not None and value.lower().startswith(start):
            return table
    state = request.app.state
    if not hasattr(state, "tables"):
        state.tables = _tables_by_address(request.app.routes)
    tables: dict[str, ErrorTable] = state.tables
    return tables.get(_beginning(request.scope["path"]), openai.TABLE)


def _tables_by_address(routes: Iterable[BaseRoute]) -> dict[str, ErrorTable]:
    """Return the errors of the first route with each beginning of an address."""
    tables: dict[str, ErrorTable] = {}
    for route in routes:
        if (rule := rule_of(route)) is not None:
            tables.setdefault(_beginning(getattr(route, "path", "")), rule.errors)
    return tables


def _beginning(path: str) -> str:
    """Return the first part of a path after its version: ``v1/voices``, ``tts``."""
    parts = path.strip("/").split("/")
    return "/".join(parts[: 2 if _VERSION.fullmatch(parts[0]) else 1])

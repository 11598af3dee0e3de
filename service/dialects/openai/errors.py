"""Errors in OpenAI's format, also for paths without a route."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import Response
from fastapi.exception_handlers import http_exception_handler
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service.dialects.errors import TOO_MANY, UNAVAILABLE, ErrorTable, refusal, retry_ms
from streaming.errors import ErrorCode, RequestError, TalkwireError

_NO_ROUTE = {
    404: "There is nothing at this address.",
    405: "This address does not take that method.",
}


class ErrorDetail(BaseModel):
    """The error."""

    message: str = Field(description="For people.")
    type: str = Field(description="invalid_request_error, rate_limit_error or server_error.")
    param: str | None = Field(description="The field at fault.")
    code: str = Field(description="For programs: a code of docs/reference/protocol.md.")


class ErrorBody(BaseModel):
    """An error in OpenAI's format."""

    error: ErrorDetail


def error_body(error: TalkwireError, _: str = "") -> dict[str, Any]:
    """Return ``{"error": {...}}``."""
    status = TABLE.status(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == TOO_MANY:
        kind = "rate_limit_error"
    name = TABLE.field(error)
    if name is None and error.code is ErrorCode.INVALID_TEXT:
        name = "input"
    detail = ErrorDetail(message=TABLE.message(error), type=kind, param=name, code=error.code.value)
    return {"error": detail.model_dump()}


def _retry_header(error: TalkwireError, _: str) -> dict[str, str]:
    """Return a header with milliseconds, which OpenAI's clients prefer to whole seconds."""
    is_temporary = TABLE.status(error) in (TOO_MANY, UNAVAILABLE)
    return {"retry-after-ms": str(retry_ms(error))} if is_temporary else {}


TABLE = ErrorTable(
    "openai",
    error_body,
    _retry_header,
    statuses={ErrorCode.UNKNOWN_VOICE: 400},
    fields={"text": "input", "encoding": "response_format"},
)
#: For routes whose path names the voice.
RESOURCE_TABLE = replace(TABLE, statuses={})


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """End a router with a 404 for ``no_route``, also for a handshake. Starlette would close that,
    which the client sees as 403.
    """
    raise HTTPException(404)


async def no_route(request: HTTPConnection, error: Exception) -> Response:
    """Respond to a path or method without a route, for all dialects, and to handshakes too."""
    assert isinstance(error, HTTPException)
    message = _NO_ROUTE.get(error.status_code)
    if message is None:
        assert isinstance(request, Request)
        return await http_exception_handler(request, error)
    errors = replace(TABLE, dialect="none", statuses={ErrorCode.UNSUPPORTED: error.status_code})
    refused = RequestError(ErrorCode.UNSUPPORTED, message)
    response = refusal(request.app.state.runtime, refused, errors)
    if error.status_code == 405:  # Starlette names the methods of one route of the path
        routes = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
        methods = {name for route in routes for name in route.methods}
        response.headers["allow"] = ", ".join(sorted(methods))
    return response

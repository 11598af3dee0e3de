"""Errors as Cartesia's API words them, over HTTP and on its socket."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.http_route import ACCESS_STATUS, SpeechRoute, documented
from streaming.errors import ErrorCode, RequestError, TalkwireError

_TOO_MANY, _UNAVAILABLE, _FAILED = 429, 503, 500
_STATUS: dict[ErrorCode, int] = ACCESS_STATUS | {
    ErrorCode.UNKNOWN_VOICE: 404,
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.IDLE_TIMEOUT: 408,  # a body that came too slowly
    ErrorCode.TOO_MANY_CONTEXTS: _TOO_MANY,
    ErrorCode.OVERLOADED: _TOO_MANY,
    ErrorCode.NOT_READY: _UNAVAILABLE,
    ErrorCode.DRAINING: _UNAVAILABLE,
    ErrorCode.ENGINE_RESTARTING: _UNAVAILABLE,
}
_BAD_REQUEST = 400
_RETRY_MS = 1000


def status_of(error: TalkwireError) -> int:
    """The HTTP status of an error; the socket's messages carry it too."""
    other = _BAD_REQUEST if isinstance(error, RequestError) else _FAILED
    return _STATUS.get(error.code, other)


def error_fields(error: TalkwireError, request_id: str) -> dict[str, Any]:
    """What every wording of an error has."""
    return {
        "title": error.code.value.replace("_", " ").capitalize(),
        "message": error.message,
        "error_code": error.code.value,
        "status_code": status_of(error),
        "request_id": request_id,
    }


def refusal(error: TalkwireError, request_id: str = "") -> JSONResponse:
    """The answer to a request or a handshake that cannot be served."""
    request_id = request_id or uuid.uuid4().hex
    status = status_of(error)
    headers = {"x-request-id": request_id}
    if status in (_TOO_MANY, _UNAVAILABLE):
        headers["retry-after"] = str(math.ceil((error.retry_after_ms or _RETRY_MS) / 1000))
    return JSONResponse(error_fields(error, request_id), status, headers)


def error_event(
    error: TalkwireError, context_id: str | None, request_id: str, *, done: bool = True
) -> dict[str, Any]:
    """An ``error`` message. ``context_id`` is always there, if only as null: clients index it."""
    return {
        "type": "error",
        "context_id": context_id,
        "done": done,
        **error_fields(error, request_id),
    }


def error_message(
    error: TalkwireError, context_id: str | None, request_id: str, *, done: bool = True
) -> str:
    """The same as text."""
    return json.dumps(error_event(error, context_id, request_id, done=done))


class CartesiaErrorBody(BaseModel):
    """The body of a refusal."""

    title: str
    message: str
    error_code: str
    status_code: int
    request_id: str


#: For OpenAPI.
ERRORS = documented(CartesiaErrorBody)


class CartesiaRoute(SpeechRoute):
    """Answers in Cartesia's shape."""

    refusal = staticmethod(refusal)

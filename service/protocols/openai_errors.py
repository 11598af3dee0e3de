"""Errors as OpenAI's API words them, and the route class that does so for every fault."""

from __future__ import annotations

import math
import uuid
from typing import Any

from fastapi import Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from service import http_route
from service.http_speech import count_error
from streaming.errors import ErrorCode, RequestError, TalkwireError

_BAD_REQUEST, _NOT_FOUND, _NO_METHOD, _TOO_SLOW, _CONFLICT = 400, 404, 405, 408, 409
_TOO_LARGE, _TOO_MANY = 413, 429
_FAILED, _UNAVAILABLE, _NO_STORAGE = 500, 503, 507
_STATUS: dict[ErrorCode, int] = http_route.ACCESS_STATUS | {
    ErrorCode.UNKNOWN_MODEL: _NOT_FOUND,
    ErrorCode.VOICE_EXISTS: _CONFLICT,
    ErrorCode.TOO_MANY_VOICES: _CONFLICT,
    ErrorCode.STORAGE_FAILED: _NO_STORAGE,
    ErrorCode.IDLE_TIMEOUT: _TOO_SLOW,
    ErrorCode.TEXT_TOO_LONG: _TOO_LARGE,
    ErrorCode.OVERLOADED: _TOO_MANY,
    ErrorCode.NOT_READY: _UNAVAILABLE,
    ErrorCode.DRAINING: _UNAVAILABLE,
    ErrorCode.ENGINE_RESTARTING: _UNAVAILABLE,
}
_NO_ROUTE = {
    _NOT_FOUND: "There is nothing at this address.",
    _NO_METHOD: "This address does not take that method.",
}
_RETRY_MS = 1000
#: The core's names for what this API calls otherwise.
_PARAMS = {"text": "input", "encoding": "response_format", "sample_rate": "response_format"}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str = Field(description="For people.")
    type: str = Field(description="invalid_request_error, rate_limit_error or server_error.")
    param: str | None = Field(description="The field at fault.")
    code: str = Field(description="For programs: a code of docs/protocol.md.")


class ErrorBody(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorDetail


def status_of(error: TalkwireError) -> int:
    """The HTTP status of an error."""
    if error.code is ErrorCode.UNKNOWN_VOICE and error.param == "id":
        return _NOT_FOUND  # the address names it
    other = _BAD_REQUEST if isinstance(error, RequestError) else _FAILED
    return _STATUS.get(error.code, other)


def error_body(error: TalkwireError) -> dict[str, Any]:
    """``{"error": {...}}``."""
    status = status_of(error)
    kind = "invalid_request_error" if status < _FAILED else "server_error"
    if status == _TOO_MANY:
        kind = "rate_limit_error"
    param = error.param
    if param is None and error.code is ErrorCode.INVALID_TEXT:
        param = "input"
    if param is not None:
        param = param.removeprefix("sampling.").removeprefix("audio.")
        param = _PARAMS.get(param, param)
    detail = ErrorDetail(message=error.message, type=kind, param=param, code=error.code.value)
    return {"error": detail.model_dump()}


def error_response(error: TalkwireError, request_id: str) -> JSONResponse:
    """The answer to a request that cannot be served. 429 and 503 say when to come again, in
    whole seconds and, as OpenAI's clients read it first, in milliseconds.
    """
    status = status_of(error)
    headers = {"x-request-id": request_id}
    if status in (_TOO_MANY, _UNAVAILABLE):
        retry_ms = error.retry_after_ms or _RETRY_MS
        headers["retry-after"] = str(math.ceil(retry_ms / 1000))
        headers["retry-after-ms"] = str(retry_ms)
    return JSONResponse(error_body(error), status, headers)


async def no_route(request: Request, error: Exception) -> Response:
    """The answer where no route is, or none for that method, whatever dialect was meant."""
    assert isinstance(error, HTTPException)
    message = _NO_ROUTE.get(error.status_code)
    if message is None:
        return await http_exception_handler(request, error)
    refused, request_id = RequestError(ErrorCode.UNSUPPORTED, message), uuid.uuid4().hex
    count_error(request.app.state.runtime, refused, request_id)
    headers = {**(error.headers or {}), "x-request-id": request_id}
    return JSONResponse(error_body(refused), error.status_code, headers)


class OpenAiRoute(http_route.SpeechRoute):
    """Answers in OpenAI's shape."""

    refusal = staticmethod(error_response)

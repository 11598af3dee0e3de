"""Errors as OpenAI's API words them, and the route class that does so for every fault."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from service.http_speech import count_error
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError, TalkwireError

_BAD_REQUEST, _NOT_FOUND, _TOO_LARGE, _TOO_MANY = 400, 404, 413, 429
_FAILED, _UNAVAILABLE = 500, 503
_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN_MODEL: _NOT_FOUND,
    ErrorCode.TEXT_TOO_LONG: _TOO_LARGE,
    ErrorCode.OVERLOADED: _TOO_MANY,
    ErrorCode.NOT_READY: _UNAVAILABLE,
    ErrorCode.DRAINING: _UNAVAILABLE,
    ErrorCode.ENGINE_RESTARTING: _UNAVAILABLE,
}
_RETRY_MS = 1000
#: JSON may write a character of the text as two escapes of six bytes.
_BYTES_PER_CHARACTER = 12
#: Fields of other servers' extensions: known, and not served.
_UNSERVED = {"ref_audio", "ref_text"}
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


def request_fault(fault: Mapping[str, Any]) -> RequestError:
    """The first of pydantic's complaints in our words; what the client sent is not repeated,
    but for the name of the field.
    """
    if fault["type"] == "json_invalid":
        return RequestError(ErrorCode.INVALID_JSON, "The body is not valid JSON.")
    path = [part for part in fault["loc"] if part != "body"]
    if not path:
        return RequestError(ErrorCode.INVALID_MESSAGE, "The body must be a JSON object.")
    name = str(path[0])[:128]
    if fault["type"] == "extra_forbidden" and name in _UNSERVED:
        return RequestError(
            ErrorCode.UNSUPPORTED, "Reference audio is not served here.", param=name
        )
    problem = {
        "missing": "is missing",
        "extra_forbidden": "is not known",
    }.get(fault["type"], "is of the wrong type or out of range")
    return RequestError(ErrorCode.INVALID_MESSAGE, f"A field {problem}.", param=name)


class _BoundedRequest(Request):
    """A request whose body may have ``max_bytes``."""

    max_bytes = 0

    async def body(self) -> bytes:
        """Raises RequestError (``text_too_long``) rather than read more."""
        if not hasattr(self, "_body"):
            data = bytearray()
            async for chunk in self.stream():
                data += chunk
                if len(data) > self.max_bytes:
                    message = f"A request takes {self.max_bytes} bytes at most."
                    raise RequestError(ErrorCode.TEXT_TOO_LONG, message)
            self._body = bytes(data)
        return self._body


class OpenAiRoute(APIRoute):
    """Bounds the body, numbers the request (``request.state.request_id``), and answers every
    TalkwireError and every invalid body in OpenAI's shape.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See APIRoute."""
        handler = super().get_route_handler()

        async def handle(plain: Request) -> Response:
            request = _BoundedRequest(plain.scope, plain.receive)
            runtime: Runtime = request.app.state.runtime
            settings = runtime.settings
            request.max_bytes = (
                settings.max_message_bytes + _BYTES_PER_CHARACTER * settings.max_text_chars
            )
            request_id = request.state.request_id = uuid.uuid4().hex
            try:
                await request.body()
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_BAD_REQUEST)  # nobody is there to read it
            except (TalkwireError, RequestValidationError) as fault:
                error = (
                    fault if isinstance(fault, TalkwireError) else request_fault(fault.errors()[0])
                )
                count_error(runtime, error, request_id)
                response = error_response(error, request_id)
            response.headers["x-request-id"] = request_id
            return response

        return handle

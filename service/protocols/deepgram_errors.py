"""Errors as Deepgram words them: a body over HTTP, a message on a socket, a header at a refused
handshake, which is where its clients look.
"""

from __future__ import annotations

import json
import math
import uuid

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.http_route import ACCESS_STATUS, SpeechRoute, documented
from service.socket import INTERNAL, POLICY
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError

_TOO_MANY, _UNAVAILABLE, _FAILED, _BAD_REQUEST = 429, 503, 500, 400
#: RFC 6455's registry: come again later.
_TRY_AGAIN = 1013
_STATUS: dict[ErrorCode, int] = ACCESS_STATUS | {
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.IDLE_TIMEOUT: 408,  # a body that came too slowly
    ErrorCode.OVERLOADED: _TOO_MANY,
    ErrorCode.NOT_READY: _UNAVAILABLE,
    ErrorCode.DRAINING: _UNAVAILABLE,
    ErrorCode.ENGINE_RESTARTING: _UNAVAILABLE,
}
_RETRY_MS = 1000
#: A voice is called a model there.
_PARAMS = {"voice": "model", "bitrate": "bit_rate"}


def _param(error: TalkwireError) -> str | None:
    if error.param is None:
        return None
    name = error.param.removeprefix("audio.")
    return _PARAMS.get(name, name)


def error_code(error: TalkwireError) -> str:
    """Codes are in capitals there."""
    return error.code.value.upper()


def described(error: TalkwireError) -> str:
    """The message, with the parameter at fault."""
    param = _param(error)
    return error.message if param is None else f"{error.message} ({param})"


def header_value(text: str) -> str:
    """What of ``text`` a header may hold; a client may call things anything."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def refusal(error: TalkwireError, request_id: str = "") -> JSONResponse:
    """The answer to a request or a handshake that cannot be served."""
    request_id = request_id or uuid.uuid4().hex
    other = _BAD_REQUEST if isinstance(error, RequestError) else _FAILED
    status = _STATUS.get(error.code, other)
    message = described(error)
    headers = {"x-request-id": request_id, "dg-request-id": request_id}
    headers["dg-error"] = header_value(message)  # the name of a parameter may be in it
    if status in (_TOO_MANY, _UNAVAILABLE):
        headers["retry-after"] = str(math.ceil((error.retry_after_ms or _RETRY_MS) / 1000))
    body = {"err_code": error_code(error), "err_msg": message, "request_id": request_id}
    return JSONResponse(body, status, headers)


def close_code(error: TalkwireError) -> int:
    """With what code a socket closes that cannot go on."""
    if isinstance(error, CapacityError) and error.code is not ErrorCode.SLOW_CONSUMER:
        return _TRY_AGAIN
    return INTERNAL if isinstance(error, BackendError) else POLICY


def error_message(error: TalkwireError, request_id: str) -> str:
    """After it the socket closes."""
    return json.dumps(
        {
            "type": "Error",
            "code": error_code(error),
            "description": described(error),
            "request_id": request_id,
        }
    )


def warning_message(error: TalkwireError) -> str:
    """Something was not done; the socket goes on."""
    message = described(error)
    fields = {"code": error_code(error), "description": message, "warn_msg": message}
    return json.dumps({"type": "Warning", **fields})


class DeepgramErrorBody(BaseModel):
    """The body of a refusal."""

    err_code: str
    err_msg: str
    request_id: str


#: For OpenAPI.
ERRORS = documented(DeepgramErrorBody)


class DeepgramRoute(SpeechRoute):
    """Answers in Deepgram's shape."""

    refusal = staticmethod(refusal)

"""Errors as ElevenLabs' API words them, over HTTP and on sockets."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.http_route import ACCESS_STATUS, SpeechRoute, documented
from service.socket import INTERNAL, POLICY
from streaming.errors import BackendError, ErrorCode, RequestError, TalkwireError

_TOO_MANY, _UNAVAILABLE, _FAILED = 429, 503, 500
_STATUS: dict[ErrorCode, int] = ACCESS_STATUS | {
    ErrorCode.INVALID_JSON: 422,
    ErrorCode.INVALID_MESSAGE: 422,
    ErrorCode.UNKNOWN_VOICE: 404,
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.IDLE_TIMEOUT: 408,  # a body that came too slowly
    ErrorCode.OVERLOADED: _TOO_MANY,
    ErrorCode.NOT_READY: _UNAVAILABLE,
    ErrorCode.DRAINING: _UNAVAILABLE,
    ErrorCode.ENGINE_RESTARTING: _UNAVAILABLE,
}
_BAD_REQUEST = 400
_RETRY_MS = 1000
_PARAMS = {"voice": "voice_id", "audio.speed": "voice_settings.speed"}


def status_of(error: TalkwireError) -> int:
    """The HTTP status of an error."""
    other = _BAD_REQUEST if isinstance(error, RequestError) else _FAILED
    return _STATUS.get(error.code, other)


def refusal(error: TalkwireError, request_id: str = "") -> JSONResponse:
    """The answer to a request or a handshake that cannot be served."""
    status = status_of(error)
    detail: dict[str, Any] = {
        "status": error.code.value,
        "code": error.code.value,
        "message": error.message,
    }
    if error.param is not None:
        detail["param"] = _PARAMS.get(error.param, error.param)
    headers = {}
    if request_id:
        detail["request_id"] = headers["request-id"] = headers["x-request-id"] = request_id
    if status in (_TOO_MANY, _UNAVAILABLE):
        headers["retry-after"] = str(math.ceil((error.retry_after_ms or _RETRY_MS) / 1000))
    return JSONResponse({"detail": detail}, status, headers)


def close_code(error: TalkwireError) -> int:
    """With what code a socket closes that cannot go on."""
    return INTERNAL if isinstance(error, BackendError) else POLICY


def error_message(error: TalkwireError, context_id: str | None = None) -> str:
    """A socket's message about an error."""
    message = {
        "message": error.message,
        "error": error.code.value,
        "code": close_code(error),
    }
    if context_id is not None:
        message["contextId"] = context_id
    return json.dumps(message)


class ElevenLabsErrorDetail(BaseModel):
    """Why a request was refused; ``status`` and ``code`` are the same."""

    status: str
    code: str
    message: str
    param: str | None = None
    request_id: str


class ElevenLabsErrorBody(BaseModel):
    """The body of a refusal."""

    detail: ElevenLabsErrorDetail


#: For OpenAPI.
ERRORS = documented(ElevenLabsErrorBody)


class ElevenLabsRoute(SpeechRoute):
    """Answers in ElevenLabs' shape."""

    refusal = staticmethod(refusal)

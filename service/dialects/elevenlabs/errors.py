"""Errors in ElevenLabs' shape, over HTTP and on its sockets."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from service.dialects.errors import ErrorTable, Refusal
from service.transport.http_routes import documented
from streaming.errors import ErrorCode, TalkwireError

TABLE = ErrorTable(
    "elevenlabs",
    {ErrorCode.INVALID_JSON: 422, ErrorCode.INVALID_MESSAGE: 422},
    {
        "voice": "voice_id",
        "speed": "voice_settings.speed",
        **dict.fromkeys(("encoding", "sample_rate", "bitrate"), "output_format"),
    },
)


def _body(error: TalkwireError, request_id: str) -> dict[str, Any]:
    detail = {
        "status": error.code.value,
        "code": error.code.value,
        "message": TABLE.message(error),
    }
    if (name := TABLE.field(error)) is not None:
        detail["param"] = name
    if request_id:
        detail["request_id"] = request_id
    return {"detail": detail}


refusal = Refusal(TABLE, _body, lambda _, request_id: {"request-id": request_id})
close_code = TABLE.close_code


def error_message(error: TalkwireError, context_id: str | None = None) -> str:
    """A socket's message about an error."""
    message = {
        "message": TABLE.message(error),
        "error": error.code.value,
        "code": TABLE.close_code(error),
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

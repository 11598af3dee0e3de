"""Deepgram's errors, and the messages that both versions of its sockets have."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pydantic import BaseModel
from websockets.frames import CloseCode

from service.errors import ErrorTable
from streaming.errors import ErrorCode, TalkwireError

NAME = "deepgram"


def error_code(error: TalkwireError) -> str:
    """Return an error's code in upper case, as Deepgram's codes are."""
    return error.code.value.upper()


def header_value(text: str) -> str:
    """Replace characters that a header cannot contain, since clients may send any names."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _body(error: TalkwireError, request_id: str) -> dict[str, Any]:
    return {
        "err_code": error_code(error),
        "err_msg": TABLE.message(error),
        "request_id": request_id,
    }


def _headers(error: TalkwireError, request_id: str) -> dict[str, str]:
    return {"dg-request-id": request_id, "dg-error": header_value(TABLE.message(error))}


TABLE = ErrorTable(
    NAME,
    _body,
    _headers,
    statuses={ErrorCode.UNKNOWN_VOICE: 400},
    fields={"voice": "model", "bitrate": "bit_rate"},
    full_close=CloseCode.TRY_AGAIN_LATER,
)


def error_message(error: TalkwireError, request_id: str) -> str:
    """Return an ``Error`` message, after which the socket closes."""
    fields = {
        "code": error_code(error),
        "description": TABLE.message(error),
        "request_id": request_id,
    }
    return json.dumps({"type": "Error", **fields})


def model_uuid(voice: str | None) -> str:
    """Return an id of a voice, always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, voice or ""))


def warning_message(code: str, message: str) -> str:
    """Return a ``Warning`` message, which no client takes for an error."""
    fields = {"code": code, "description": message, "warn_msg": message}
    return json.dumps({"type": "Warning", **fields})


class DeepgramErrorBody(BaseModel):
    """The body of a refusal."""

    err_code: str
    err_msg: str
    request_id: str

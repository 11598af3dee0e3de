"""Errors in Cartesia's shape, over HTTP and on its socket."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from service.dialects.errors import ErrorTable, Refusal
from service.transport.http_routes import documented
from streaming.errors import TalkwireError

_FORMAT = dict.fromkeys(("encoding", "sample_rate", "bitrate"), "output_format")
TABLE = ErrorTable(
    "cartesia", fields={"text": "transcript", "speed": "generation_config.speed", **_FORMAT}
)


def error_fields(error: TalkwireError, request_id: str) -> dict[str, Any]:
    """The fields that every shape of an error has."""
    return {
        "title": error.code.value.replace("_", " ").capitalize(),
        "message": TABLE.message(error),
        "error_code": error.code.value,
        "status_code": TABLE.status(error),
        "request_id": request_id,
    }


refusal = Refusal(TABLE, error_fields)


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

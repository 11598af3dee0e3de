"""Errors in OpenAI's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from service.errors import TOO_MANY, UNAVAILABLE, ErrorTable, retry_ms
from streaming.errors import ErrorCode, TalkwireError


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

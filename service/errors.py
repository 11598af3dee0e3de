"""The error table of all dialects, and messages about invalid requests.

A dialect's own module has only the format of the body. Statuses, close codes, names of fields and
the text of messages are defined here.
"""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from websockets.frames import CloseCode

from service.auth.caller import current_caller
from service.auth.limits import Accounts, LeakyBucket
from service.metrics import Metrics
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.protocol.field_errors import (
    FieldError,
    invalid_field,
    kind_of,
    missing_field,
    shown_name,
    unknown_field,
)

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)

TOO_MANY, UNAVAILABLE = 429, 503
_FAILED = 500
_RETRY_MS = 1000
#: Burst size and rate of a socket's logged lines and of its client's mistakes.
_MOST_LINES, _LINES_PER_MINUTE = 20, 60
_MOST_MISTAKES, _MISTAKES_PER_MINUTE = 200, 300

#: The HTTP status of every code, unless a dialect's table has another.
STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_JSON: 400,
    ErrorCode.INVALID_MESSAGE: 400,
    ErrorCode.UNKNOWN_MESSAGE: 400,
    ErrorCode.INVALID_TEXT: 400,
    ErrorCode.INVALID_PARAMETER: 400,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.UNKNOWN_CONTEXT: 400,
    ErrorCode.CONTEXT_EXISTS: 400,
    ErrorCode.CONTEXT_CLOSED: 400,
    ErrorCode.TOO_MANY_CONTEXTS: TOO_MANY,
    ErrorCode.UNKNOWN_MODEL: 404,
    ErrorCode.UNKNOWN_VOICE: 404,
    ErrorCode.INVALID_AUDIO: 400,
    ErrorCode.CONSENT_REQUIRED: 400,
    ErrorCode.VOICE_EXISTS: 409,
    ErrorCode.TOO_MANY_VOICES: 409,
    ErrorCode.UNKNOWN_PRONUNCIATIONS: 404,
    ErrorCode.TOO_MANY_PRONUNCIATIONS: 409,
    ErrorCode.STORAGE_FAILED: 507,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.FORBIDDEN_ORIGIN: 403,
    ErrorCode.RATE_LIMITED: TOO_MANY,
    ErrorCode.OVERLOADED: TOO_MANY,
    ErrorCode.NOT_READY: UNAVAILABLE,
    ErrorCode.DRAINING: UNAVAILABLE,
    ErrorCode.IDLE_TIMEOUT: 408,  # over HTTP: a body that arrives too slowly
    ErrorCode.SLOW_CONSUMER: _FAILED,
    ErrorCode.ENGINE_FAILED: _FAILED,
    ErrorCode.ENGINE_RESTARTING: UNAVAILABLE,
    ErrorCode.CODEC_FAILED: _FAILED,
    ErrorCode.INTERNAL: _FAILED,
}


class HttpError(RequestError):
    """A fault of a request's address, method or encoding (``unsupported``), which has the same HTTP
    status in every dialect.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED, message)
        self.status = status


@dataclass(frozen=True, slots=True, eq=False)
class ErrorTable:
    """Statuses, field names and responses of one API's errors.

    Args:
        dialect: The name in logs and metrics.
        body: Makes the JSON body from an error and the request's id.
        headers: Makes this API's additional headers.
        statuses: HTTP statuses that differ from ``STATUS``.
        fields: Its names of fields that differ from the core's.
        full_close: The close code of a socket for which there is no capacity.
    """

    dialect: str
    body: Callable[[TalkwireError, str], Mapping[str, Any]]
    headers: Callable[[TalkwireError, str], Mapping[str, str]] = lambda error, request_id: {}
    statuses: Mapping[ErrorCode, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    full_close: int = CloseCode.POLICY_VIOLATION

    def status(self, error: TalkwireError) -> int:
        """Return the HTTP status of an error."""
        if isinstance(error, HttpError):
            return error.status
        return self.statuses.get(error.code, STATUS[error.code])

    def close_code(self, error: TalkwireError) -> int:
        """Return the close code of a socket that ends with an error."""
        if isinstance(error, BackendError):
            return CloseCode.INTERNAL_ERROR
        is_full = isinstance(error, CapacityError) and error.code is not ErrorCode.SLOW_CONSUMER
        return self.full_close if is_full else CloseCode.POLICY_VIOLATION

    def field(self, error: TalkwireError) -> str | None:
        """Return the client's name of the field at fault."""
        if error.param is None or isinstance(error, FieldError):
            return error.param
        name = error.param.removeprefix("sampling.")
        return self.fields.get(name, self.fields.get(bare := name.removeprefix("audio."), bare))

    def message(self, error: TalkwireError) -> str:
        """Return the message for people, with the name of the field."""
        name = self.field(error)
        if name is None or name in error.message:
            return error.message
        return f"{shown_name(name)}: {error.message}"


def _native_body(error: TalkwireError, _: str) -> dict[str, Any]:
    body = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    return {"error": body}


#: For the native protocol's handshakes, and for the service's own HTTP routes.
NATIVE_TABLE = ErrorTable("native", _native_body, statuses={ErrorCode.OVERLOADED: UNAVAILABLE})


def retry_ms(error: TalkwireError) -> int:
    """Return the milliseconds after which to retry."""
    return error.retry_after_ms or _RETRY_MS


class ErrorBudget:
    """Limits of a connection's lines of log, and of its mistakes, which end it if too many."""

    def __init__(self) -> None:
        self._lines, self._mistakes = LeakyBucket(), LeakyBucket()
        #: Number of errors that were sent to the client but not logged.
        self.unlogged = 0

    def note(self, error: TalkwireError) -> bool:
        """Count an error, and return whether it may be logged."""
        now = time.monotonic()
        self._mistakes.leak(_MISTAKES_PER_MINUTE, now)
        self._mistakes.add(isinstance(error, RequestError))
        if self._lines.leak(_LINES_PER_MINUTE, now) + 1 > _MOST_LINES:
            self.unlogged += 1
            return False
        self._lines.add(1)
        return True

    @property
    def is_spent(self) -> bool:
        """Whether the client has made too many mistakes."""
        return self._mistakes.level > _MOST_MISTAKES


#: The budget of the current connection; None if every error is logged.
_budget: ContextVar[ErrorBudget | None] = ContextVar("error_budget", default=None)


def limit_errors() -> ErrorBudget:
    """Set and return a budget for this connection's errors from now on."""
    budget = ErrorBudget()
    _budget.set(budget)
    return budget


class ErrorLog:
    """Counts the errors that clients get, and logs them with the client's request id."""

    def __init__(self, metrics: Metrics, accounts: Accounts) -> None:
        self._metrics, self._accounts = metrics, accounts

    def count(self, error: TalkwireError, request_id: str, dialect: str) -> None:
        """Count and log an error that is sent to the current caller. The log contains the field and
        the kind of its value, never the value; of a bug, the traceback of its cause.
        """
        self._metrics.errors.labels(error.code.value).inc()
        if error.code is ErrorCode.RATE_LIMITED:
            self._accounts.on_refusal(current_caller())
        if error.code is ErrorCode.INTERNAL and (cause := error.__cause__) is not None:
            told = {"request_id": request_id, "dialect": dialect}
            log.error("a request broke", exc_info=cause, extra=told)
        budget = _budget.get()
        if budget is not None and not budget.note(error):
            return
        fields = {"code": error.code.value, "request_id": request_id, "dialect": dialect}
        if error.param is not None and (kind := getattr(error, "kind", None)) != "unknown":
            fields["field"] = error.param
            if kind is not None:
                fields["value_kind"] = kind
        log.info("client error", extra=fields)

    def refusal(self, error: TalkwireError, errors: ErrorTable, request_id: str = "") -> Response:
        """Count and log an error, and return the response to the refused request or handshake. It
        gets a request id if it has none, and a header with the time to retry after.
        """
        request_id = request_id or uuid.uuid4().hex
        self.count(error, request_id, errors.dialect)
        headers, status = {"x-request-id": request_id}, errors.status(error)
        if status in (TOO_MANY, UNAVAILABLE):
            headers["retry-after"] = str(math.ceil(retry_ms(error) / 1000))
        headers |= errors.headers(error, request_id)
        return JSONResponse(errors.body(error, request_id), status, headers)


def idle_timeout(what: str) -> CapacityError:
    """Return the error for an idle socket or context."""
    return CapacityError(ErrorCode.IDLE_TIMEOUT, f"The {what} was idle for too long.")


def slow_consumer() -> CapacityError:
    """Return the error for a client that reads nothing for too long."""
    message = "The client reads too slowly for its audio."
    return CapacityError(ErrorCode.SLOW_CONSUMER, message)


def too_many_contexts(limit: int, which: str = "") -> RequestError:
    """Return the error for a socket that already has ``limit`` open contexts, ``which`` count."""
    message = f"A socket may hold {limit} open context{'' if limit == 1 else 's'}{which}."
    return RequestError(ErrorCode.TOO_MANY_CONTEXTS, message)


#: Descriptions of valid values by pydantic's type of fault.
_MUST_BE = {
    "string_type": "a string",
    "string_unicode": "valid Unicode",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of ordinary size",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "iso_8601": "a date and time in ISO 8601",
}
#: The same for faults with a limit: its name in the fault's context, and the description.
_LIMITS = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "above {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "below {}"),
    "string_too_short": ("min_length", "at least {} characters long"),
    "string_too_long": ("max_length", "at most {} characters long"),
    "too_short": ("min_length", "a list of at least {}"),
    "too_long": ("max_length", "a list of at most {}"),
    "string_pattern_mismatch": ("pattern", "of the form {}"),
    "literal_error": ("expected", "{}"),
}
#: pydantic puts the tried member of a union into the path.
_MEMBERS = frozenset(("str", "int", "float", "bool"))


def validation_error(
    faults: Sequence[Mapping[str, Any]], known: Iterable[str] = (), *, rooted: bool = True
) -> RequestError:
    """Convert the first of pydantic's faults to a RequestError.

    Args:
        faults: The result of ``ValidationError.errors()``.
        known: The existing fields, for the message about an unknown one.
        rooted: Whether paths begin with the source of the value, as FastAPI's do.
    """
    first = faults[0]
    if first["type"] == "json_invalid":
        return RequestError(ErrorCode.INVALID_JSON, "The body is not valid JSON.")
    paths = [_path(fault["loc"][1 if rooted else 0 :]) for fault in faults]
    if not paths[0]:
        value = first.get("input")
        if isinstance(value, bytes):  # FastAPI parses no body whose content-type is another
            message = "The body must be JSON, with the header Content-Type: application/json."
            return RequestError(ErrorCode.INVALID_MESSAGE, message)
        got = "" if value is None else f", not {kind_of(value)}"
        message = f"The body must be a JSON object{got}."
        return RequestError(ErrorCode.INVALID_MESSAGE, message)
    # The longest path belongs to the union's member that was probably meant.
    mine = [(p, f) for p, f in zip(paths, faults, strict=True) if p[:1] == paths[0][:1]]
    path, fault = max(mine, key=lambda one: len(one[0]))
    name = ".".join(path)
    if fault["type"] == "missing":
        return missing_field(name)
    if fault["type"] == "extra_forbidden":
        return unknown_field(name, sorted(known) if len(path) == 1 else ())
    ways = [_must_be(f) for p, f in mine if p == path]
    return invalid_field(name, fault.get("input"), " or ".join(dict.fromkeys(ways)))


def parse_message(model: type[Model], text: str | bytes) -> Model:
    """Parse a client's message. Raises RequestError (``invalid_json``, ``invalid_message``)."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise validation_error(error.errors(), rooted=False) from error


def parse_json(text: str) -> Any:
    """Parse a client's message without a model. Raises RequestError (``invalid_json``)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, "The message is not JSON.") from error


def peek(text: str, name: str) -> str | None:
    """Return a string of a message that may be invalid; None if it cannot be read."""
    with suppress(RequestError):
        message = parse_json(text)
        value = message.get(name) if isinstance(message, dict) else None
        return value if isinstance(value, str) else None
    return None


def _path(place: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(part) for at, part in enumerate(place) if at == 0 or not _is_member(part))


def _is_member(part: object) -> bool:
    """Whether a part of a path is a union's member: a type or model, not named like a field."""
    if not isinstance(part, str):
        return False
    return part in _MEMBERS or part[:1].isupper() or "-" in part or "[" in part


def _must_be(fault: Mapping[str, Any]) -> str:
    kind = fault["type"]
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return words.format(str(fault.get("ctx", {}).get(name, "")).replace("'", ""))
    return _MUST_BE.get(kind, "of the documented form")

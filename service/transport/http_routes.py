"""Routes of HTTP dialects: bounded bodies, request ids, and errors in the dialect's format."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.access.rules import rule_of
from service.admission import Admission, Lease
from service.auth.caller import current_caller
from service.dialects.errors import refusal, validation_error
from service.runtime import Runtime
from service.voices.clip_reader import ClipLimits
from streaming.errors import (
    CapacityError,
    ErrorCode,
    RequestError,
    TalkwireError,
    internal_error,
)

#: JSON may encode a character as two escapes of six bytes.
_BYTES_PER_CHARACTER = 12
_BAD_REQUEST = 400
#: Base64 encodes three bytes as four.
_BASE64 = 4
_HEADER_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_MOST_IGNORED = 32
#: A body up to this size may stay unread, since its client can still send it and read the response.
_SMALL_BYTES = 64 * 1024
_BODY_S = 60.0
#: An upload's maximum duration and, after the grace period, its minimum rate.
_UPLOAD_S, _UPLOAD_GRACE_S, _UPLOAD_BYTES_PER_S = 120.0, 10.0, 32 * 1024
#: Maximum number of strings and commas in a JSON body, and how many more for each item of a batch.
_MOST_TOKENS, _ITEM_TOKENS = 4096, 96
#: A string, a comma or the end, and all before it. It always matches, so a scan is linear.
_TOKEN = re.compile(rb'[^",]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|,|\Z)', re.DOTALL)
_JSON = re.compile(rb"\s*+[\[{]")


class _BoundedRequest(Request):
    """A request whose body has at most ``max_bytes`` and a minute to arrive. If ``uploads`` admits
    it, it may have ``max_clip_bytes`` and two minutes, at a minimum rate. Of a ``refused`` request
    nothing is stored, and a small body is not even awaited.
    """

    uploads: Admission
    max_bytes = max_clip_bytes = 0
    refused: CapacityError | None = None
    upload: Lease | None = None

    @property
    def _is_small(self) -> bool:
        if "transfer-encoding" in self.headers:
            return False
        length = self.headers.get("content-length", "0")
        return length.isdecimal() and int(length) <= _SMALL_BYTES

    async def body(self) -> bytes:
        """Read the body. Raises RequestError (``text_too_long``) if it is longer, CapacityError."""
        if self.refused is not None and self._is_small:
            raise self.refused
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(_BODY_S) as deadline:
                    self._body = await self._read(deadline)
            except TimeoutError:
                message = "The request took too long to come."
                raise CapacityError(ErrorCode.IDLE_TIMEOUT, message) from None
        return self._body

    async def _read(self, deadline: asyncio.Timeout) -> bytes:
        data, most = bytearray(), max(self.max_bytes, self.max_clip_bytes)
        came, full = 0, self.refused
        began = asyncio.get_running_loop().time()
        async for chunk in self.stream():
            came += len(chunk)
            if came > most:
                message = f"A request takes {most} bytes at most."
                raise RequestError(ErrorCode.TEXT_TOO_LONG, message)
            if came > self.max_bytes:
                try:
                    if full is None and self.upload is None:
                        self.upload = self.uploads.acquire(current_caller())
                except CapacityError as error:
                    full = error
                    data.clear()
                allowed_s = min(_UPLOAD_S, _UPLOAD_GRACE_S + came / _UPLOAD_BYTES_PER_S)
                deadline.reschedule(began + allowed_s)
            if full is None:
                data += chunk
        if full is not None:  # after the body, since a client that still sends might not read it
            raise full
        return bytes(data)


def is_form(request: Request) -> bool:
    """Whether the body is a form, not JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "multipart/form-data"


def has_too_many_values(data: bytes, most: int) -> bool:
    """Whether a JSON text has more than ``most`` strings and commas.

    Every value costs up to a kilobyte and 20 µs of the event loop when it is validated, so a body
    that is large enough for a clip could hold the loop for minutes. Commas in strings do not count
    in UTF-8, the only encoding of usual clients.
    """
    if len(data) <= most or data.count(b",") + data.count(b'"') <= most:
        return False
    if json.detect_encoding(data) != "utf-8":
        return data.count(b",") > most
    is_json = _JSON.match(data) is not None  # the parser refuses anything else at its beginning
    return is_json and next(islice(_TOKEN.finditer(data), most + 2, None), None) is not None


def documented(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's descriptions of a router's refusals, with ``body`` as their body."""
    return {
        "4XX": {"model": body, "description": "The request cannot be served as it is."},
        "5XX": {"model": body, "description": "The same request may be served later."},
    }


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return a header with the ignored fields, limited since clients may send any and many."""
    shown = [name for name in dict.fromkeys(names) if _HEADER_NAME.fullmatch(name)]
    return {"x-talkwire-ignored": ", ".join(shown[:_MOST_IGNORED])} if shown else {}


class SpeechRoute(APIRoute):
    """A route with a bounded body and a request id (``request.state.request_id``). TalkwireErrors,
    invalid bodies and bugs are rendered as the rule of its router says.
    """

    takes_clips = False

    def _error(self, wrong: Exception) -> TalkwireError:
        """Convert an exception of the handler; one that is not expected is a bug."""
        if isinstance(wrong, TalkwireError):
            return wrong
        if isinstance(wrong, HTTPException):
            # FastAPI's JSON parser failed, as for bad UTF-8 or too deep nesting
            return validation_error([{"type": "json_invalid"}])
        if not isinstance(wrong, RequestValidationError):
            return internal_error(wrong)
        body = None if self.body_field is None else self.body_field.field_info.annotation
        fields = []
        if isinstance(body, type) and issubclass(body, BaseModel):
            fields = [info.alias or name for name, info in body.model_fields.items()]
        return validation_error(wrong.errors(), fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See APIRoute."""
        handler = super().get_route_handler()
        rule = rule_of(self)
        assert rule is not None

        async def handle(plain: Request) -> Response:
            scope = plain.scope
            if "content-type" not in plain.headers and "x-api-key" in plain.headers:
                # LiveKit's JavaScript plugin for Cartesia omits it. A page of another origin can
                # omit it too, but cannot send a key.
                kind = (b"content-type", b"application/json")
                scope = {**scope, "headers": [*scope["headers"], kind]}
            request = _BoundedRequest(scope, plain.receive)
            runtime: Runtime = request.app.state.runtime
            settings = runtime.settings
            text_bytes = _BYTES_PER_CHARACTER * settings.max_text_chars
            request.max_bytes = settings.max_message_bytes + text_bytes
            request.uploads = runtime.uploads
            if self.takes_clips:
                request.max_clip_bytes = request.max_bytes + _BASE64 * ClipLimits().max_bytes // 3
            request_id = request.state.request_id = uuid.uuid4().hex
            if rule.speaks:
                try:
                    runtime.require_ready()
                    runtime.admission.require(current_caller())
                except CapacityError as full:
                    request.refused = full
            most_tokens = _MOST_TOKENS + _ITEM_TOKENS * settings.max_batch_items
            errors = rule.errors
            try:
                body = await request.body()
                if request.headers.get("content-encoding", "identity").lower() != "identity":
                    errors = replace(errors, statuses={ErrorCode.UNSUPPORTED: 415})
                    message = "The body must not be compressed; send it without Content-Encoding."
                    raise RequestError(ErrorCode.UNSUPPORTED, message)
                if not is_form(request) and has_too_many_values(body, most_tokens):
                    message = "The body has too many values."
                    raise RequestError(ErrorCode.INVALID_MESSAGE, message)
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_BAD_REQUEST)  # the client is gone
            except Exception as wrong:
                response = refusal(runtime, self._error(wrong), errors, request_id)
            finally:
                if request.upload is not None:
                    request.upload.release()
            response.headers["x-request-id"] = request_id
            return response

        return handle


class ClipRoute(SpeechRoute):
    """A route whose requests may contain reference clips in base64."""

    takes_clips = True

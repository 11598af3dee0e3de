"""Routes of HTTP dialects: bounded bodies, request ids, and errors in the dialect's format."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from service.access.rules import rule_of
from service.admission import Admission, Lease
from service.auth.caller import current_caller
from service.errors import HttpError, validation_error
from service.runtime import Runtime
from service.voices.clip_reader import ClipLimits
from streaming.errors import (
    CapacityError,
    ErrorCode,
    RequestError,
    TalkwireError,
    internal_error,
)
from text.pronunciation.rules import MAX_RULES
from text.surrogates import shield_surrogates

#: JSON may encode a character as two escapes of six bytes.
_BYTES_PER_CHARACTER = 12
_BAD_REQUEST, _UNSUPPORTED_MEDIA_TYPE = 400, 415
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
#: Media types of MessagePack.
MSGPACK = frozenset(("application/msgpack", "application/x-msgpack", "application/vnd.msgpack"))


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
    def _length(self) -> int | None:
        """The announced length, if there is one."""
        length = self.headers.get("content-length", "0")
        return None if "transfer-encoding" in self.headers else int(length)

    @property
    def _most_bytes(self) -> int:
        return max(self.max_bytes, self.max_clip_bytes)

    def _too_long(self) -> RequestError:
        message = f"A request takes {self._most_bytes} bytes at most."
        return RequestError(ErrorCode.TEXT_TOO_LONG, message)

    async def body(self) -> bytes:
        """Read the body. Raises RequestError (``text_too_long``) if it is longer, CapacityError."""
        length = self._length
        if length is not None and self.refused is not None and length <= _SMALL_BYTES:
            raise self.refused
        if length is not None and length > self._most_bytes:
            raise self._too_long()
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(_BODY_S) as deadline:
                    body = await self._read(deadline)
                    self._body = body if _is_binary(self) else shield_surrogates(body)
            except TimeoutError:
                message = "The request took too long to come."
                raise CapacityError(ErrorCode.IDLE_TIMEOUT, message) from None
        return self._body

    async def _read(self, deadline: asyncio.Timeout) -> bytes:
        data = bytearray()
        came, full = 0, self.refused
        began = asyncio.get_running_loop().time()
        async for chunk in self.stream():
            came += len(chunk)
            if came > self._most_bytes:
                raise self._too_long()
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
    return media_type_of(request) == "multipart/form-data"


def media_type_of(request: Request) -> str:
    """Return the media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_binary(request: Request) -> bool:
    """Whether the body is a form or MessagePack, which may hold any bytes."""
    return is_form(request) or media_type_of(request) in MSGPACK


async def read_form(request: Request, max_files: int = 1) -> list[tuple[str, str | bytes]]:
    """Parse a form into its fields and at most ``max_files`` files, by name. Nothing is written to
    the disk. Raises RequestError (``invalid_message``).
    """
    body = await request.body()
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=max_files,
        max_fields=16,
        max_part_size=64 * 1024,
    )
    parser.spool_max_size = len(body) + 1
    try:
        form = await parser.parse()
        return [
            (name, await value.read() if isinstance(value, UploadFile) else value)
            for name, value in form.multi_items()
        ]
    except (MultiPartException, KeyError, ValueError) as error:
        raise RequestError(ErrorCode.INVALID_MESSAGE, "The form cannot be read.") from error
    finally:  # the parser does not close files of incomplete parts
        for file in parser._files_to_close_on_error:
            file.close()


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
    #: Strings and commas of a body beyond those of any.
    more_tokens = 0

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
                    runtime.lifecycle.require_ready()
                    runtime.admission.require(current_caller())
                except CapacityError as full:
                    request.refused = full
            most_tokens = _MOST_TOKENS + _ITEM_TOKENS * settings.max_batch_items
            most_tokens += self.more_tokens
            try:
                body = await request.body()
                if request.headers.get("content-encoding", "identity").lower() != "identity":
                    message = "The body must not be compressed; send it without Content-Encoding."
                    raise HttpError(_UNSUPPORTED_MEDIA_TYPE, message)
                if not _is_binary(request) and has_too_many_values(body, most_tokens):
                    message = "The body has too many values."
                    raise RequestError(ErrorCode.INVALID_MESSAGE, message)
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_BAD_REQUEST)  # the client is gone
            except Exception as wrong:
                response = runtime.errors.refusal(self._error(wrong), rule.errors, request_id)
            finally:
                if request.upload is not None:
                    request.upload.release()
            response.headers["x-request-id"] = request_id
            return response

        return handle


class ClipRoute(SpeechRoute):
    """A route whose requests may contain reference clips in base64."""

    takes_clips = True


class RulesRoute(SpeechRoute):
    """A route whose requests may contain all rules of a dictionary of pronunciations."""

    more_tokens = 24 * MAX_RULES

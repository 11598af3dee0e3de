"""What every HTTP dialect's routes have in common: bounded bodies, numbered requests, and faults
worded by the dialect.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.admission import Admission
from service.http_speech import count_error
from service.runtime import Runtime
from service.voices.clip import ClipLimits
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

#: JSON may write a character of the text as two escapes of six bytes.
_BYTES_PER_CHARACTER = 12
_BAD_REQUEST = 400
#: Base64 makes four bytes of three.
_BASE64 = 4
_BODY_S = 60.0
_UPLOAD_S = 60.0
#: The statuses of refusals that are not about what is asked, but about who asks.
ACCESS_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.FORBIDDEN_ORIGIN: 403,
    ErrorCode.RATE_LIMITED: 429,
}
_PROBLEMS = {"missing": "is missing", "extra_forbidden": "is not known"}


def request_fault(fault: Mapping[str, Any]) -> RequestError:
    """The first of pydantic's complaints in our words; what the client sent is not repeated,
    but for the name of the field.
    """
    if fault["type"] == "json_invalid":
        return RequestError(ErrorCode.INVALID_JSON, "The body is not valid JSON.")
    path = fault["loc"][1:]  # after "body", "query" or "path"
    if not path:
        return RequestError(ErrorCode.INVALID_MESSAGE, "The body must be a JSON object.")
    problem = _PROBLEMS.get(fault["type"], "is of the wrong type or out of range")
    return RequestError(ErrorCode.INVALID_MESSAGE, f"A field {problem}.", param=str(path[0])[:128])


class _BoundedRequest(Request):
    """A request whose body may have ``max_bytes``, and a minute to come. Where
    ``max_clip_bytes`` is more than that, up to so many may come: by ``uploads`` requests at
    once, and within a minute more.
    """

    max_bytes = max_clip_bytes = 0
    uploads: Admission | None = None
    _upload_began: float | None = None

    async def body(self) -> bytes:
        """Raises RequestError (``text_too_long``) rather than read more, CapacityError."""
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(_BODY_S) as patience:
                    self._body = await self._read(patience)
            except TimeoutError:
                message = "The request took too long to come."
                raise CapacityError(ErrorCode.IDLE_TIMEOUT, message) from None
        return self._body

    async def _read(self, patience: asyncio.Timeout) -> bytes:
        data, most = bytearray(), max(self.max_bytes, self.max_clip_bytes)
        came, full, is_upload = 0, None, False
        async for chunk in self.stream():
            came += len(chunk)
            if came > most:
                raise RequestError(
                    ErrorCode.TEXT_TOO_LONG, f"A request takes {most} bytes at most."
                )
            if came > self.max_bytes and not is_upload and self.uploads:
                is_upload = True
                patience.reschedule(asyncio.get_running_loop().time() + _UPLOAD_S)
                try:
                    self.uploads.enter()
                    self._upload_began = time.monotonic()
                except CapacityError as error:
                    full = error
                    data.clear()
            if full is None:
                data += chunk
        if full is not None:  # told now: who is still sending might not hear it
            raise full
        return bytes(data)

    def done(self) -> None:
        """The body is not needed any more."""
        if self._upload_began is not None and self.uploads:
            self.uploads.leave(time.monotonic() - self._upload_began)


def documented(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What a router tells OpenAPI of its refusals, whose body is ``body``."""
    return {
        "4XX": {"model": body, "description": "The request cannot be served as it is."},
        "5XX": {"model": body, "description": "The same request may be served later."},
    }


class SpeechRoute(APIRoute):
    """Bounds the body, numbers the request (``request.state.request_id``), and answers every
    TalkwireError and every invalid body in the words of the dialect, which overrides ``refusal``.
    With ``takes_clips`` the body may hold a reference clip in base64.
    """

    takes_clips = False

    @staticmethod
    def refusal(error: TalkwireError, request_id: str) -> Response:
        """The answer to a request that cannot be served."""
        raise NotImplementedError

    @staticmethod
    def fault(fault: Mapping[str, Any]) -> RequestError:
        """What is wrong with a body, from the first of pydantic's complaints."""
        return request_fault(fault)

    def _error(
        self, wrong: TalkwireError | RequestValidationError | HTTPException
    ) -> TalkwireError:
        if isinstance(wrong, TalkwireError):
            return wrong
        if isinstance(wrong, RequestValidationError):
            return self.fault(wrong.errors()[0])
        # FastAPI's, for a body that its JSON parser cannot take: bad UTF-8, brackets without end
        return self.fault({"type": "json_invalid"})

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
            if self.takes_clips:
                request.max_clip_bytes = request.max_bytes + _BASE64 * ClipLimits().max_bytes // 3
                request.uploads = runtime.uploads
            request_id = request.state.request_id = uuid.uuid4().hex
            try:
                await request.body()
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_BAD_REQUEST)  # nobody is there to read it
            except (TalkwireError, RequestValidationError, HTTPException) as wrong:
                error = self._error(wrong)
                count_error(runtime, error, request_id)
                response = self.refusal(error, request_id)
            finally:
                request.done()
            response.headers["x-request-id"] = request_id
            return response

        return handle

"""How the native protocol words a refusal that has an HTTP status."""

from __future__ import annotations

import math

from fastapi import Response
from fastapi.responses import JSONResponse

from service.http_route import ACCESS_STATUS
from streaming.errors import RequestError, TalkwireError

_BAD_REQUEST, _UNAVAILABLE = 400, 503
_RETRY_MS = 1000


def refusal(error: TalkwireError, request_id: str = "") -> Response:
    """The answer to a handshake, or to a request to the service itself. With ``request_id``, its
    header finds the refusal in the logs.
    """
    other = _BAD_REQUEST if isinstance(error, RequestError) else _UNAVAILABLE
    status = ACCESS_STATUS.get(error.code, other)
    body = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    headers = {"x-request-id": request_id} if request_id else {}
    if error.retryable:
        headers["retry-after"] = str(math.ceil((error.retry_after_ms or _RETRY_MS) / 1000))
    return JSONResponse({"error": body}, status, headers)

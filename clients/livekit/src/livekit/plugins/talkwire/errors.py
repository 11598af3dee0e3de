"""Talkwire's errors as LiveKit's, which decide whether LiveKit tries again."""

from __future__ import annotations

import ssl

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError

from talkwire_client import (
    ClientError,
    ConnectionLostError,
    ErrorCode,
    NoServerError,
    RefusedError,
    ServerError,
)

#: The HTTP status of codes whose status is not 400 (docs/reference/protocol.md in Talkwire's
#: repository). LiveKit tries again after 408, 429 and 5xx.
_STATUS = {
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.TOO_MANY_CONTEXTS: 429,
    ErrorCode.UNKNOWN_MODEL: 404,
    ErrorCode.VOICE_EXISTS: 409,
    ErrorCode.TOO_MANY_VOICES: 409,
    ErrorCode.UNKNOWN_PRONUNCIATIONS: 404,
    ErrorCode.TOO_MANY_PRONUNCIATIONS: 409,
    ErrorCode.STORAGE_FAILED: 507,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.FORBIDDEN_ORIGIN: 403,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.NOT_READY: 503,
    ErrorCode.DRAINING: 503,
    ErrorCode.IDLE_TIMEOUT: 408,
    ErrorCode.SLOW_CONSUMER: 500,
    ErrorCode.ENGINE_FAILED: 500,
    ErrorCode.ENGINE_RESTARTING: 503,
    ErrorCode.CODEC_FAILED: 500,
    ErrorCode.INTERNAL: 500,
}
_INVALID = 400
_TRANSIENT = (408, 429)


def as_api_error(error: Exception) -> APIError:
    """Return the error of LiveKit's that says the same.

    Args:
        error: An error of the client, TimeoutError, or ValueError for text that is not Unicode.

    Returns:
        APIStatusError for what the server has refused or failed to do, APITimeoutError,
        APIConnectionError, or APIError for what was not even sent. It is ``retryable`` if the same
        request can succeed later.
    """
    match error:
        case ServerError():
            # A code that only a later server knows: its own word on retrying counts.
            unknown = -1 if error.retryable else _INVALID
            known = error.code in set(ErrorCode)
            status = _STATUS.get(ErrorCode(error.code), _INVALID) if known else unknown
            return APIStatusError(
                str(error),
                status_code=status,
                request_id=error.request_id,
                body={
                    "code": error.code,
                    "param": error.param,
                    "retry_after_ms": error.retry_after_ms,
                },
                retryable=error.retryable,
            )
        case RefusedError():
            transient = error.status in _TRANSIENT or error.status >= 500
            return APIStatusError(str(error), status_code=error.status, retryable=transient)
        case TimeoutError():
            return APITimeoutError("the server sent nothing in time")
        case ClientError() if isinstance(error.__cause__, TimeoutError):
            return APITimeoutError(str(error))
        case NoServerError():
            # An address or certificate that is wrong now stays wrong.
            cause = error.__cause__
            transient = isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
            return APIConnectionError(str(error), retryable=transient)
        case ConnectionLostError():
            return APIConnectionError(str(error))
        case _:
            return APIError(str(error), retryable=False)

"""The closed list of error codes, and the exceptions that carry them.

::

    TalkwireError            an error that a client may see
     +-- RequestError        the client's error: changing the request can help
     +-- CapacityError       no error of either side: the same request can work later
     +-- BackendError        the service's error: talker, codec or gateway

``message`` is for the client and always our own text: the text of an exception from elsewhere never
goes into it.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Every code that a client can ever see. docs/reference/protocol.md explains each."""

    INVALID_JSON = "invalid_json"
    INVALID_MESSAGE = "invalid_message"
    UNKNOWN_MESSAGE = "unknown_message"
    INVALID_TEXT = "invalid_text"
    INVALID_PARAMETER = "invalid_parameter"
    UNSUPPORTED = "unsupported"
    TEXT_TOO_LONG = "text_too_long"
    UNKNOWN_CONTEXT = "unknown_context"
    CONTEXT_EXISTS = "context_exists"
    CONTEXT_CLOSED = "context_closed"
    TOO_MANY_CONTEXTS = "too_many_contexts"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_VOICE = "unknown_voice"
    INVALID_AUDIO = "invalid_audio"
    CONSENT_REQUIRED = "consent_required"
    VOICE_EXISTS = "voice_exists"
    TOO_MANY_VOICES = "too_many_voices"
    UNKNOWN_PRONUNCIATIONS = "unknown_pronunciations"
    TOO_MANY_PRONUNCIATIONS = "too_many_pronunciations"
    STORAGE_FAILED = "storage_failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    IDLE_TIMEOUT = "idle_timeout"
    SLOW_CONSUMER = "slow_consumer"
    ENGINE_FAILED = "engine_failed"
    ENGINE_RESTARTING = "engine_restarting"
    CODEC_FAILED = "codec_failed"
    INTERNAL = "internal"


class TalkwireError(Exception):
    """An error with a code from the closed list and a sentence for the client.

    ``param`` names the invalid field. ``retry_after_ms`` is a hint, present if ``retryable`` is
    true and the time is known.
    """

    retryable = False

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms


class RequestError(TalkwireError):
    """The client's request cannot be served as it is."""


class CapacityError(TalkwireError):
    """The service has no free capacity at present."""

    retryable = True


class BackendError(TalkwireError):
    """A part of the service failed; a retry may work."""

    retryable = True


def internal_error(bug: Exception | None = None) -> BackendError:
    """Return the error for a bug in the server, without details. ``bug`` is for the log."""
    error = BackendError(ErrorCode.INTERNAL, "Something went wrong in the server.")
    error.__cause__ = bug
    return error

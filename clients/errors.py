"""What can go wrong for a client, by who can do something about it.

::

    ClientError
     +-- NoServerError         nothing answers at the address
     +-- RefusedError          the server refused the handshake (an HTTP status)
     +-- ServerError           the server sent an ``error`` message
     +-- ConnectionLostError   the socket closed before the audio was complete
     +-- SlowReaderError       a context's audio was not read, and kept the others waiting
     +-- ProtocolError         the server said something that is not the protocol
"""

from __future__ import annotations

from msgspec import UNSET

from streaming import wire


class ClientError(Exception):
    """Something that a client may be told; the text is fit to be shown to a person."""


class NoServerError(ClientError):
    """Nothing answers there."""


class RefusedError(ClientError):
    """The handshake was answered with an HTTP status other than 101."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the server refused the connection (HTTP {status}): {message}")
        self.status = status


class ServerError(ClientError):
    """An ``error`` message. ``retry_after_ms`` is None unless the server gave a hint."""

    def __init__(self, error: wire.Error) -> None:
        param = "" if error.param is UNSET else f" ({error.param})"
        super().__init__(f"{error.code}{param}: {error.message}")
        self.code = error.code
        self.message = error.message
        self.retryable = error.retryable
        self.retry_after_ms = None if error.retry_after_ms is UNSET else error.retry_after_ms
        self.request_id = error.request_id


class ConnectionLostError(ClientError):
    """The socket closed while a context was open. ``code`` is the close code, if one came."""

    def __init__(self, code: int | None, reason: str) -> None:
        told = f"close code {code}" if code is not None else "without a close code"
        super().__init__(f"the connection was lost ({told}){': ' + reason if reason else ''}")
        self.code = code


class SlowReaderError(ClientError):
    """A context was cancelled here because nobody read its audio while another one waited."""


class ProtocolError(ClientError):
    """What came is not ``talkwire.tts.v1``."""

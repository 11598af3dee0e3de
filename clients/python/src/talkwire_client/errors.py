"""Exceptions of the client.

::

    ClientError
     +-- NoServerError         nothing answers at the address
     +-- RefusedError          the server refused the handshake (an HTTP status)
     +-- ServerError           the server sent an ``error`` message
     +-- ConnectionLostError   the connection closed before the audio was complete
     +-- SlowReaderError       a speech was not read, and blocked others on its connection
     +-- ProtocolError         the server sent something that is not the protocol

Mistakes of the caller are ValueError or TypeError (a context id that is in use, text that is not
Unicode) and RuntimeError (a speech that is read before it is entered, a second ``connect``).
"""

from __future__ import annotations

from typing import Self

from talkwire_client.protocol import Error


class ClientError(Exception):
    """Base of errors between client and server; the text may be shown to users."""

    def _copy(self) -> Self:
        """Return a copy to raise: an object that is raised several times, or by several tasks,
        collects all their tracebacks, and keeps their frames alive.
        """
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__ = self.__cause__
        copy.__suppress_context__ = self.__suppress_context__
        return copy


class NoServerError(ClientError):
    """No server answers at the address, or it is not the address of a WebSocket."""


class RefusedError(ClientError):
    """The handshake was answered with an HTTP status other than 101.

    Attributes:
        status: The HTTP status: 401 without a valid API key, 429 at a limit, 503 when full.
        retry_after_s: The server's ``Retry-After`` in seconds; None if there was none.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the server refused the connection (HTTP {status}): {message}")
        self.status = status
        self.retry_after_s = retry_after_s


class ServerError(ClientError):
    """An ``error`` message of the server.

    Attributes:
        code: One of ``ErrorCode``'s values, or one that a later server added.
        message: A sentence for people.
        param: The invalid field; None if the error does not concern a field.
        retryable: Whether the same request can succeed later.
        retry_after_ms: Time to wait before that; None if unknown.
        request_id: Identifies the error in the server's log.
    """

    def __init__(self, error: Error) -> None:
        param = f" ({error.param})" if error.param is not None else ""
        super().__init__(f"{error.code}{param}: {error.message}")
        self.code = error.code
        self.message = error.message
        self.param = error.param
        self.retryable = error.retryable
        self.retry_after_ms = error.retry_after_ms
        self.request_id = error.request_id


class ConnectionLostError(ClientError):
    """The connection closed while a speech was open.

    Attributes:
        code: The WebSocket close code; None if there was none.
    """

    def __init__(self, code: int | None, reason: str) -> None:
        closing = f"close code {code}" if code is not None else "without a close code"
        super().__init__(f"the connection was lost ({closing}){': ' + reason if reason else ''}")
        self.code = code


class SlowReaderError(ClientError):
    """The client cancelled a speech that was not read while another one waited."""


class ProtocolError(ClientError):
    """A message is not of ``talkwire.tts.v1``."""

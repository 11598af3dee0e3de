"""What the sockets of both versions have in common."""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from collections.abc import Sequence

from websockets.frames import CloseCode

from service.contexts.socket_output import Message
from service.dialects.deepgram.messages import (
    NAME,
    TABLE,
    error_code,
    error_message,
    warning_message,
)
from service.dialects.deepgram.request import SpeakOptions
from service.transport.websocket import Dialect, Idle, Socket
from streaming.errors import CapacityError, ErrorCode, TalkwireError
from streaming.protocol.field_errors import invalid_field, missing_field


class SpeakDialect(Dialect):
    """See Dialect. Warnings leave the socket open, errors close it, as in Deepgram's API."""

    idle = Idle("end")
    binary_code = CloseCode.UNSUPPORTED_DATA

    def __init__(self, socket: Socket, options: SpeakOptions) -> None:
        super().__init__(socket)
        self._options = options
        # Deepgram's form of the same id
        self._request_id = socket.session_id = str(uuid.UUID(socket.session_id))

    def on_text(self, text: str) -> None:
        """Handle a message. An invalid one closes the socket."""
        try:
            self._dispatch(text)
        except TalkwireError as error:
            self.give_up(error)

    @abstractmethod
    def _dispatch(self, text: str) -> None:
        """Handle a message. Raises TalkwireError."""

    def on_drain(self, deadline_ms: int) -> None:
        """Announce it."""
        message = "The socket is about to close; open another for the next turn."
        self._warn(CapacityError(ErrorCode.DRAINING, message), counted=False)

    def render_error(self, error: TalkwireError) -> str:
        """Return an ``Error`` message."""
        self.runtime.errors.count(error, self._request_id, NAME)
        return error_message(error, self._request_id)

    def _failed(self, error: TalkwireError) -> Sequence[Message]:
        """Return the last message of a turn that failed, after which the socket closes, since its
        clients reconnect.
        """
        asyncio.get_running_loop().call_soon(self.socket.finish, TABLE.close_code(error))
        return [error_message(error, self._request_id)]

    def _warn(self, error: TalkwireError, *, counted: bool = True) -> None:
        """Send a warning; the socket stays open. One that announces a drain is no error."""
        if counted:
            self.runtime.errors.count(error, self._request_id, NAME)
        self.socket.send(warning_message(error_code(error), TABLE.message(error)))


def checked_text(text: object) -> str:
    """Return the text of a ``Speak``. Raises RequestError."""
    if text is None:
        raise missing_field("text")
    if not isinstance(text, str):
        raise invalid_field("text", text, "a string")
    return text

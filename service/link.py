"""uvicorn's WebSocket as the application uses it: pings, messages without a queue, a last resort.

ASGI has no pings. Its queue costs each message a task's turn, and reading from the socket is
stopped and begun again for it: a twentieth of the gateway's time in a profile, without the kernel's
part, where an LLM sends its tokens one by one.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

#: Where in an ASGI scope's extensions the socket itself is.
EXTENSION = "talkwire.link"
#: Longer than the server's keep-alive pings, which are told apart by that.
PAYLOAD_BYTES = 8
#: Messages that may come together and be handled at once. More take their turns among others'.
AT_ONCE = 16


class LinkedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, found by the application in its scope (``EXTENSION``).

    ``on_pong`` is told the payloads of pongs to ``ping``. ``on_message`` is given text and binary
    messages, unless others wait in ASGI's queue: then they wait there too. It must not raise.
    """

    on_pong: Callable[[bytes], None] | None = None
    on_message: Callable[[str | bytes], None] | None = None
    _came_together = 0
    _aborting: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.on_pong = self.on_message = None
        if self._aborting is not None:
            self._aborting.cancel()
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        """See uvicorn."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = self

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._came_together = 0
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        """See uvicorn."""
        self._came_together += 1
        is_free = self.queue.empty() and self._came_together <= AT_ONCE
        if self.on_message is None or self.close_sent or not is_free:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        self.on_message(data.decode() if self.curr_msg_data_type == "text" else data)

    def handle_pong(self, event: Frame) -> None:
        """See uvicorn, whose own pings are left to it."""
        if self.on_pong is not None and len(event.data) == PAYLOAD_BYTES:
            self.on_pong(bytes(event.data))
        else:
            super().handle_pong(event)

    def ping(self, payload: bytes) -> None:
        """Send a ping after all that was sent before."""
        if self.close_sent or self.transport.is_closing():
            return
        try:
            self.conn.send_ping(payload)
        except InvalidState:  # it is being closed
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    def abort_in(self, seconds: float) -> None:
        """Drop the connection then, if it is still there, with all that has not been taken."""
        if not self.disconnected:
            self._aborting = self.loop.call_later(seconds, self.transport.abort)

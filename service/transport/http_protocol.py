"""HTTP/1.1: uvicorn's protocol on h11, with deadlines for all that a client owes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.transport.connection_limits import (
    PATIENCE,
    SECOND_LOOK_S,
    ConnectionLimits,
    network_of_client,
    unmapped,
)
from service.transport.intake import Intake
from service.transport.websocket_protocol import WebSocketProtocol

#: Seconds that a request's body may take. Routes for speech and voices allow less (http_routes.py).
_BODY_S = 120.0
#: Most bytes of a request that is refused unread, and the refusal.
_HEAD_BYTES = 64 * 1024
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
#: The status of a head that is too long, which h11 suggests, and the answer.
_TOO_LONG = 431
_HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
#: The scheme, authority and rest of a target in absolute form.
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)


class _Connection(h11.Connection):
    def next_event(self) -> Any:
        """See h11. RFC 9112, 3.2.2: a whole URL is a valid target too, and replaces Host."""
        event = super().next_event()
        if isinstance(event, h11.Request) and (found := _ABSOLUTE.fullmatch(event.target)):
            authority, rest = found.groups()
            return h11.Request(
                method=event.method,
                target=rest if rest.startswith(b"/") else b"/" + rest,
                headers=[(b"Host", authority), *(h for h in event.headers if h[0] != b"host")],
                http_version=event.http_version,
            )
        return event


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines, also for WebSocket handshakes, and in slices (Intake)."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Connection(h11.SERVER)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._owed: Any = None  # a state of h11, which has no types
        self._unread = 0  # bytes of a response when the deadline was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self.client = unmapped(self.client)
        self.network = network_of_client(self.client)
        self._intake = Intake(self._limits.turns, transport, self._parse, self.network)
        self.flow = FlowControl(self._intake)  # type: ignore[arg-type]
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._deadline is not None:
            self._limits.wait_for(self, is_sending=True)
        self._intake.put(data)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._clear_deadline()
        self._intake.discard()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """See uvicorn. The connection goes over to a WebSocket, without a deadline."""
        self._clear_deadline()
        self.connections.discard(self)
        head = [b"%b %b HTTP/1.1\r\n" % (event.method, event.target)]
        head += [b"%b: %b\r\n" % header for header in self.headers]
        protocol = WebSocketProtocol(
            self.app,
            dict(self.scope),
            self.server_state,
            self._intake,
            max_message_bytes=self.config.ws_max_size,
            slow_consumer_s=self._limits.slow_consumer_s,
        )
        self.transport.set_protocol(protocol)
        protocol.begin(self.transport, b"".join([*head, b"\r\n"]))

    def send_400_response(self, msg: str) -> None:
        """See uvicorn. If a head is too long, its rest is dropped until the deadline. Unread, it
        would make the kernel reset the connection, perhaps before the answer is read.
        """
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == _TOO_LONG:
            self.transport.write(_HEAD_TOO_LONG)
            self._intake.discard()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """See uvicorn. The deadline for the next request begins. If a response precedes the end of
        a body in chunks, which may cost 20 us each, the rest is dropped unparsed, and uvicorn's
        timer for idle connections closes this one.
        """
        names = {name for name, _ in self.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            self.transport.close()  # a proxy may hold the rest for this request's body
        if b"transfer-encoding" in names and self.conn.their_state is h11.SEND_BODY:
            self._intake.discard()
        super().on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Set the deadline for what the client owes now: nothing, a head or a body."""
        state = self.conn.their_state
        if state in (self._owed, h11.ERROR) or self.transport.get_protocol() is not self:
            return  # the deadline holds, or belongs to a WebSocket
        self._clear_deadline()
        if state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            return
        self._owed = state
        limits = self._limits
        seconds = limits.head_s if state is h11.IDLE else _BODY_S
        self._unread = self.transport.get_write_buffer_size()
        if self._unread and self.cycle is not None:  # the end of a response
            seconds = max(seconds, PATIENCE * limits.slow_consumer_s)
        self._deadline = self.loop.call_later(seconds, self._expire, seconds)
        limits.wait_for(self, is_sending=state is h11.SEND_BODY)

    def _clear_deadline(self) -> None:
        """Clear the deadline."""
        self._limits.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._owed = None

    def _expire(self, seconds: float, *, again: bool = False) -> None:
        """Give up at the deadline, after a second look (``again``), unless the client is still
        reading an earlier response.
        """
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if 0 < self._unread < before:
            self._deadline = self.loop.call_later(seconds, self._expire, seconds)
        elif not again:
            look = partial(self._expire, seconds, again=True)
            self._deadline = self.loop.call_later(SECOND_LOOK_S, look)
        else:
            self.give_up()

    def give_up(self) -> None:
        """Abort at the deadline."""
        self._clear_deadline()
        self.transport.abort()

    def turn_away(self) -> None:
        """Close for newer connections. When many connect at once, requests have arrived that were
        not read yet; these clients are told to come again.
        """
        if not self._has_unread_request():
            self.give_up()
            return
        self._clear_deadline()
        self.transport.write(_BUSY)
        self.transport.close()

    def _has_unread_request(self) -> bool:
        """Take what a new client without TLS has sent, and return whether there was anything. What
        is left unread would make the kernel reset the connection, perhaps before the answer is
        read.
        """
        has_begun = self.conn.trailing_data != (b"", False) or self.cycle is not None
        if has_begun or self.transport.get_extra_info("sslcontext") is not None:
            return False
        try:
            return bool(os.read(self.transport.get_extra_info("socket").fileno(), _HEAD_BYTES))
        except OSError:
            return False

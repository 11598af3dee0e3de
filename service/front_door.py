"""The listener's own patience: connections that ask for nothing must not add up.

uvicorn waits without end for a request's head and its body, and takes any number of connections.
Here both have a deadline, and of the connections that have not asked for anything yet only so
many are kept: one more, and the one that has waited longest is cut off. Who says what it wants
at once is therefore served while others hold sockets open and say nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import socket
import ssl
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from service.link import LinkedSocket
from service.settings import Settings
from service.tls_door import TlsDoor

#: How long a request's body may take. Speech and voices answer a slow one before (http_route.py).
_BODY_S = 120.0
#: Connections that may wait beside as many as ``max_connections``: probes, metrics, the page.
_SPARE = 64
_PING_S = 20.0
#: What the kernel takes of a connection before its writer has to wait: some seconds of PCM, where
#: it would else take a minute and more, and enough for any encoding at any distance.
_SEND_BYTES = 128 * 1024
#: The kernel drops who has taken nothing for so many times as long as a reader may be slow.
_DROP_AFTER = 3.0


@dataclass
class Patience:
    """What a connection may make the server wait for. ``waiting`` holds those that owe a handshake,
    a request or the rest of one, the oldest first. With ``tls`` each begins with TLS.
    """

    head_s: float
    body_s: float
    most_waiting: int
    tls: ssl.SSLContext | None = None
    waiting: OrderedDict[GuardedHttp | TlsDoor, None] = field(default_factory=OrderedDict)

    def protocol(self, **uvicorns: Any) -> asyncio.Protocol:
        """What uvicorn makes of each connection: its setting ``http``."""
        inner = partial(GuardedHttp, patience=self, **uvicorns)
        if self.tls is None:
            return inner()
        connections = uvicorns["server_state"].connections
        return TlsDoor(self.tls, inner, self.head_s, connections, self.begin, self.end)

    def begin(self, connection: GuardedHttp | TlsDoor) -> None:
        """It owes something from now on."""
        self.waiting[connection] = None
        if len(self.waiting) > self.most_waiting:
            oldest, _ = self.waiting.popitem(last=False)
            oldest.give_up()

    def end(self, connection: GuardedHttp | TlsDoor) -> None:
        """It owes nothing now."""
        self.waiting.pop(connection, None)


class DoorConfig(uvicorn.Config):
    """uvicorn's settings, where TLS is the door's business instead of the listener's."""

    patience: Patience

    def load(self) -> None:
        """See uvicorn.Config. Raises OSError if the certificate or its key cannot be used."""
        super().load()
        self.patience.tls, self.ssl = self.ssl, None


class GuardedHttp(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines; a WebSocket's handshake begins here too."""

    def __init__(self, *args: Any, patience: Patience, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = patience
        self._deadline: asyncio.TimerHandle | None = None
        self._owed: Any = None  # a state of h11, of which there are no types
        self._unread = 0  # of an answer, when the deadline was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._serve()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The handshake has come: what follows is the WebSocket's business."""
        self._owed = h11.SWITCHED_PROTOCOL
        self._serve()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """The connection is kept for another request."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Note what the client owes now: nothing, a head, or a body."""
        state = self.conn.their_state
        if self._owed is h11.SWITCHED_PROTOCOL or state is self._owed:
            return
        self._serve()
        if state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            return
        self._owed = state
        patience = self._patience
        seconds = patience.head_s if state is h11.IDLE else patience.body_s
        self._unread = self.transport.get_write_buffer_size()
        self._deadline = self.loop.call_later(seconds, self._expire, seconds)
        patience.begin(self)

    def _serve(self) -> None:
        """Nothing is owed."""
        self._patience.end(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._owed is not h11.SWITCHED_PROTOCOL:
            self._owed = None

    def _expire(self, seconds: float) -> None:
        """Time is up, unless the client is still taking what it was answered before."""
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if 0 < self._unread < before:
            self._deadline = self.loop.call_later(seconds, self._expire, seconds)
        else:
            self.give_up()

    def give_up(self) -> None:
        """Time is up, or others came after."""
        self._serve()
        self.transport.abort()


class Conversation(ServerProtocol):
    """websockets' protocol; a client may leave in the middle of a message of its own.

    RFC 6455, 5.4, lets control frames come between fragments, the closing one too. websockets
    would answer that one with 1002, as if it were a fault.
    """

    def recv_frame(self, frame: Frame) -> None:
        """See websockets; what a closing frame breaks off is forgotten."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class GuardedSocket(LinkedSocket):
    """uvicorn's WebSocket; it would keep each of endlessly many empty fragments of a message, and
    look only at a message's end whether it is text, with a stack in the log where it is not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Conversation(max_size=self.config.ws_max_size, logger=self.logger)
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def handle_text(self, event: Frame) -> None:
        """Take a text message, or the first fragment of one."""
        self._utf8.reset()
        if self._is_text(event):
            super().handle_text(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment; an empty one adds nothing unless it is the last."""
        if not event.data and not event.fin:
            return
        if self.curr_msg_data_type == "bytes" or self._is_text(event):
            super().handle_cont(event)

    def _is_text(self, event: Frame) -> bool:
        """Whether a text message is UTF-8 so far; else the connection ends with 1007."""
        try:
            self._utf8.decode(event.data, event.fin)
        except UnicodeDecodeError:
            if not self.close_sent:
                self.conn.fail(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
            return False
        return True


def bound_sending(listener: socket.socket, slow_consumer_s: float) -> None:
    """Bound how much, and for how long, the kernel holds for clients of ``listener`` that take
    nothing. A connection that is closed would else wait for them for ever with what is left.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        patience_ms = round(1000 * _DROP_AFTER * slow_consumer_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)


def server_config(app: ASGIApp, settings: Settings, grace_s: int) -> uvicorn.Config:
    """How uvicorn serves ``app``: nothing compressed, nothing waited for without end, and over
    TLS where a certificate is set. ``grace_s`` ends what is still open when all else has ended.
    """
    patience = Patience(settings.handshake_s, _BODY_S, settings.max_connections + _SPARE)
    config = DoorConfig(
        app,
        http=patience.protocol,  # type: ignore[arg-type]
        ws=GuardedSocket,
        log_config=None,
        ws_max_size=settings.max_message_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        timeout_graceful_shutdown=grace_s,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    config.patience = patience
    return config

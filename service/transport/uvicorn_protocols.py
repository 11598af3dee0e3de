"""uvicorn's protocols with bounded connections, WebSocket pings and direct delivery of messages.

ASGI has no pings. Its queue costs a task switch per message, and pauses and resumes reading from
the socket. For an LLM's single tokens that took a twentieth of the gateway's time in a profile,
not counting the kernel's part.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import math
import os
import socket
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # none is public
from asyncio import TimerHandle
from collections import OrderedDict
from collections.abc import Callable, MutableSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from service.settings import Settings

log = logging.getLogger(__name__)

#: Key of the protocol among an ASGI scope's extensions.
EXTENSION = "talkwire.websocket"
#: Size of our pings' payload, longer than that of the server's keep-alive pings.
PAYLOAD_BYTES = 8
#: Maximum messages, and their bytes, that are handled in one turn of the event loop if they arrive
#: together.
AT_ONCE, BYTES_AT_ONCE = 16, 16 * 1024

#: Seconds that a request's body may take. Routes for speech and voices allow less (http_routes.py).
_BODY_S = 120.0
#: Connections that may wait in addition to ``max_connections``: probes, metrics, the page.
_SPARE = 64
_PING_S = 20.0
#: The kernel's send buffer of a connection: some seconds of PCM instead of a minute or more, and
#: enough for any encoding at any distance.
_SEND_BYTES = 128 * 1024
#: The kernel drops a client that reads nothing for this multiple of ``slow_consumer_s``.
_DROP_AFTER = 7.0
#: The kernel's maximum for that, 24 days.
_MOST_MS = 2**31 - 1
#: An open connection that takes nothing is aborted after this multiple of ``slow_consumer_s``.
_ABORT_AFTER = 2.0
#: The same while a client may have audio left to play: one that reads as fast as it plays makes
#: room in the system's buffers in large steps, at 32 kbit/s tens of seconds apart.
PATIENCE = 6
#: Seconds between a deadline and its consequence. After a pause of the process, timers may fire
#: before anything is read or written; what had arrived meanwhile is then handled first.
_SECOND_LOOK_S = 0.05
#: Maximum number of pings and unsolicited pongs of a client in a window of time.
_MOST_CONTROL_FRAMES, _CONTROL_WINDOW_S = 2_000, 10.0
#: The answer to an upgrade that is no handshake, such as a POST or one with a body.
_NO_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 27\r\nconnection: close\r\n\r\nInvalid WebSocket handshake"
)


class BoundedServerProtocol(ServerProtocol):
    """websockets' protocol with bounded work for control frames.

    RFC 6455, 5.4, allows control frames between fragments, even a close frame, which websockets
    would answer with 1002. It would also answer every ping of a client that reads no answers;
    5.5.3 allows answering only the last one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Whether the client does not read. If so, only its last ping is answered, later.
        self.is_choked = False
        self._unanswered: bytes | None = None
        #: Number of pings and unsolicited pongs since the last reset.
        self.control_frames = 0
        self._pongs_due = 0

    def send_ping(self, data: bytes | bytearray | memoryview[int]) -> None:
        """See websockets."""
        super().send_ping(data)
        self._pongs_due += 1

    def recv_frame(self, frame: Frame) -> None:
        """See websockets. A close frame discards an incomplete message."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        elif frame.opcode is Opcode.PONG and self._pongs_due:
            self._pongs_due -= 1
        elif frame.opcode in (Opcode.PING, Opcode.PONG):
            self.control_frames += 1
        if frame.opcode is Opcode.PING and self.is_choked:
            self._unanswered = bytes(frame.data)
        else:
            super().recv_frame(frame)

    def answer_ping(self) -> None:
        """Answer the last ping that arrived while the client was choked."""
        data, self._unanswered = self._unanswered, None
        if data is not None:
            with contextlib.suppress(InvalidState):
                self.send_pong(data)


def _unmapped(client: tuple[str, int] | None) -> tuple[str, int] | None:
    """Return an address without IPv6's prefix for IPv4, as trusted proxies are named."""
    return client and (client[0].removeprefix("::ffff:"), client[1])


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which the application finds in its scope (``EXTENSION``).

    ``on_pong`` gets the payloads of pongs to ``ping``, and returns whether the client has read more
    than before. ``on_message`` gets text and binary messages. If others wait in ASGI's queue,
    messages wait there too. It must not raise. ``unplayed_s`` returns for how many seconds the
    client need not read, since it has read audio to play.

    uvicorn would store every empty fragment of a message without a bound, and check only complete
    messages for UTF-8, logging a stack trace if they are not. A client that reads nothing is
    dropped, and one that sends too many control frames is closed with 1008.
    """

    on_pong: Callable[[bytes], bool] | None = None
    on_message: Callable[[str | bytes], None] | None = None
    unplayed_s: Callable[[], float] | None = None
    _came_together = _bytes_together = 0
    _abort_timer: TimerHandle | None = None
    _drop_timer: TimerHandle | None = None
    _window_at = 0.0
    #: Whether the client has read something since the last look at its unsent data.
    _has_read = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: BoundedServerProtocol = BoundedServerProtocol(
            max_size=self.config.ws_max_size, logger=self.logger
        )
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self.client = _unmapped(self.client)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.on_pong = self.on_message = self.unplayed_s = None
        for timer in (self._abort_timer, self._drop_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """See uvicorn. It would raise InvalidState, and end the server without its engines' end,
        for a client that has sent a close frame and not yet read everything.
        """
        if not self.transport.is_closing():
            super().shutdown()

    def handle_connect(self, event: Request) -> None:
        """See uvicorn."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = self

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._came_together = self._bytes_together = 0
        now = self.loop.time()
        if now - self._window_at >= _CONTROL_WINDOW_S:
            self._window_at = now
            self.conn.control_frames = 0
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_unreadable()
        elif self.conn.control_frames > _MOST_CONTROL_FRAMES and not self.close_sent:
            self.conn.fail(CloseCode.POLICY_VIOLATION, "too many control frames")
            self.handle_parser_exception()

    def _refuse_unreadable(self) -> None:
        """Answer a handshake that is none, or too long for websockets, and close. uvicorn would do
        neither, and no deadline applies any more.
        """
        output = b"".join(self.conn.data_to_send())
        self.transport.write(output or _NO_HANDSHAKE)
        self.transport.close()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        self.conn.is_choked = True
        self._drop_unless_taken(math.inf)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        self.conn.is_choked = False
        self.conn.answer_ping()
        if output := b"".join(self.conn.data_to_send()):
            self.transport.write(output)

    def _drop_unless_taken(self, before: float, *, again: bool = False) -> None:
        """Abort the connection if none of ``before`` bytes were taken and nothing was read, after a
        second look (``again``). Else check again later.
        """
        left, has_read = self.transport.get_write_buffer_size(), self._has_read
        if left >= before and not has_read:
            if again:
                self.transport.abort()
                return
            look = partial(self._drop_unless_taken, before, again=True)
            self._drop_timer = self.loop.call_later(_SECOND_LOOK_S, look)
            return
        self._has_read = False
        assert isinstance(self.config, ServerConfig)
        seconds = _ABORT_AFTER * self.config.limits.slow_consumer_s
        if self.unplayed_s is not None:
            seconds += self.unplayed_s()
        self._drop_timer = self.loop.call_later(seconds, self._drop_unless_taken, left)

    # -- messages

    def handle_text(self, event: Frame) -> None:
        """Handle a text message or its first fragment."""
        self._utf8.reset()
        if self._is_text(event):
            super().handle_text(event)

    def handle_cont(self, event: Frame) -> None:
        """Handle a fragment. Empty ones are ignored unless last."""
        if not event.data and not event.fin:
            return
        if self.curr_msg_data_type == "bytes" or self._is_text(event):
            super().handle_cont(event)

    def _is_text(self, event: Frame) -> bool:
        """Whether a text message is UTF-8 so far; if not, close the connection with 1007."""
        try:
            self._utf8.decode(event.data, event.fin)
        except UnicodeDecodeError:
            if not self.close_sent:
                self.conn.fail(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
            return False
        return True

    def send_receive_event_to_app(self) -> None:
        """See uvicorn."""
        self._came_together += 1
        is_many = self._came_together > AT_ONCE or self._bytes_together > BYTES_AT_ONCE
        self._bytes_together += sum(map(len, self.frames))
        is_free = self.queue.empty() and not is_many
        if self.on_message is None or self.close_sent or not is_free:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        self.on_message(data.decode() if self.curr_msg_data_type == "text" else data)

    # -- pings

    def handle_pong(self, event: Frame) -> None:
        """See uvicorn, which handles the pongs to its own pings. Its last ping may wait behind a
        minute of audio, so it counts as unanswered only while the client reads nothing.
        """
        if self.on_pong is None or len(event.data) != PAYLOAD_BYTES:
            super().handle_pong(event)
        elif self.on_pong(bytes(event.data)):
            self._has_read = True
            if self.pong_timer is not None:
                self.pong_timer.cancel()
                self.pong_timer = self.loop.call_later(_PING_S, self.keepalive_timeout)

    def keepalive_timeout(self) -> None:
        """See uvicorn, which then closes the connection. A client that has audio to play need not
        read the ping before that was played.
        """
        if self.unplayed_s is not None and (left_s := self.unplayed_s()):
            self.pong_timer = self.loop.call_later(left_s + _PING_S, self.keepalive_timeout)
            return
        self.pong_timer = self.loop.call_later(_SECOND_LOOK_S, super().keepalive_timeout)

    def ping(self, payload: bytes) -> None:
        """Send a ping after all earlier data."""
        if self.close_sent or self.transport.is_closing():
            return
        try:
            self.conn.send_ping(payload)
        except InvalidState:  # closing
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    def abort_in(self, seconds: float) -> None:
        """Abort the connection after ``seconds`` if it still exists, with all unsent data."""
        if not self.disconnected:
            self._abort_timer = self.loop.call_later(seconds, self.transport.abort)


@dataclass
class ConnectionLimits:
    """Limits on connections for which the server waits. Those in ``waiting``, oldest first, owe a
    handshake, a request or its rest. With ``tls``, each begins with a TLS handshake.
    """

    head_s: float
    most_waiting: int
    slow_consumer_s: float
    tls: ssl.SSLContext | None = None
    waiting: OrderedDict[HttpProtocol | TlsHandshake, None] = field(default_factory=OrderedDict)

    def protocol(self, **uvicorns: Any) -> asyncio.Protocol:
        """Create the protocol of a connection, as uvicorn's setting ``http``."""
        inner = partial(HttpProtocol, limits=self, **uvicorns)
        if self.tls is None:
            return inner()
        return TlsHandshake(self, self.tls, inner, uvicorns["server_state"].connections)

    def begin(self, connection: HttpProtocol | TlsHandshake) -> None:
        """Add a connection that waits for its client. If there are too many, give up the oldest."""
        self.waiting[connection] = None
        if len(self.waiting) > self.most_waiting:
            oldest, _ = self.waiting.popitem(last=False)
            oldest.turn_away()


_NO_PASSPHRASE = "none"
#: Most bytes of a request that is refused unread, and the refusal.
_HEAD_BYTES = 64 * 1024
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, with TLS done by TlsHandshake instead of the listener."""

    limits: ConnectionLimits
    #: When the certificate that is used expires, in seconds since 1970; None without TLS.
    expires_at: float | None = None

    def load(self) -> None:
        """See uvicorn.Config. Raises OSError if the certificate or its key cannot be used."""
        super().load()
        if self.ssl is not None:
            self._take(self.ssl)
        self.ssl = None

    def _take(self, context: ssl.SSLContext) -> None:
        """Use a certificate that was read."""
        self.limits.tls, self.expires_at, expiry = context, None, "unknown"
        with contextlib.suppress(OSError, ValueError):  # a part that Python cannot decode
            expiry = str(_test_decode_cert(str(self.ssl_certfile))["notAfter"])
            self.expires_at = ssl.cert_time_to_seconds(expiry)
        log.info("the certificate was read", extra={"expires": expiry})

    def reload_certificate(self) -> None:
        """Read the certificate and its key again. If they cannot be used, the old ones stay.

        For the passphrase of an encrypted key OpenSSL would ask the terminal, and block until
        somebody typed one, so it gets a wrong one.
        """
        if self.limits.tls is None:
            return
        try:
            fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            fresh.load_cert_chain(str(self.ssl_certfile), self.ssl_keyfile, _NO_PASSPHRASE)
        except OSError as error:  # ssl.SSLError is one
            reason = self.certificate_fault(error)
            log.error("the certificate cannot be used", extra={"reason": reason})
            return
        self._take(fresh)

    def certificate_fault(self, error: OSError) -> str:
        """Return why the certificate or its key cannot be used, for operators."""
        certificate, key = str(self.ssl_certfile), str(self.ssl_keyfile or self.ssl_certfile)
        if getattr(error, "reason", "") in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
            return f"{key} is not the key of {certificate}"
        for file, kind in ((certificate, "CERTIFICATE"), (key, "PRIVATE KEY")):
            try:
                held = Path(file).read_bytes()
            except OSError as unread:
                return f"cannot read {file}: {unread.strerror}"
            if f"{kind}-----".encode() not in held:
                return f"{file} has no {kind.lower()} in PEM"
        if b"ENCRYPTED" in held:  # OpenSSL only says that an argument is invalid
            return f"the key in {key} is encrypted"
        return f"{error.strerror or error} ({certificate}, {key})"


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines, also for WebSocket handshakes."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._owed: Any = None  # a state of h11, which has no types
        self._unread = 0  # bytes of a response when the deadline was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self.client = _unmapped(self.client)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._clear_deadline()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """See uvicorn. No deadline applies after the handshake request."""
        self._clear_deadline()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """See uvicorn. The deadline for the next request begins."""
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            self.transport.close()  # a proxy may hold the rest for this request's body
        super().on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Set the deadline for what the client owes now: nothing, a head or a body."""
        state = self.conn.their_state
        if state is self._owed or self.transport.get_protocol() is not self:  # a WebSocket
            return
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
        limits.begin(self)

    def _clear_deadline(self) -> None:
        """Clear the deadline."""
        self._limits.waiting.pop(self, None)
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
            self._deadline = self.loop.call_later(_SECOND_LOOK_S, look)
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


def configure_listener(listener: socket.socket, slow_consumer_s: float) -> None:
    """Set how the kernel sends to the clients of ``listener``, whose options they inherit.

    Nagle's algorithm is disabled, or a small message would wait up to 40 ms for the acknowledgement
    of the one before. (uvloop always disables it; asyncio does so only for sockets that were made
    with ``IPPROTO_TCP``.) The bytes, and the time, that are buffered for clients that read nothing
    are bounded, or closed connections with unsent data would wait for ever.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        timeout_ms = math.ceil(1000 * _DROP_AFTER * slow_consumer_s)  # 0 would be the system's own
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(timeout_ms, _MOST_MS))


def server_config(app: ASGIApp, settings: Settings, grace_s: int) -> ServerConfig:
    """Return uvicorn's settings for ``app``: no compression, all waits bounded, and TLS if there is
    a certificate. At the end, connections that are still open are cut after ``grace_s``.
    """
    most_waiting = settings.max_connections + _SPARE
    limits = ConnectionLimits(settings.handshake_s, most_waiting, settings.slow_consumer_s)
    config = ServerConfig(
        app,
        http=limits.protocol,  # type: ignore[arg-type]
        ws=WebSocketProtocol,
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
    config.limits = limits
    return config


class TlsHandshake(asyncio.Protocol):
    """A connection during its TLS handshake. Then a protocol created by ``inner`` takes over.

    ``limits`` give up one that waits too long; uvicorn calls ``shutdown`` of ``connections``.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        context: ssl.SSLContext,
        inner: Callable[[], asyncio.Protocol],
        connections: MutableSet[Any],
    ) -> None:
        self._limits, self._context, self._inner = limits, context, inner
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol. The socket is moved to a new transport before anything is read,
        since uvloop could pass the first bytes to this protocol before ``start_tls`` has
        installed its own.
        """
        try:
            kept = transport.get_extra_info("socket").dup()
        finally:  # without a free file descriptor, the connection is closed
            transport.abort()
        self._connections.add(self)
        self._securing = asyncio.create_task(self._secure(kept))
        self._securing.add_done_callback(lambda done: self._forget(done, kept))
        self._limits.begin(self)

    def turn_away(self) -> None:
        """Stop for newer connections, or at the server's end."""
        self._securing.cancel()

    shutdown = turn_away  # uvicorn's name

    async def _secure(self, kept: socket.socket) -> None:
        # clients without TLS, or that disconnect, are ignored
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._inner,
                kept,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.head_s,
                ssl_shutdown_timeout=self._limits.head_s,
            )

    def _forget(self, done: asyncio.Task[None], kept: socket.socket) -> None:
        """Clean up after the task, which may never have begun if many connect at once."""
        self._connections.discard(self)
        self._limits.waiting.pop(self, None)
        if done.cancelled():
            kept.close()

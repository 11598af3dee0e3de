"""One WebSocket connection, on websockets' protocol without I/O.

ASGI has no pings. Its queue costs a task switch per message, and pauses and resumes reading from
the socket. For an LLM's single tokens that took a twentieth of the gateway's time in a profile,
not counting the kernel's part. So messages go directly to ``on_message`` once it is set.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import math
import random
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage, InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol

from service.auth.caller import current_caller
from service.transport.connection_limits import SECOND_LOOK_S
from service.transport.intake import Intake

log = logging.getLogger(__name__)

#: Key of the protocol among an ASGI scope's extensions.
EXTENSION = "talkwire.websocket"
#: Size of the payload of ``ping``, longer than that of keep-alive pings.
PAYLOAD_BYTES = 8
_KEEPALIVE_BYTES = 4
#: Seconds between keep-alive pings, and in which one is answered.
_PING_S = 20.0
#: Seconds in which a client may answer our close frame, and bytes that it may send before.
_CLOSE_S, _CLOSE_BYTES = 10.0, 64 * 1024
#: Seconds in which a client that is still sending can read why the connection ends.
_LINGER_S = 1.0
#: An open connection that takes nothing is aborted after this multiple of ``slow_consumer_s``.
_ABORT_AFTER = 2.0
#: Maximum number of pings and unsolicited pongs of a client in a window of time.
_MOST_CONTROL_FRAMES, _CONTROL_WINDOW_S = 2_000, 10.0
#: Maximum number of fragments of a message, beside one for so many bytes. Empty ones would pass
#: every limit of size.
_MOST_FRAGMENTS, _FRAGMENT_BYTES = 4096, 32
#: The first byte of a pong.
_PONG = bytes((0x80 | Opcode.PONG,))
#: The answer to an upgrade that is no handshake, such as a POST or one with a body.
_NO_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 27\r\nconnection: close\r\n\r\nInvalid WebSocket handshake"
)


class _Connection(ServerProtocol):
    def recv_frame(self, frame: Frame) -> None:
        """See websockets, which would answer a close frame between fragments with 1002. RFC 6455,
        5.4, allows it; the incomplete message is dropped.
        """
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class WebSocketProtocol(asyncio.Protocol):
    """A WebSocket, which the application finds in its scope (``EXTENSION``).

    A client that reads nothing is dropped, and one that sends too many control frames or fragments
    is closed with 1008. While it does not read, only its last ping is answered (RFC 6455, 5.5.3).
    """

    def __init__(
        self,
        app: ASGIApp,
        scope: Scope,
        server_state: ServerState,
        intake: Intake,
        *,
        max_message_bytes: int,
        slow_consumer_s: float,
    ) -> None:
        self._app = app
        #: The scope of the handshake as an HTTP request.
        self._scope = scope
        self._server_state = server_state
        self._intake = intake
        self._slow_consumer_s = slow_consumer_s
        self._loop = asyncio.get_running_loop()
        self.conn = _Connection(
            max_size=max_message_bytes, logger=logging.getLogger("uvicorn.error")
        )
        self.transport: asyncio.Transport

        #: Gets text and binary messages. It must not raise.
        self.on_message: Callable[[str | bytes], None] | None = None
        #: Gets the payloads of pongs to ``ping``, and returns whether the client has read more than
        #: before.
        self.on_pong: Callable[[bytes], bool] | None = None
        #: Returns for how many seconds the client need not read, since it has read audio to play.
        self.unplayed_s: Callable[[], float] | None = None

        #: ASGI's messages that wait for ``receive``.
        self._received: asyncio.Queue[Message] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()
        #: The response to the handshake.
        self._response: Response
        #: Whether the application was told of the end.
        self._is_over = False
        self._is_lost = False
        #: Timers by purpose: keepalive, drop (a client that takes nothing), end, abort.
        self._timers: dict[str, asyncio.TimerHandle] = {}

        #: The fragments of the message that is being received, apart from empty ones.
        self._pieces: list[Any] = []
        self._fragments = 0
        self._message_bytes = 0
        self._is_text = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

        #: Pongs to our pings that may still come.
        self._pongs_due = 0
        #: Pings and other pongs since ``_window_at``.
        self._control_frames = 0
        self._window_at = 0.0
        #: Bytes received after the application was told of the end.
        self._late_bytes = 0
        #: The last pong for a client that does not read.
        self._late_pong: bytes | None = None
        #: The payload of the unanswered keep-alive ping.
        self.keepalive_payload = b""
        #: Whether the client has read something since the last look at its unsent data.
        self._has_read = False

    # -- the connection

    def begin(self, transport: asyncio.Transport, head: bytes) -> None:
        """Take over a connection with the whole head of an upgrade."""
        self.transport = transport
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self._intake.parse = self._parse
        self.conn.receive_data(head)
        for request in self.conn.events_received():
            assert isinstance(request, Request)
            self._response = self.conn.accept(request)
            if self._response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                task = self._loop.create_task(self._run(request))
                task.add_done_callback(self._server_state.tasks.discard)
                self._server_state.tasks.add(task)
            else:
                self.conn.send_response(self._response)
        if isinstance(self.conn.handshake_exc, InvalidMessage):
            transport.write(_NO_HANDSHAKE)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._intake.put(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._server_state.connections.discard(self)
        self._is_lost = True
        self._intake.discard()
        self._disconnect(CloseCode.NO_STATUS_RCVD if self._was_open else CloseCode.ABNORMAL_CLOSURE)
        self._writable.set()
        self.on_pong = self.on_message = self.unplayed_s = None
        for timer in self._timers.values():
            timer.cancel()

    @property
    def _was_open(self) -> bool:
        return self.conn.state is not CONNECTING

    def shutdown(self) -> None:
        """Close at the server's end. uvicorn calls it."""
        if not self.transport.is_closing():
            if self.conn.state is OPEN:
                self._close(CloseCode.SERVICE_RESTART)
            self._reject(HTTPStatus.INTERNAL_SERVER_ERROR)
            self.transport.close()

    def abort_in(self, seconds: float) -> None:
        """Abort the connection after ``seconds`` if it still exists, with all unsent data."""
        self._set_timer("abort", seconds, self.transport.abort)

    def _set_timer(self, purpose: str, seconds: float, callback: Callable[[], object]) -> None:
        if purpose in self._timers:
            self._timers[purpose].cancel()
        if not self._is_lost:
            self._timers[purpose] = self._loop.call_later(seconds, callback)

    # -- sending

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.clear()
        self._drop_unless_taken(math.inf)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.set()
        self._timers.pop("drop").cancel()
        pong, self._late_pong = self._late_pong, None
        if pong is not None and self.conn.state is OPEN:
            self.transport.write(pong)

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
            self._set_timer("drop", SECOND_LOOK_S, look)
            return
        self._has_read = False
        seconds = _ABORT_AFTER * self._slow_consumer_s + self._unplayed_s()
        self._set_timer("drop", seconds, partial(self._drop_unless_taken, left))

    def _unplayed_s(self) -> float:
        return 0.0 if self.unplayed_s is None else self.unplayed_s()

    def _flush(self) -> None:
        """Send what the protocol has to send, and close the connection if it says so."""
        for data in self.conn.data_to_send():
            if not data:
                self._hang_up()
            elif data.startswith(_PONG) and not self._writable.is_set():
                self._late_pong = data
            else:
                self.transport.write(data)

    def _hang_up(self) -> None:
        """Close the connection. With unread data, the kernel would reset it at once, perhaps before
        the client has read the close frame.
        """
        close = self.conn.close_rcvd or self.conn.close_sent
        if close is None:
            self._disconnect(CloseCode.ABNORMAL_CLOSURE)
        else:
            self._disconnect(close.code, close.reason)
        is_sending = self._intake.has_unparsed
        self._intake.discard()
        if is_sending:
            self._set_timer("end", _LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _fail(self, code: CloseCode, reason: str = "") -> None:
        """Close at once with ``code``, unless the connection is closing already."""
        if self.conn.state is OPEN:
            self.conn.fail(code, reason)
            self._flush()

    def _disconnect(self, code: int, reason: str = "") -> None:
        """Tell the application of the end, once. What still comes is not handled any more."""
        if not self._is_over:
            self._is_over = True
            self._received.put_nowait(
                {"type": "websocket.disconnect", "code": int(code), "reason": reason}
            )

    # -- receiving

    def _parse(self, data: bytes) -> None:
        """Handle a slice of the client's data."""
        self.conn.receive_data(data)
        for frame in self.conn.events_received():
            if isinstance(frame, Frame) and not self._is_over:
                self._handle(frame)
        if self._is_over:
            self._late_bytes += len(data)
            if self._late_bytes > _CLOSE_BYTES:
                self._hang_up()
        self._flush()

    def _handle(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text = frame.opcode is Opcode.TEXT
                self._fragments = self._message_bytes = 0
                self._take(frame)
            case Opcode.CONT:
                self._take(frame)
            case Opcode.PING:
                self._count_control_frame()
            case Opcode.PONG:
                self.handle_pong(frame)

    def _take(self, frame: Frame) -> None:
        """Take a message or a fragment."""
        self._fragments += 1
        self._message_bytes += len(frame.data)
        if self._fragments > _MOST_FRAGMENTS + self._message_bytes // _FRAGMENT_BYTES:
            self._fail(CloseCode.POLICY_VIOLATION, "too many fragments")
            return
        piece: Any = frame.data
        if self._is_text:
            try:
                piece = self._utf8.decode(piece, frame.fin)
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA)
                return
        if piece:
            self._pieces.append(piece)
        if frame.fin:
            pieces, self._pieces = self._pieces, []
            self._deliver("".join(pieces) if self._is_text else b"".join(pieces))

    def _deliver(self, message: str | bytes) -> None:
        if self.on_message is not None and self._received.empty():
            self.on_message(message)
            return
        kind = "text" if isinstance(message, str) else "bytes"
        self._received.put_nowait({"type": "websocket.receive", kind: message})
        self._intake.pause_reading()

    def _count_control_frame(self) -> None:
        now = self._loop.time()
        if now - self._window_at >= _CONTROL_WINDOW_S:
            self._window_at, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > _MOST_CONTROL_FRAMES:
            self._fail(CloseCode.POLICY_VIOLATION, "too many control frames")

    # -- pings

    def ping(self, payload: bytes) -> None:
        """Send a ping after all earlier data."""
        if self.conn.state is OPEN and not self.transport.is_closing():
            self.conn.send_ping(payload)
            self._pongs_due += 1
            self._flush()

    def handle_pong(self, frame: Frame) -> None:
        """Handle a pong. The last keep-alive ping may wait behind a minute of audio, so it counts
        as unanswered only while the client reads nothing.
        """
        if self._pongs_due:
            self._pongs_due -= 1
        else:
            self._count_control_frame()
        payload = bytes(frame.data)
        if self.on_pong is not None and len(payload) == PAYLOAD_BYTES:
            if self.on_pong(payload):
                self._has_read = True
                if self.keepalive_payload:
                    self._set_timer("keepalive", _PING_S, self.keepalive_timeout)
        elif payload and payload == self.keepalive_payload:
            self._keep_alive()

    def _keep_alive(self) -> None:
        self.keepalive_payload = b""
        self._set_timer("keepalive", _PING_S, self._send_keepalive)

    def _send_keepalive(self) -> None:
        self.keepalive_payload = random.randbytes(_KEEPALIVE_BYTES)
        self.ping(self.keepalive_payload)
        self._set_timer("keepalive", _PING_S, self.keepalive_timeout)

    def keepalive_timeout(self) -> None:
        """Close, after a second look, unless the client has audio to play. It need not read the
        ping before that was played.
        """
        if left_s := self._unplayed_s():
            self._set_timer("keepalive", left_s + _PING_S, self.keepalive_timeout)
        else:
            fail = partial(self._fail, CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
            self._set_timer("keepalive", SECOND_LOOK_S, fail)

    # -- ASGI

    async def _run(self, handshake: Request) -> None:
        offers = ",".join(handshake.headers.get_all("Sec-WebSocket-Protocol"))
        scope = {
            **self._scope,
            "type": "websocket",
            "scheme": {"http": "ws", "https": "wss"}[self._scope["scheme"]],
            "subprotocols": [name.strip() for name in offers.split(",") if name.strip()],
            "extensions": {"websocket.http.response": {}, EXTENSION: self},
        }
        del scope["method"]
        self._received.put_nowait({"type": "websocket.connect"})
        try:
            await self._app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except Exception:
            log.exception("the application failed")
        self._reject(HTTPStatus.INTERNAL_SERVER_ERROR)
        if "end" not in self._timers:  # nothing to wait for
            self.transport.close()

    async def receive(self) -> Message:
        """See ASGI."""
        message = await self._received.get()
        if self._received.empty():
            self._intake.resume_reading()
        return message

    async def send(self, message: Message) -> None:
        """See ASGI. Raises ClientDisconnected."""
        await self._writable.wait()
        if self._is_lost:
            raise ClientDisconnected
        try:
            match message:
                case {"type": "websocket.send", "text": str(text)}:
                    self.conn.send_text(text.encode())
                case {"type": "websocket.send", "bytes": data}:
                    self.conn.send_binary(data)
                case {"type": "websocket.accept"}:
                    self._accept(message)
                case {"type": "websocket.close"} if self._was_open:
                    self._close(message.get("code", 1000), message.get("reason") or "")
                case {"type": "websocket.close"}:
                    self._reject(HTTPStatus.FORBIDDEN)
                case {"type": "websocket.http.response.start", "status": status}:
                    reason = HTTPStatus(status).phrase
                    self._response = Response(status, reason, Headers(), b"")
                    self._add_headers(message["headers"])
                case {"type": "websocket.http.response.body"}:
                    self._refuse(message)
        except InvalidState:
            raise ClientDisconnected from None
        self._flush()

    def _add_headers(self, headers: Any) -> None:
        for name, value in headers:
            self._response.headers[name.decode("latin-1")] = value.decode("latin-1")

    def _accept(self, message: Message) -> None:
        if self.transport.is_closing():
            return
        del self._response.headers["Date"]  # uvicorn has its own
        self._add_headers([*self._server_state.default_headers, *message.get("headers", ())])
        if message.get("subprotocol"):
            self._response.headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
        self._intake.client = current_caller().client
        self.conn.send_response(self._response)
        self._keep_alive()

    def _close(self, code: int, reason: str = "") -> None:
        """Send a close frame, and wait for the client's."""
        self.conn.send_close(code, reason)
        self._disconnect(code, reason)
        self._intake.resume_reading()
        self._set_timer("end", _CLOSE_S, self.transport.close)
        self._flush()

    def _refuse(self, message: Message) -> None:
        """Take a part of the body of a refusal, and send it when it is whole."""
        response = self._response
        response.body = bytes(response.body or b"") + message.get("body", b"")
        if not message.get("more_body"):
            response.headers.setdefault("Connection", "close")
            response.headers.setdefault("Content-Length", str(len(response.body)))
            self._add_headers(self._server_state.default_headers)
            self.conn.send_response(response)

    def _reject(self, status: HTTPStatus) -> None:
        """Refuse a handshake that was not answered yet, without a body."""
        if not (self._was_open or self._is_over):
            self.conn.send_response(self.conn.reject(status, ""))
            self._flush()

"""One WebSocket: reader and writer tasks, and housekeeping.

A dialect only interprets messages. Reading, writing, idle time and closing are the same for all
dialects, and are implemented here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn

from fastapi import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import SpeechOptions, plan_speech
from service.contexts.outbox import Item, Outbox
from service.contexts.socket_output import Renderer, SocketOutput
from service.contexts.speech_context import SpeechContext
from service.errors import ErrorTable, idle_timeout, limit_errors, slow_consumer
from service.runtime import Runtime
from service.transport.ack_tracker import AckTracker
from service.transport.connection_limits import PATIENCE
from service.transport.http_routes import ignored_header
from service.transport.websocket_protocol import EXTENSION, WebSocketProtocol
from streaming.errors import (
    CapacityError,
    ErrorCode,
    RequestError,
    TalkwireError,
    internal_error,
)
from text.surrogates import shield_surrogates

log = logging.getLogger(__name__)

_HOUSEKEEPING_S, _LEAVING_S = 0.5, 0.05
_FLUSH_S = 2.0
#: Seconds between the cut of contexts and the close of their socket.
_TELL_S = 0.5
#: If housekeeping runs this late, the event loop was blocked, and what clients sent meanwhile has
#: not been read yet.
_PAUSE_S = 1.5


class SocketClosing(Exception):
    """Raised by a dialect to close the socket with ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


#: What happens to an idle context: it fails; its text ends, and what waits is spoken; or the socket
#: closes, as if it had been idle itself.
AfterIdle = Literal["fail", "end", "close"]


@dataclass(frozen=True, slots=True)
class Idle:
    """What a dialect does if its client sends nothing for too long.

    Attributes:
        context: What happens to an idle context; None: it has no such limit.
        limit_s: The limit of contexts and of the socket; None: the settings have them.
        code: The close code of an idle socket.
        is_told: Whether an error precedes the close.
    """

    context: AfterIdle | None = None
    limit_s: float | None = None
    code: int = CloseCode.GOING_AWAY
    is_told: bool = True


class Dialect(ABC):
    """One wire protocol on one socket. The ``on_`` methods may raise SocketClosing."""

    idle = Idle()
    #: The close code after a binary message; None: the socket stays open.
    binary_code: int | None = None

    def __init__(self, socket: Socket) -> None:
        self.socket, self.runtime = socket, socket.runtime

    def open(self) -> None:  # noqa: B027
        """Handle the accepted socket. In most protocols the client sends first."""

    @abstractmethod
    def on_text(self, text: str) -> None:
        """Handle a text message."""

    def on_bytes(self, data: bytes) -> None:
        """Refuse a binary message, unless a dialect has any."""
        message = "Send JSON text, not binary messages."
        error = RequestError(ErrorCode.INVALID_MESSAGE, message)
        if self.binary_code is not None:
            self.give_up(error, self.binary_code)
        self.tell(error)

    def on_tick(self, now: float) -> None:
        """Do housekeeping, about twice a second: by default, apply ``idle``."""
        idle, settings = self.idle, self.runtime.settings
        for context in self.socket.contexts if idle.context is not None else ():
            if context.driver.idle_s(now) > (idle.limit_s or settings.context_idle_s):
                self.on_idle(context)
        if self.socket.idle_s(now) > (idle.limit_s or settings.session_idle_s):
            self._close_idle()

    def on_idle(self, context: SpeechContext) -> None:
        """Handle a context that has been idle for too long."""
        match self.idle.context:
            case "fail":
                context.fail(idle_timeout("context"))
            case "end" if not context.has_ended:
                context.end()
            case "close":
                self._close_idle()

    def _close_idle(self) -> NoReturn:
        if self.idle.is_told:
            self.tell(idle_timeout("socket"))
        raise SocketClosing(self.idle.code)

    def on_drain(self, deadline_ms: int) -> None:  # noqa: B027
        """Announce a drain, or that the socket is old: contexts have ``deadline_ms`` to finish."""

    def on_leave(self) -> None:  # noqa: B027
        """End the contexts that still wait for text, since the announced end has come."""

    def is_settled(self, now: float) -> bool:
        """Whether a drain need not wait for any context."""
        return all(context.is_settled(now) for context in self.socket.contexts)

    @abstractmethod
    def render_error(self, error: TalkwireError) -> str | bytes:
        """Return the message for an error of the whole socket."""

    def tell(self, error: TalkwireError) -> None:
        """Send an error of the whole socket, which stays open."""
        self.socket.send(self.render_error(error))

    def give_up(self, error: TalkwireError, code: int | None = None) -> NoReturn:
        """Send an error of the whole socket, and close it with ``code`` or the error's own."""
        self.tell(error)
        raise SocketClosing(self.socket.errors.close_code(error) if code is None else code)

    def close(self) -> None:  # noqa: B027
        """Clean up at the end of the socket, before its contexts are cancelled."""


#: A context's handle has 16 bits in the native protocol.
_HANDLES = 1 << 16


class Socket:
    """Serves one WebSocket, once it is accepted, until its end."""

    def __init__(self, websocket: WebSocket, runtime: Runtime, errors: ErrorTable) -> None:
        self._websocket = websocket
        self.runtime = runtime
        #: The dialect's errors, and its name in logs and metrics.
        self.errors = errors
        #: The tasks of the socket and of its contexts.
        self._tasks = asyncio.TaskGroup()
        #: The connection below ASGI; None in tests without one.
        self._protocol: WebSocketProtocol | None = websocket.scope.get("extensions", {}).get(
            EXTENSION
        )
        #: What the client has read.
        self._acks = AckTracker(self._protocol)
        if self._protocol is not None:
            self._protocol.unplayed_s = self._unplayed_s
        self._outbox = Outbox(runtime.settings.max_outbox_bytes)
        #: Since when the writer has waited for the connection.
        self._writing_since: float | None = None
        #: The close code.
        self._code: int = CloseCode.NORMAL_CLOSURE
        #: Our bug or the client's slowness, which ends the socket.
        self._fault: TalkwireError | None = None
        #: Limits of the client's mistakes and of lines in the log.
        self._budget = limit_errors()
        self._opened_at = time.monotonic()
        #: When the socket closes after the announcement of its end.
        self._leave_at = math.inf
        #: Whether the socket's end has been announced.
        self.is_leaving = False
        #: When housekeeping ran last.
        self._looked_at = self._opened_at
        #: Identifies the socket in the logs.
        self.session_id = uuid.uuid4().hex
        #: Monotonic time of the last message or the last context's end.
        self.heard_at = self._opened_at
        #: By handle, contexts that are open or have more to send.
        self._contexts: dict[int, SpeechContext] = {}
        #: The handles of contexts, before they wrap.
        self._numbers = itertools.count()
        #: Done when the socket has ended, apart from its last messages.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- for the dialect

    def send(self, message: str | bytes) -> None:
        """Queue a message."""
        self._outbox.put(Item(message))

    def drop_audio(self, context_id: str | None = None) -> None:
        """Remove the unwritten audio of all contexts, or of all with this id: those that are over
        may have some, since a slow client has not been sent all of it yet.
        """
        self._outbox.drop_audio(context_id=context_id)

    @property
    def contexts(self) -> list[SpeechContext]:
        """The contexts that are open or have more to send."""
        return list(self._contexts.values())

    def idle_s(self, now: float) -> float:
        """Return the seconds without a context and without a message of the client."""
        return 0.0 if self._contexts else now - self.heard_at

    def _new_handle(self) -> int:
        while (handle := next(self._numbers) % _HANDLES) in self._contexts:
            pass
        return handle

    def speak(
        self,
        options: SpeechOptions,
        renderer: Renderer,
        closed: Callable[[], None],
        context_id: str | None = None,
    ) -> SpeechContext:
        """Open a context. Raises RequestError, CapacityError, without changing anything.

        Args:
            options: What the client wants.
            renderer: Renders the context's outputs.
            closed: Called after the last output.
            context_id: The id by which ``drop_audio`` finds the context's audio after its end.
        """
        self.runtime.require_slot()
        handle = self._new_handle()
        request_id = f"{self.session_id}-{handle}"
        plan = plan_speech(self.runtime, self.errors.dialect, request_id, options)
        lease = self.runtime.admission.acquire(current_caller(), plan.options.format.speed)
        renderer.opened(handle, request_id)
        rate, is_whole = plan.encoder.sample_rate, options.mode == "whole"
        output = SocketOutput(
            self._outbox,
            handle,
            renderer,
            rate,
            is_whole=is_whole,
            is_buffered=options.buffered,
            context_id=context_id,
        )

        def over() -> None:
            del self._contexts[handle]
            self._acks.forget(handle)
            self.heard_at = time.monotonic()
            closed()

        context = SpeechContext(self.runtime, self._tasks, plan, lease, output, over)
        self._contexts[handle] = context
        if not options.buffered:  # writes of buffered audio say nothing of playback
            self._acks.follow(handle, context.on_read)
        if self.is_leaving:
            context.lift_lead()
        return context

    def finish(self, code: int) -> None:
        """Close the socket after all queued messages, unless it is closing already."""
        if not self._over.done():
            self._code = code
            self._outbox.close()

    # -- serving

    async def run(self, dialect: Dialect) -> None:
        """Serve the socket until its end."""
        async with self._tasks as tasks:
            dialect.open()
            writer = tasks.create_task(self._write())
            others: list[asyncio.Task[Any]] = [
                tasks.create_task(self._read(dialect)),
                tasks.create_task(self._outbox.overflowed.wait()),
            ]
            wait_s = 0.0 if self.runtime.lifecycle.draining.is_set() else _HOUSEKEEPING_S
            look = partial(copy_context().run, partial(self._look, dialect))
            leave = self.runtime.timers.join(look, wait_s)
            ends = {writer, *others, self._over}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._end(self._code)
                leave()
                dialect.close()
                last_words = self._last_words(dialect)  # they may change the code
                for context in self.contexts:
                    context.close(is_answered=self._code == CloseCode.NORMAL_CLOSURE)
                for task in others:
                    task.cancel()
                self._outbox.close(last_words)
                await asyncio.wait({writer}, timeout=_FLUSH_S)
                writer.cancel()
                await self._close()

    async def _read(self, dialect: Dialect) -> None:
        """Read messages. Most come directly from the protocol, the others from ASGI's queue."""
        if self._protocol is not None:
            # its variables: the caller, the budget of errors, and the handshake's trace headers
            take = partial(copy_context().run, partial(self._take, dialect))
            self._protocol.on_message = take
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                text = message.get("text")
                data = message["bytes"] if text is None else text
                self._take(dialect, data)
                if self._over.done():
                    return
        except Exception as bug:
            self._fault = internal_error(bug)
        finally:
            if self._protocol is not None:
                self._protocol.on_message = None

    def _take(self, dialect: Dialect, data: str | bytes) -> None:
        """Pass a message to the dialect, unless the socket is over."""
        if self._over.done():
            return
        self.heard_at = time.monotonic()
        with self._serving():
            if isinstance(data, str):
                dialect.on_text(shield_surrogates(data))
            else:
                dialect.on_bytes(data)
        if self._budget.is_spent:
            self._end(CloseCode.POLICY_VIOLATION)

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        """End the socket if the dialect asks or fails."""
        try:
            yield
        except SocketClosing as closing:
            self._end(closing.code)
        except Exception as bug:
            self._fault = internal_error(bug)
            self._end(CloseCode.INTERNAL_ERROR)

    def _end(self, code: int) -> None:
        """End the socket with ``code``, unless it has ended."""
        if not self._over.done():
            self._code = code
            self._over.set_result(None)

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            while (item := await self._outbox.get()) is not None:
                self._writing_since = time.monotonic()
                if isinstance(item.data, str):
                    await self._websocket.send_text(item.data)
                else:
                    await self._websocket.send_bytes(item.data)
                self._writing_since = None
                if item.on_written is not None:
                    item.on_written()
                more, now = not self._outbox.is_empty, time.monotonic()
                size, audio_s = len(item.data), item.audio_s
                self._acks.on_written(
                    item.handle, item.samples, size, now, more=more, audio_s=audio_s
                )

    def _look(self, dialect: Dialect, now: float) -> float:
        """See TimerWheel. After the socket's end, its state is left unchanged."""
        if not self._over.done():
            with self._serving():
                return self._keep(dialect, now)
        return _HOUSEKEEPING_S

    def _keep(self, dialect: Dialect, now: float) -> float:
        """Do housekeeping: check for a slow reader, idle contexts, a revoked key, the socket's age
        and a drain. The last two are announced to the client, and wait until its contexts are
        settled and it has read all messages, or for ``drain_s``; contexts then get an error. After
        a drain that was ended there is no such deadline. Returns the seconds until the next check.
        """
        settings, runtime = self.runtime.settings, self.runtime
        if now - self._looked_at > _PAUSE_S:
            self._writing_since = None if self._writing_since is None else now
            self._acks.restart_wait(now)
            self.heard_at = now
            for context in self.contexts:
                context.touch(now)
        self._looked_at = now
        # The time without progress in the client's reading, or in writing. One that reads as fast
        # as it plays makes room in the system's buffers in large steps, and answers pings between.
        stuck_s, writing_s = self._acks.stuck_s(now), 0.0
        if self._writing_since is not None:
            writing_s = now - max(self._writing_since, self._acks.read_at)
        idle_s = max(writing_s, stuck_s)
        if idle_s - self._played_s(now - idle_s, now) > settings.slow_consumer_s:
            self._fault = slow_consumer()
        is_old = now - self._opened_at >= (settings.max_session_s or math.inf)
        if not (is_old or runtime.lifecycle.draining.is_set()):
            self._leave_at = math.inf
        elif self._leave_at == math.inf:
            dialect.on_drain(round(1000 * settings.drain_s))
            self._leave_at, self.is_leaving = now + settings.drain_s + _TELL_S, True
            for context in self.contexts:
                context.lift_lead()
        is_written = self._outbox.is_empty and self._writing_since is None
        is_read = is_written and not self._acks.is_waiting
        is_settled = self.is_leaving and is_read and dialect.is_settled(now)
        if now >= self._leave_at - _TELL_S and not is_settled:
            self._cut()
        if now >= self._leave_at or is_settled:
            dialect.on_leave()
            raise SocketClosing(CloseCode.GOING_AWAY)
        if self._fault is not None or not self._is_welcome:
            self._end(self._code)
        else:
            dialect.on_tick(now)
        return _LEAVING_S if self.is_leaving else _HOUSEKEEPING_S

    def _played_s(self, since: float, now: float) -> float:
        """Return for how many seconds, from ``since`` on, the client need not read, as it has read
        audio to play.
        """
        settings = self.runtime.settings
        if self.is_leaving or self.runtime.lifecycle.is_draining:
            return 0.0
        most_s = min((PATIENCE - 1) * settings.slow_consumer_s, settings.drain_s)
        return min(max(0.0, self._acks.played_at(now) - since), most_s)

    def _unplayed_s(self) -> float:
        """Return the same from now on, for the connection."""
        now = time.monotonic()
        return self._played_s(now, now)

    @property
    def _is_welcome(self) -> bool:
        """Whether the caller's key still allows the socket."""
        return self.runtime.authority.is_welcome(current_caller(), Scope.SPEAK)

    def _cut(self) -> None:
        """Fail contexts that are still open at the deadline, so that the client knows why."""
        message = "The context was not done before its socket had to close."
        for context in self.contexts:
            if not context.driver.is_closed:
                self.runtime.metrics.cut_by_drain.inc()
                context.fail(CapacityError(ErrorCode.DRAINING, message))

    def _reason(self) -> TalkwireError | None:
        """Return the server's reason to end the socket, if it has one."""
        if self._fault is not None:
            return self._fault
        if self._outbox.overflowed.is_set():
            return slow_consumer()
        if not self._is_welcome:
            return RequestError(ErrorCode.UNAUTHORIZED, "The API key is not valid any more.")
        if self._budget.is_spent:
            message = "Too many messages on this socket were refused."
            return CapacityError(ErrorCode.RATE_LIMITED, message)
        return None

    def _last_words(self, dialect: Dialect) -> Item | None:
        """Return the last message, if the server has a reason to end the socket."""
        error = self._fault = self._reason()
        if error is None:
            return None
        is_bug = error.code is ErrorCode.INTERNAL
        self._code = CloseCode.INTERNAL_ERROR if is_bug else CloseCode.POLICY_VIOLATION
        try:
            return Item(dialect.render_error(error))
        except Exception:  # after a bug, the dialect may be unable to
            log.exception("connection broke")
            return None

    async def _close(self) -> None:
        if self._budget.unlogged:
            log.info("client errors were not logged", extra={"count": self._budget.unlogged})
        code, conn = self._code, None if self._protocol is None else self._protocol.conn
        if conn is not None and conn.close_sent is not None and not conn.close_rcvd_then_sent:
            code = conn.close_sent.code  # the connection failed
        self.runtime.metrics.closes.labels(str(int(code))).inc()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            await asyncio.wait_for(self._websocket.close(self._code), _FLUSH_S)
        # A closed transport waits until the client has read everything, and some clients never do.
        is_slow = self._fault is not None and self._fault.code is ErrorCode.SLOW_CONSUMER
        timeout_s = _FLUSH_S if is_slow else self.runtime.settings.slow_consumer_s
        if self._protocol is not None:
            self._protocol.abort_in(timeout_s)


async def serve_socket(
    websocket: WebSocket,
    runtime: Runtime,
    make: Callable[[Socket], Dialect],
    errors: ErrorTable,
    subprotocol: str | None = None,
    ignored: Iterable[str] = (),
) -> None:
    """Serve one WebSocket until it closes, or refuse its handshake, for example if ``make`` raises
    TalkwireError. A header names the ``ignored`` fields.
    """
    caller = current_caller()
    try:
        if not runtime.authority.is_welcome(caller, Scope.SPEAK):
            raise RequestError(ErrorCode.UNAUTHORIZED, "An API key is needed.")
        if runtime.lifecycle.connections >= runtime.lifecycle.max_connections:
            raise CapacityError(ErrorCode.OVERLOADED, "The server has no connection to spare.")
        runtime.lifecycle.require_ready()
        runtime.accounts.require_connection(caller)
        socket = Socket(websocket, runtime, errors)
        dialect = make(socket)
    except TalkwireError as error:
        await websocket.send_denial_response(runtime.errors.refusal(error, errors))
        return
    with runtime.lifecycle.connection(), runtime.accounts.connection(caller):
        headers = ignored_header(ignored).items()
        await websocket.accept(
            subprotocol, [(name.encode(), value.encode()) for name, value in headers]
        )
        runtime.metrics.opened.inc()
        await socket.run(dialect)

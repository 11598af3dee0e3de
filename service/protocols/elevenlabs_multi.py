"""ElevenLabs' multi-stream-input: several contexts on one socket."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable

from service.outbox import Item, Outbox
from service.protocols.elevenlabs_context import StreamContext
from service.protocols.elevenlabs_errors import close_code, error_message
from service.protocols.elevenlabs_messages import (
    ClientMessage,
    StreamWording,
    final_message,
    parse_message,
)
from service.protocols.elevenlabs_request import StreamOptions
from service.runtime import Runtime
from service.socket import SocketClosing
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

#: Contexts that take text, and all with those that are still being spoken.
MAX_OPEN, MAX_ALL = 5, 10
_DEFAULT_ID = "default"
#: After these a context goes on.
_HARMLESS = (ErrorCode.TEXT_TOO_LONG, ErrorCode.CONTEXT_CLOSED)


class MultiStreamDialect:
    """See service.socket.Dialect. ``finish`` closes the socket once all was written.

    An error of one context is told with its id and ends that context alone; what is no message
    at all closes the socket.
    """

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        options: StreamOptions,
        finish: Callable[[], None],
    ) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._options, self._finish = options, finish
        self._session_id = uuid.uuid4().hex
        self._contexts: dict[str, StreamContext] = {}
        self._handles = itertools.count()
        self._heard_at = time.monotonic()
        self._is_closing = False

    def open(self) -> None:
        """Nothing is said before the client does."""

    def on_text(self, text: str) -> None:
        """Carry out one message."""
        self._heard_at = time.monotonic()
        if self._is_closing:
            return
        try:
            message = parse_message(text)
        except RequestError as error:
            self._give_up(error)
        self._carry_out(message)

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        self._give_up(RequestError(ErrorCode.INVALID_MESSAGE, "Clients send JSON text."))

    def _carry_out(self, message: ClientMessage) -> None:
        context_id = message.context_id or _DEFAULT_ID
        context = self._contexts.get(context_id)
        try:
            if message.close_socket:
                self._close_socket()
            elif message.close_context:
                if context is not None:
                    context.close()
            elif context is not None:
                context.take(message.text, flush=bool(message.flush))
            elif message.text:
                self._open(context_id, message)
        except TalkwireError as error:
            self._tell(error, context_id)
            if (at_fault := self._contexts.get(context_id)) is None:  # it could not be opened
                self._outbox.put(Item(final_message(context_id)))
            elif error.code not in _HARMLESS:
                at_fault.speech.cancel()

    def _open(self, context_id: str, message: ClientMessage) -> None:
        taking = sum(not context.is_draining for context in self._contexts.values())
        if taking >= MAX_OPEN or len(self._contexts) >= MAX_ALL:
            raise RequestError(
                ErrorCode.TOO_MANY_CONTEXTS, f"A socket may hold {MAX_OPEN} open contexts."
            )
        handle = next(self._handles)
        context = StreamContext(
            self._runtime,
            self._outbox,
            self._tasks,
            self._options,
            message,
            handle,
            f"{self._session_id}-{handle}",
            lambda aligner: StreamWording(context_id, aligner, sync=self._options.sync_alignment),
            lambda: self._on_closed(context_id),
        )
        self._contexts[context_id] = context
        context.take(message.text, flush=bool(message.flush))

    def _on_closed(self, context_id: str) -> None:
        del self._contexts[context_id]
        self._heard_at = time.monotonic()
        if self._is_closing and not self._contexts:
            self._finish()

    def _close_socket(self) -> None:
        """What was flushed is spoken to its end; then the socket closes."""
        self._is_closing = True
        for context in list(self._contexts.values()):
            if not context.is_draining:
                context.close()
        if not self._contexts:
            self._finish()

    def on_tick(self, now: float) -> None:
        """End what the client has left alone for too long."""
        timeout_s = self._options.inactivity_s
        for context in list(self._contexts.values()):
            if context.speech.idle_s(now) > timeout_s:
                context.end()
        if not self._contexts and now - self._heard_at > timeout_s:
            self._give_up(
                CapacityError(ErrorCode.IDLE_TIMEOUT, "The socket was idle for too long.")
            )

    def on_drain(self, deadline_ms: int) -> None:
        """There are no words for it; new contexts are refused."""

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return all(context.speech.is_settled(now) for context in self._contexts.values())

    def word(self, error: TalkwireError, context_id: str | None = None) -> str:
        """An error message; without ``context_id`` it is about the socket."""
        self._runtime.on_error(error.code)
        return error_message(error, context_id)

    def close(self) -> None:
        """Cancel every context."""
        for context in list(self._contexts.values()):
            context.speech.cancel()

    def _tell(self, error: TalkwireError, context_id: str | None = None) -> None:
        self._outbox.put(Item(self.word(error, context_id)))

    def _give_up(self, error: TalkwireError) -> None:
        self._tell(error)
        raise SocketClosing(close_code(error))

"""ElevenLabs' stream-input: one context on a socket, which closes when it has been spoken."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from service.outbox import Item, Outbox
from service.protocols.elevenlabs_alignment import Aligner
from service.protocols.elevenlabs_context import StreamContext
from service.protocols.elevenlabs_errors import close_code, error_message
from service.protocols.elevenlabs_messages import (
    ClientMessage,
    SingleWording,
    final_message,
    parse_message,
)
from service.protocols.elevenlabs_request import StreamOptions
from service.runtime import Runtime
from service.socket import NORMAL, SocketClosing
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError


class SingleStreamDialect:
    """See service.socket.Dialect. ``finish`` closes the socket, with a code, once all was written.

    An empty text ends the context here, as it does there; every error ends the socket.
    """

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        options: StreamOptions,
        finish: Callable[[int], None],
    ) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._options, self._finish = options, finish
        self._context: StreamContext | None = None
        self._wording: SingleWording | None = None
        self._is_ended = False
        self._heard_at = time.monotonic()

    def open(self) -> None:
        """Nothing is said before the client does."""

    def on_text(self, text: str) -> None:
        """Carry out one message; none has a meaning after the end."""
        self._heard_at = time.monotonic()
        if self._is_ended:
            return
        try:
            message = parse_message(text)
            if message.text == "":
                self._end()
            elif self._context is None:
                self._open(message)
            else:
                self._context.take(message.text, flush=bool(message.flush))
        except TalkwireError as error:
            self._give_up(error)

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        self._give_up(RequestError(ErrorCode.INVALID_MESSAGE, "Clients send JSON text."))

    def _open(self, message: ClientMessage) -> None:
        def wording(aligner: Aligner) -> SingleWording:
            self._wording = SingleWording(aligner, sync=self._options.sync_alignment)
            return self._wording

        self._context = StreamContext(
            self._runtime,
            self._outbox,
            self._tasks,
            self._options,
            message,
            0,
            uuid.uuid4().hex,
            wording,
            self._on_closed,
        )
        self._context.take(message.text, flush=bool(message.flush))

    def _end(self) -> None:
        self._is_ended = True
        if self._context is not None:
            self._context.end()
        else:
            self._outbox.put(Item(final_message(None)))
            self._finish(NORMAL)

    def _on_closed(self) -> None:
        self._is_ended = True
        failure = self._wording.failure if self._wording is not None else None
        self._finish(NORMAL if failure is None else close_code(failure))

    def on_tick(self, now: float) -> None:
        """Close a socket that its client has left alone for too long."""
        context = self._context
        idle_s = now - self._heard_at if context is None else context.speech.idle_s(now)
        if not self._is_ended and idle_s > self._options.inactivity_s:
            self._give_up(
                CapacityError(ErrorCode.IDLE_TIMEOUT, "The socket was idle for too long.")
            )

    def on_drain(self, deadline_ms: int) -> None:
        """There are no words for it."""

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return self._context is None or self._context.speech.is_settled(now)

    def word(self, error: TalkwireError) -> str:
        """An error message."""
        self._runtime.on_error(error.code)
        return error_message(error)

    def close(self) -> None:
        """Cancel the context."""
        if self._context is not None:
            self._context.speech.cancel()

    def _give_up(self, error: TalkwireError) -> None:
        self._is_ended = True
        self._outbox.put(Item(self.word(error)))
        raise SocketClosing(close_code(error))

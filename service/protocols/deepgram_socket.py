"""Deepgram's ``WS /v1/speak``: one stream of text and one of audio, in turns.

A turn is one context, from its first text until all that was flushed has been sent; between
turns the socket holds no place. What follows a ``Flush`` before it is ``Flushed`` belongs to
the same turn. ``Clear`` and ``Close`` abort: not a sample follows ``Cleared``.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from service import __version__
from service.binary_context import BinaryContext, BinaryPlan
from service.http_speech import count_error
from service.outbox import Item, Outbox
from service.protocols.deepgram_errors import close_code, error_message, warning_message
from service.protocols.deepgram_request import NAME, SpeakOptions
from service.protocols.deepgram_text import joined
from service.runtime import Runtime
from service.socket import GOING_AWAY, NORMAL, SocketClosing
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

_BINARY_REFUSED = 1003


class SpeakDialect:
    """See service.socket.Dialect. ``finish`` closes the socket after what has been said."""

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        options: SpeakOptions,
        finish: Callable[[int], None],
    ) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._options, self._finish = options, finish
        self._request_id = str(uuid.uuid4())
        self._turn: BinaryContext | None = None
        self._turns = self._sequence = self._flushes = 0
        self._tail = ""
        self._has_unflushed = False
        self._heard_at = time.monotonic()

    # -- the socket

    def open(self) -> None:
        """Say who speaks."""
        self._say(
            {
                "type": "Metadata",
                "request_id": self._request_id,
                "model_name": self._options.model,
                "model_version": __version__,
                "model_uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, self._options.voice)),
            }
        )

    def on_text(self, text: str) -> None:
        """A message came. One that is none closes the socket, as Deepgram does."""
        self._heard_at = time.monotonic()
        try:
            self._dispatch(text)
        except TalkwireError as error:
            self._outbox.put(Item(self.word(error)))
            raise SocketClosing(close_code(error)) from error

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        wrong = RequestError(ErrorCode.INVALID_MESSAGE, "Send JSON text, not binary messages.")
        self._outbox.put(Item(self.word(wrong)))
        raise SocketClosing(_BINARY_REFUSED)

    def on_tick(self, now: float) -> None:
        """Close what has been idle for too long."""
        settings = self._runtime.settings
        if self._turn is not None and self._turn.idle_s(now) > settings.context_idle_s:
            self._clear()
            self._warn(
                CapacityError(
                    ErrorCode.IDLE_TIMEOUT, "Text waited too long for a Flush and was dropped."
                )
            )
        if self._turn is None and now - self._heard_at > settings.session_idle_s:
            idle = CapacityError(ErrorCode.IDLE_TIMEOUT, "The socket was idle for too long.")
            self._outbox.put(Item(self.word(idle)))
            raise SocketClosing(GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        """Tell the client to go elsewhere."""
        self._warn(CapacityError(ErrorCode.DRAINING, "The server is shutting down."))

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return self._turn is None or self._turn.is_settled(now)

    def word(self, error: TalkwireError) -> str:
        """An ``Error`` message."""
        count_error(self._runtime, error, self._request_id)
        return error_message(error, self._request_id)

    def close(self) -> None:
        """Nobody listens any more."""
        if self._turn is not None:
            self._turn.cancel()

    # -- messages

    def _dispatch(self, text: str) -> None:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(ErrorCode.INVALID_JSON, "The message is not JSON.") from error
        kind = message.get("type") if isinstance(message, dict) else None
        match kind:
            case "Speak":
                self._speak(message.get("text"))
            case "Flush":
                self._flush()
            case "Clear":
                self._clear()
                self._count("Cleared")
            case "Close":
                raise SocketClosing(NORMAL)
            case _:
                raise RequestError(
                    ErrorCode.UNKNOWN_MESSAGE,
                    "The messages are Speak, Flush, Clear and Close.",
                    param="type",
                )

    def _speak(self, text: object) -> None:
        if not isinstance(text, str):
            raise RequestError(ErrorCode.INVALID_MESSAGE, "Speak has a text.", param="text")
        if not text or (self._turn is None and not text.strip()):
            return
        turn = self._turn or self._begin()
        try:
            text, self._tail = joined(self._tail, text)
            turn.append(text)
            self._has_unflushed |= bool(text.strip())  # a line break is nothing to wait for
        except RequestError as error:
            if error.code is not ErrorCode.TEXT_TOO_LONG:
                raise
            self._warn(error)  # it was not added; the turn goes on without it

    def _begin(self) -> BinaryContext:
        runtime, number = self._runtime, self._turns
        request_id = f"{self._request_id}-{number}"
        plan = BinaryPlan(
            NAME,
            number,
            request_id,
            self._options.create(request_id),
            self._options.encoder(runtime.codec.spec.sample_rate),
        )
        self._turn = BinaryContext(
            runtime, self._outbox, self._tasks, plan, self, lambda: self._on_closed(number)
        )
        self._turns, self._tail, self._flushes = number + 1, "", 0
        return self._turn

    def _flush(self) -> None:
        if self._turn is None:
            self._count("Flushed")  # there was nothing to speak
            return
        self._has_unflushed, self._tail = False, ""
        self._flushes += 1
        self._turn.flush(str(self._flushes))

    def _clear(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._has_unflushed = False

    def _on_closed(self, number: int) -> None:
        if number == self._turns - 1:
            self._turn = None
        self._heard_at = time.monotonic()

    # -- what the turn says: see BinaryWording

    def audio(self, data: bytes, samples: int) -> list[str | bytes]:
        """Bare samples."""
        return [data]

    def flushed(self, flush_id: str) -> list[str | bytes]:
        """``Flushed``; after the last one nothing is left of the turn."""
        self._flushes -= 1
        if not self._flushes and not self._has_unflushed:
            asyncio.get_running_loop().call_soon(self._end, self._turn)
        return [self._counted("Flushed")]

    def done(self, error: TalkwireError | None) -> list[str | bytes]:
        """A turn that fails ends the socket: its clients come again."""
        if error is None:
            return []
        asyncio.get_running_loop().call_soon(self._finish, close_code(error))
        return [error_message(error, self._request_id)]

    def _end(self, turn: BinaryContext | None) -> None:
        """Let a turn go that has said everything; the next text begins another."""
        if turn is not None and turn is self._turn and not self._flushes + self._has_unflushed:
            self._turn = None
            turn.end()

    # -- saying

    def _counted(self, kind: str) -> str:
        number, self._sequence = self._sequence, self._sequence + 1
        return json.dumps({"type": kind, "sequence_id": number})

    def _count(self, kind: str) -> None:
        self._outbox.put(Item(self._counted(kind)))

    def _warn(self, error: TalkwireError) -> None:
        count_error(self._runtime, error, self._request_id)
        self._outbox.put(Item(warning_message(error)))

    def _say(self, message: dict[str, Any]) -> None:
        self._outbox.put(Item(json.dumps(message)))

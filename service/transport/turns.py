"""Turns: the texts of a socket whose protocol has no contexts of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from service.contexts.options import SpeechOptions
from service.contexts.socket_output import Message, Renderer
from service.contexts.speech_context import Output, SpeechContext
from service.transport.websocket import Socket
from streaming.errors import TalkwireError
from streaming.events import Flushed


class Turns(Renderer):
    """Speaks texts by one context per turn, one after another.

    A text opens a turn if there is none. A turn ends when all its text has been flushed and all of
    that has been spoken. ``render`` makes the messages of all turns. ``ended`` is called when a
    turn has ended, so that the next text opens another.
    """

    def __init__(
        self,
        socket: Socket,
        render: Callable[[Output], Sequence[Message]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket, self._render, self._ended = socket, render, ended
        #: The turn's context, if there is a turn.
        self.context: SpeechContext | None = None
        #: Characters of the turn so far.
        self.chars = 0
        self._flushes = 0
        self._has_unflushed = False

    def say(self, text: str, options: SpeechOptions) -> None:
        """Append text to the turn, or open one with ``options``. Raises RequestError,
        CapacityError, BackendError; text that was not accepted keeps no turn open.
        """
        if self.context is None:
            self.context = self._socket.speak(options, self, self._on_closed)
            self.chars, self._flushes, self._has_unflushed = 0, 0, False
        try:
            self.context.append(text)
        except TalkwireError:
            self._end_soon()
            raise
        self.chars += len(text)
        self._has_unflushed |= bool(text.strip())  # whitespace needs no flush

    def flush(self) -> None:
        """Speak all text of the turn now."""
        assert self.context is not None
        self._has_unflushed = False
        self._flushes += 1
        self.context.flush("turn")

    def finish(self) -> None:
        """End the text of the turn, which lasts until it has been spoken."""
        if self.context is not None and not self.context.has_ended:
            self.context.end()

    def cancel(self) -> None:
        """Stop speaking."""
        self._has_unflushed = False
        if self.context is not None:
            self.context.cancel()

    def end(self) -> None:
        """End the turn, whose flushed text has been spoken."""
        context, self.context = self.context, None
        if context is not None:
            context.end()
            self._ended()

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        if isinstance(output, Flushed):
            self._flushes -= 1
            self._end_soon()
        return self._render(output)

    def _end_soon(self) -> None:
        """End the turn after the current callback, unless text is waiting or being spoken then."""
        asyncio.get_running_loop().call_soon(self._end_if_spoken, self.context)

    def _end_if_spoken(self, context: SpeechContext | None) -> None:
        is_open = context is not None and context is self.context and not context.has_ended
        if is_open and not (self._flushes or self._has_unflushed):
            self.end()

    def _on_closed(self) -> None:
        if self.context is not None and self.context not in self._socket.contexts:
            self.context = None  # unless an earlier one has closed
            asyncio.get_running_loop().call_soon(self._ended)

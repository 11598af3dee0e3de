"""ElevenLabs' sockets: ``stream-input`` (one context) and ``multi-stream-input`` (several)."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from websockets.frames import CloseCode

from service.dialects.elevenlabs.messages import (
    TABLE,
    ClientMessage,
    StreamRenderer,
    error_message,
    final_message,
)
from service.dialects.elevenlabs.pronunciations import located
from service.dialects.elevenlabs.request import NAME, StreamOptions, at_speed
from service.errors import parse_message, too_many_contexts
from service.transport.websocket import AfterIdle, Dialect, Idle, Socket
from streaming.errors import ErrorCode, RequestError, TalkwireError

#: The most seconds between a turn's last text or flush and the ``close_context`` that ends it. The
#: official clients send both at once.
_END_OF_TURN_S = 1.0
#: For so long a turn speaks on beside a later one of a client that does not tell interruptions. By
#: then speech that is queued is complete, as a rule: 20 s at its own pace, and the lead before.
_PASSED_S = 20.0


class StreamContext:
    """A context, opened by the message ``first``. Raises RequestError, CapacityError."""

    def __init__(
        self,
        socket: Socket,
        options: StreamOptions,
        first: ClientMessage,
        renderer: StreamRenderer,
        closed: Callable[[], None],
    ) -> None:
        pronunciations = located(first.pronunciation_dictionary_locators, socket.runtime)
        format_ = at_speed(options.speech.format, first.voice_settings)
        self._renderer, self._aligner = renderer, renderer.aligner
        self._auto_mode = options.auto_mode
        self._is_flushed = self._has_text = False
        #: Time of the last text or flush.
        self._said_at = time.monotonic()
        #: Whether the last of them was a flush with an empty text.
        self._has_empty_end = False
        #: When a later context came that may have interrupted it; None: none came.
        self.passed_at: float | None = None
        speech = replace(options.speech, format=format_, pronunciations=pronunciations)
        self.speech = socket.speak(speech, renderer, closed, renderer.context_id)

    def take(self, message: ClientMessage) -> None:
        """Handle text and flush. Empty text keeps the context alive. Raises RequestError."""
        if self.speech.has_ended:
            if message.text and not message.text.isspace():
                closed = "The context was closed; it takes no more text."
                raise RequestError(ErrorCode.CONTEXT_CLOSED, closed)
            return  # all its text is flushed
        self.speech.touch()
        if message.text or message.flush:
            self._said_at = time.monotonic()
            self._has_empty_end = message.text == ""
        if message.text and (self._has_text or not message.text.isspace()):
            self._append(message.text)
        if message.flush:
            self._flush()
            self._is_flushed = True

    def _append(self, text: str) -> None:
        """Append text. In auto mode each message is a phrase that is spoken at once. Clients omit
        the space between phrases, which would join two words.
        """
        if self._auto_mode and not text[-1].isspace():
            text += " "
        self.speech.append(text)
        self._aligner.append(text)
        self._has_text = True
        self._is_flushed &= text.isspace()  # whitespace needs no flush
        if self._auto_mode:
            self._flush()

    def _flush(self) -> None:
        self._aligner.flush()
        self.speech.flush("flush")

    def finish(self) -> None:
        """Speak flushed text to its end. Cancel if there is text that is not flushed."""
        if self._is_flushed:
            self.end()
        else:
            self.speech.cancel()

    def close(self) -> None:
        """End the turn, or interrupt it: by a second close, or by one that comes alone while there
        is something left to speak.
        """
        is_late = time.monotonic() - self._said_at > _END_OF_TURN_S
        if self.speech.has_ended or (is_late and not self.speech.driver.is_idle):
            self.speech.cancel()
        else:
            self.finish()

    @property
    def failure(self) -> TalkwireError | None:
        """The error that ended the context, if any."""
        return self._renderer.failure

    @property
    def ends_as_livekit_does(self) -> bool:
        """Whether the turn was ended by a flush with an empty text, and a close."""
        return self.speech.has_ended and self._has_empty_end

    def end(self) -> None:
        """Speak all text to its end, if that was not asked before."""
        if not self.speech.has_ended:
            self._aligner.flush()
            self.speech.end()


class StreamDialect(Dialect):
    """Common base of both sockets' dialects."""

    binary_code = CloseCode.POLICY_VIOLATION
    after_idle: AfterIdle

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket)
        self._options = options
        self.idle = Idle(self.after_idle, options.inactivity_s, CloseCode.POLICY_VIOLATION)

    def render_error(self, error: TalkwireError, context_id: str | None = None) -> str:
        """Return an error message, about the socket if ``context_id`` is None."""
        self._count(error)
        return error_message(error, context_id)

    def _count(self, error: TalkwireError) -> None:
        self.runtime.errors.count(error, uuid.uuid4().hex, NAME)


class SingleStreamDialect(StreamDialect):
    """``stream-input``: an empty text ends the context, and every error ends the socket."""

    after_idle = "close"

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket, options)
        self._renderer = StreamRenderer(None, sync=options.sync_alignment)
        self._context: StreamContext | None = None
        self._is_ended = False

    def on_text(self, text: str) -> None:
        """Handle a message. After the end, messages are ignored."""
        if self._is_ended:
            return
        try:
            message = parse_message(ClientMessage, text)
            if message.text == "":
                self._end()
                return
            if self._context is None:
                self._context = StreamContext(
                    self.socket, self._options, message, self._renderer, self._on_closed
                )
            self._context.take(message)
        except TalkwireError as error:
            self.give_up(error)

    def _end(self) -> None:
        self._is_ended = True
        if self._context is not None:
            self._context.end()
        else:
            self.socket.send(final_message(None))
            self.socket.finish(CloseCode.NORMAL_CLOSURE)

    def _on_closed(self) -> None:
        self._is_ended = True
        failure = self._renderer.failure
        self.socket.finish(
            CloseCode.NORMAL_CLOSURE if failure is None else TABLE.close_code(failure)
        )

    def on_tick(self, now: float) -> None:
        """Do housekeeping. After the end no message is expected, and the client may still read."""
        if not self._is_ended:
            super().on_tick(now)


#: Maximum numbers of contexts that take text, and of all, including those that only speak.
MAX_OPEN, MAX_ALL = 5, 10
#: Errors for want of a slot or of a place on the socket.
_NO_ROOM = (ErrorCode.TOO_MANY_CONTEXTS, ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED)
#: Errors after which a context continues.
_HARMLESS = (ErrorCode.TEXT_TOO_LONG, ErrorCode.CONTEXT_CLOSED)


class MultiStreamDialect(StreamDialect):
    """``multi-stream-input``: an error of a context has its id, and ends only that context. An
    invalid message closes the socket.

    LiveKit's plugin does not tell that a turn whose text is complete was interrupted: it only opens
    the next context. It also does so while a speech is heard that is not interrupted, for one that
    is queued. Its turns that a later context has *passed* speak on for a while, and are the first
    to give up their slots. Pipecat's service closes an interrupted context again. How a turn is
    ended tells them apart.
    """

    after_idle = "end"

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket, options)
        #: By id, in the order in which they were opened.
        self._contexts: dict[str, StreamContext] = {}
        #: Whether the client does not tell that a turn was interrupted whose text is complete.
        self._tells_no_interruption = False
        self._is_closing = False

    def on_text(self, text: str) -> None:
        """Handle a message. After ``close_socket``, messages are ignored."""
        if self._is_closing:
            return
        try:
            message = parse_message(ClientMessage, text)
        except RequestError as error:
            self.give_up(error)
        context_id = message.context_id or "default"
        context = self._contexts.get(context_id)
        try:
            if message.close_socket:
                self._close_socket()
            elif message.close_context:
                if context is not None:
                    self._close_context(context)
                else:
                    self.socket.drop_audio(context_id)
            elif context is not None:
                context.take(message)
            elif message.text:
                self._open(context_id, message)
        except TalkwireError as error:
            self._report(error, context_id)

    def _close_context(self, context: StreamContext) -> None:
        context.close()
        if context.ends_as_livekit_does and not self._tells_no_interruption:
            self._tells_no_interruption = True
            self._pass_earlier(context)

    def _report(self, error: TalkwireError, context_id: str) -> None:
        """Send an error of a context, which ends unless it can go on."""
        self.socket.send(self.render_error(error, context_id))
        if (at_fault := self._contexts.get(context_id)) is None:  # it could not be opened
            self.socket.send(self._final(context_id))
        elif error.code not in _HARMLESS:
            at_fault.speech.cancel()

    def _final(self, context_id: str) -> str:
        return final_message(context_id)

    def _open(self, context_id: str, message: ClientMessage) -> None:
        if self._tells_no_interruption:
            self._pass_earlier()
        try:
            self._make(context_id, message)
        except TalkwireError as error:
            if error.code not in _NO_ROOM or not self._stop_passed():
                raise
            self._make(context_id, message)
        self._contexts[context_id].take(message)

    def _require_room(self) -> None:
        """Raise RequestError if the socket has its most contexts."""
        taking = sum(not context.speech.has_ended for context in self._contexts.values())
        if taking >= MAX_OPEN:
            raise too_many_contexts(MAX_OPEN, " that take text")
        if len(self._contexts) >= MAX_ALL:
            raise too_many_contexts(MAX_ALL)

    def _make(self, context_id: str, message: ClientMessage) -> None:
        self._require_room()
        renderer = StreamRenderer(context_id, sync=self._options.sync_alignment)
        closed = partial(self._on_closed, context_id)
        context = StreamContext(self.socket, self._options, message, renderer, closed)
        self._contexts[context_id] = context

    def _pass_earlier(self, than: StreamContext | None = None) -> None:
        """Mark the contexts that only speak: all, or those opened before another."""
        now = time.monotonic()
        for context in self._contexts.values():
            if context is than:
                return
            if context.speech.has_ended and context.passed_at is None:
                context.passed_at = now

    def _stop_passed(self, before: float = math.inf) -> bool:
        """Stop the contexts that were passed before a time. Returns whether there were any."""
        found = [
            context
            for context in self._contexts.values()
            if context.passed_at is not None and context.passed_at < before
        ]
        for context in found:
            context.speech.cancel()
        return bool(found)

    def on_tick(self, now: float) -> None:
        """Stop turns that were passed long ago."""
        self._stop_passed(now - _PASSED_S)
        super().on_tick(now)

    def _on_closed(self, context_id: str) -> None:
        del self._contexts[context_id]
        if self._is_closing and not self._contexts:
            self.socket.finish(CloseCode.NORMAL_CLOSURE)

    def _close_socket(self) -> None:
        """Speak flushed text to its end, then close the socket."""
        self._is_closing = True
        for context in list(self._contexts.values()):
            if not context.speech.has_ended:
                context.finish()
        if not self._contexts:
            self.socket.finish(CloseCode.NORMAL_CLOSURE)

"""ElevenLabs' sockets: ``stream-input`` (one context) and ``multi-stream-input`` (several)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NoReturn

from service.contexts.options import FlushEncoder, plan_speech
from service.dialects.elevenlabs.messages import (
    ClientMessage,
    SingleRenderer,
    StreamRenderer,
    close_code,
    error_message,
    final_message,
)
from service.dialects.elevenlabs.request import NAME, StreamOptions, refuse_dictionaries
from service.dialects.errors import count_error, parse_message
from service.transport.websocket import NORMAL, Dialect, Socket, SocketClosing, binary_refused
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

_FLUSH = "flush"


class StreamContext:
    """``first`` is the message that opens it. Raises RequestError, CapacityError."""

    def __init__(
        self,
        socket: Socket,
        options: StreamOptions,
        first: ClientMessage,
        renderer: StreamRenderer,
        closed: Callable[[], None],
    ) -> None:
        runtime = socket.runtime
        runtime.require_slot()
        refuse_dictionaries(first.pronunciation_dictionary_locators)
        settings = first.voice_settings
        speed = settings.speed if settings is not None and settings.speed else 1.0
        handle = socket.new_handle()
        request_id = f"{socket.session_id}-{handle}"
        self._aligner = renderer.aligner
        is_file = options.format.is_file
        plan = plan_speech(
            runtime,
            NAME,
            request_id,
            options.create(request_id, runtime, speed),
            options.format.make_encoder(runtime.codec.spec.sample_rate, speed),
            flush_encoder=(FlushEncoder.EACH_PAUSE if is_file else FlushEncoder.EACH_UTTERANCE),
        )
        self._auto_mode = options.auto_mode
        self._is_flushed = self._has_text = False
        #: No more text will come, and what has come is still being spoken.
        self.is_draining = False
        self.speech = socket.open_context(plan, handle, renderer, closed)

    def take(self, text: str | None, *, flush: bool) -> None:
        """Text, a flush, or both. An empty text only keeps the context alive.

        Raises RequestError.
        """
        if self.is_draining:
            raise RequestError(
                ErrorCode.CONTEXT_CLOSED, "The context was closed; it takes no more text."
            )
        self.speech.touch()
        if text and (self._has_text or not text.isspace()):
            self._append(text)
        if flush:
            self.speech.flush(_FLUSH)
            self._is_flushed = True

    def _append(self, text: str) -> None:
        """In auto mode each message is a phrase, to be spoken at once: whoever sends phrases
        leaves out the space between them, and would hear two words as one.
        """
        if self._auto_mode and not text[-1].isspace():
            text += " "
        self.speech.append(text)
        self._aligner.append(text)
        self._has_text, self._is_flushed = True, False
        if self._auto_mode:
            self.speech.flush(_FLUSH)

    def close(self) -> None:
        """Speak what was flushed to its end, unless it is closed once more; what was not is
        not wanted any more: this is how these clients interrupt.
        """
        if self._is_flushed and not self.is_draining:
            self.end()
        else:
            self.speech.cancel()

    def end(self) -> None:
        """No more text; what there is will be spoken."""
        if not self.is_draining:
            self.is_draining = True
            self.speech.end()


class StreamDialect(Dialect):
    """The part that both sockets share."""

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket)
        self._options = options

    def on_bytes(self, data: bytes) -> None:
        """See Dialect: it closes the socket."""
        self._give_up(binary_refused())

    def render_error(self, error: TalkwireError, context_id: str | None = None) -> str:
        """An error message; without ``context_id`` it is about the socket."""
        count_error(self.runtime, error, uuid.uuid4().hex, NAME)
        return error_message(error, context_id)

    def _give_up_idle(self) -> NoReturn:
        """The client has left the socket alone for too long."""
        message = "The socket was idle for too long."
        self._give_up(CapacityError(ErrorCode.IDLE_TIMEOUT, message))

    def _give_up(self, error: TalkwireError) -> NoReturn:
        """Tell the error and close the socket with its code."""
        self.tell(error)
        raise SocketClosing(close_code(error))


class SingleStreamDialect(StreamDialect):
    """``stream-input``: an empty text ends the context, and every error ends the socket."""

    _context: StreamContext | None = None
    _renderer: SingleRenderer | None = None
    _is_ended = False

    def on_text(self, text: str) -> None:
        """Carry out one message; none has a meaning after the end."""
        if self._is_ended:
            return
        try:
            message = parse_message(ClientMessage, text)
            if message.text == "":
                self._end()
            elif self._context is None:
                self._open(message)
            else:
                self._context.take(message.text, flush=bool(message.flush))
        except TalkwireError as error:
            self._give_up(error)

    def _open(self, message: ClientMessage) -> None:
        self._renderer = SingleRenderer(sync=self._options.sync_alignment)
        self._context = StreamContext(
            self.socket, self._options, message, self._renderer, self._on_closed
        )
        self._context.take(message.text, flush=bool(message.flush))

    def _end(self) -> None:
        self._is_ended = True
        if self._context is not None:
            self._context.end()
        else:
            self.socket.send(final_message(None))
            self.socket.finish(NORMAL)

    def _on_closed(self) -> None:
        self._is_ended = True
        failure = self._renderer.failure if self._renderer is not None else None
        self.socket.finish(NORMAL if failure is None else close_code(failure))

    def on_tick(self, now: float) -> None:
        """Close a socket that its client has left alone for too long."""
        context = self._context
        idle_s = self.socket.idle_s(now) if context is None else context.speech.idle_s(now)
        if not self._is_ended and idle_s > self._options.inactivity_s:
            self._give_up_idle()

    def _give_up(self, error: TalkwireError) -> NoReturn:
        self._is_ended = True
        super()._give_up(error)


#: Contexts that take text, and all with those that are still being spoken.
MAX_OPEN, MAX_ALL = 5, 10
_DEFAULT_ID = "default"
#: After these a context goes on.
_HARMLESS = (ErrorCode.TEXT_TOO_LONG, ErrorCode.CONTEXT_CLOSED)


class MultiStreamDialect(StreamDialect):
    """``multi-stream-input``.

    An error of one context is told with its id and ends that context alone; what is no message
    at all closes the socket.
    """

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket, options)
        self._contexts: dict[str, StreamContext] = {}
        self._is_closing = False

    def on_text(self, text: str) -> None:
        """Carry out one message."""
        if self._is_closing:
            return
        try:
            message = parse_message(ClientMessage, text)
        except RequestError as error:
            self._give_up(error)
        self._carry_out(message)

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
            self.socket.send(self.render_error(error, context_id))
            if (at_fault := self._contexts.get(context_id)) is None:  # it could not be opened
                self.socket.send(final_message(context_id))
            elif error.code not in _HARMLESS:
                at_fault.speech.cancel()

    def _open(self, context_id: str, message: ClientMessage) -> None:
        taking = sum(not context.is_draining for context in self._contexts.values())
        if taking >= MAX_OPEN or len(self._contexts) >= MAX_ALL:
            raise RequestError(
                ErrorCode.TOO_MANY_CONTEXTS, f"A socket may hold {MAX_OPEN} open contexts."
            )
        context = StreamContext(
            self.socket,
            self._options,
            message,
            StreamRenderer(context_id, sync=self._options.sync_alignment),
            lambda: self._on_closed(context_id),
        )
        self._contexts[context_id] = context
        context.take(message.text, flush=bool(message.flush))

    def _on_closed(self, context_id: str) -> None:
        del self._contexts[context_id]
        if self._is_closing and not self._contexts:
            self.socket.finish(NORMAL)

    def _close_socket(self) -> None:
        """Speak what was flushed to its end; then close the socket."""
        self._is_closing = True
        for context in list(self._contexts.values()):
            if not context.is_draining:
                context.close()
        if not self._contexts:
            self.socket.finish(NORMAL)

    def on_tick(self, now: float) -> None:
        """End what the client has left alone for too long."""
        timeout_s = self._options.inactivity_s
        for context in list(self._contexts.values()):
            if context.speech.idle_s(now) > timeout_s:
                context.end()
        if self.socket.idle_s(now) > timeout_s:
            self._give_up_idle()

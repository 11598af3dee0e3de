"""ElevenLabs' HTTP routes and sockets: ``stream-input`` (one context) and ``multi-stream-input``
(several); see docs/reference/dialects.md.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Query, Request, Response, WebSocket
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule, declare
from service.audio.factory import MEDIA_TYPES
from service.audio.pcm import tell_wav_length
from service.auth.keys import Scope
from service.contexts.options import FlushEncoder, plan_speech
from service.dialects.elevenlabs.account import add_account
from service.dialects.elevenlabs.messages import (
    TABLE,
    Aligner,
    CharTimes,
    ClientMessage,
    ElevenLabsErrorBody,
    StreamRenderer,
    error_message,
    final_message,
)
from service.dialects.elevenlabs.request import (
    DEFAULT_FORMAT,
    NAME,
    SpeechBody,
    StreamOptions,
    parse_format,
    refuse_dictionaries,
    speech_create,
    stream_options,
)
from service.dialects.errors import count_error, idle_timeout, parse_message, too_many_contexts
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, HttpSpeech
from service.transport.http_routes import SpeechRoute, documented
from service.transport.websocket import Dialect, Socket, binary_refused, serve_socket
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import Done
from streaming.word_timing import WordTiming


class _StreamContext:
    """A context, opened by the message ``first``. Raises RequestError, CapacityError."""

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
        speed = (first.voice_settings and first.voice_settings.speed) or 1.0
        handle, format_ = socket.new_handle(), options.format
        self._aligner = renderer.aligner
        often = FlushEncoder.EACH_PAUSE if format_.is_file else FlushEncoder.EACH_UTTERANCE
        create, encoder = options.create(runtime, speed), format_.make_encoder(runtime, speed)
        request_id = f"{socket.session_id}-{handle}"
        plan = plan_speech(runtime, NAME, request_id, create, encoder, flush_encoder=often)
        self._auto_mode = options.auto_mode
        self._is_flushed = self._has_text = False
        #: Whether the text has ended and is still being spoken.
        self.is_draining = False
        self.speech = socket.open_context(plan, handle, renderer, closed, renderer.context_id)

    def take(self, message: ClientMessage) -> None:
        """Handle text and flush. Empty text keeps the context alive. Raises RequestError."""
        if self.is_draining:
            if message.text and not message.text.isspace():
                closed = "The context was closed; it takes no more text."
                raise RequestError(ErrorCode.CONTEXT_CLOSED, closed)
            return  # all its text is flushed
        self.speech.touch()
        if message.text and (self._has_text or not message.text.isspace()):
            self._append(message.text)
        if message.flush:
            self.speech.flush("flush")
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
            self.speech.flush("flush")

    def close(self) -> None:
        """Speak flushed text to its end, unless closed a second time. Cancel if there is text that
        is not flushed, since this is how clients interrupt.
        """
        if self._is_flushed and not self.is_draining:
            self.end()
        else:
            self.speech.cancel()

    def end(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self.speech.end()


class _StreamDialect(Dialect):
    """Common base of both sockets' dialects."""

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket)
        self._options = options

    def on_bytes(self, data: bytes) -> None:
        self.give_up(binary_refused(), CloseCode.POLICY_VIOLATION)

    def render_error(self, error: TalkwireError, context_id: str | None = None) -> str:
        """Return an error message, about the socket if ``context_id`` is None."""
        count_error(self.runtime, error, uuid.uuid4().hex, NAME)
        return error_message(error, context_id)


class _SingleStreamDialect(_StreamDialect):
    """``stream-input``: an empty text ends the context, and every error ends the socket."""

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket, options)
        self._renderer = StreamRenderer(None, sync=options.sync_alignment)
        self._context: _StreamContext | None = None
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
                self._context = _StreamContext(
                    self.socket, self._options, message, self._renderer, self._on_closed
                )
            self._context.take(message)
        except TalkwireError as error:
            self.give_up(error, TABLE.close_code(error))

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
        """Close a socket that has been idle for too long."""
        context = self._context
        idle_s = self.socket.idle_s(now) if context is None else context.speech.idle_s(now)
        if not self._is_ended and idle_s > self._options.inactivity_s:
            self.give_up(idle_timeout("socket"), CloseCode.POLICY_VIOLATION)


#: Maximum numbers of contexts that take text, and of all, including those that only speak.
MAX_OPEN, MAX_ALL = 5, 10
#: Errors after which a context continues.
_HARMLESS = (ErrorCode.TEXT_TOO_LONG, ErrorCode.CONTEXT_CLOSED)


class _MultiStreamDialect(_StreamDialect):
    """``multi-stream-input``: an error of a context has its id, and ends only that context. An
    invalid message closes the socket.
    """

    def __init__(self, socket: Socket, options: StreamOptions) -> None:
        super().__init__(socket, options)
        self._contexts: dict[str, _StreamContext] = {}
        self._is_closing = False

    def on_text(self, text: str) -> None:
        if self._is_closing:
            return
        try:
            message = parse_message(ClientMessage, text)
        except RequestError as error:
            self.give_up(error, TABLE.close_code(error))
        context_id = message.context_id or "default"
        context = self._contexts.get(context_id)
        try:
            if message.close_socket:
                self._close_socket()
            elif message.close_context:
                if context is not None:
                    context.close()
                else:
                    self.socket.drop_audio(context_id)
            elif context is not None:
                context.take(message)
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
        if taking >= MAX_OPEN:
            raise too_many_contexts(MAX_OPEN, " that take text")
        if len(self._contexts) >= MAX_ALL:
            raise too_many_contexts(MAX_ALL)
        renderer = StreamRenderer(context_id, sync=self._options.sync_alignment)
        closed = partial(self._on_closed, context_id)
        context = _StreamContext(self.socket, self._options, message, renderer, closed)
        self._contexts[context_id] = context
        context.take(message)

    def _on_closed(self, context_id: str) -> None:
        del self._contexts[context_id]
        if self._is_closing and not self._contexts:
            self.socket.finish(CloseCode.NORMAL_CLOSURE)

    def _close_socket(self) -> None:
        """Speak flushed text to its end, then close the socket."""
        self._is_closing = True
        for context in list(self._contexts.values()):
            if not context.is_draining:
                context.close()
        if not self._contexts:
            self.socket.finish(CloseCode.NORMAL_CLOSURE)

    def on_tick(self, now: float) -> None:
        """End contexts, or close the socket, after too long an idle time."""
        timeout_s = self._options.inactivity_s
        for context in list(self._contexts.values()):
            if context.speech.idle_s(now) > timeout_s:
                context.end()
        if self.socket.idle_s(now) > timeout_s:
            self.give_up(idle_timeout("socket"), CloseCode.POLICY_VIOLATION)


_OPENING = b'{"audio_base64": "'
#: Whole base64 groups with a WAV file's header, whose length is known only at the end.
_HEAD_BYTES = 48


class TimedLines(BodyRenderer):
    """One JSON object per line, with audio and the characters that end in it. Times are from the
    beginning of the decoded audio.
    """

    def __init__(self, aligner: Aligner, *, is_wav: bool = False) -> None:
        super().__init__("application/json")
        self._aligner, self._is_wav = aligner, is_wav
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Take the words of the next audio."""
        self._words += timings

    def audio(self, data: bytes) -> bytes:
        """Render a line."""
        return b"".join((_OPENING, base64.b64encode(data), _closing(self._times()), b"\n"))

    def done(self, done: Done) -> bytes:
        """Render the words whose audio was sent before, and the text after the last of them."""
        times = self._times(is_last=True)
        return b"" if times is None else b"".join((_OPENING, _closing(times), b"\n"))

    def _times(self, *, is_last: bool = False) -> CharTimes | None:
        """Return the characters of the words so far."""
        times, self._words = self._aligner.take(self._words), []
        if is_last and (tail := self._aligner.finish()) is not None:
            times = tail if times is None else times + tail
        return times


def _closing(times: CharTimes | None) -> bytes:
    """Render the characters, under both names, after the audio."""
    alignment = json.dumps(None if times is None else times.in_seconds())
    return f'", "alignment": {alignment}, "normalized_alignment": {alignment}}}'.encode()


class TimedWhole(TimedLines):
    """One JSON object with everything, at the end. The audio is encoded as base64 as it comes,
    since all of it at once would block the event loop. With ``is_wav`` the length is written into
    its header.
    """

    def __init__(self, aligner: Aligner, *, is_wav: bool) -> None:
        super().__init__(aligner, is_wav=is_wav)
        self._size = 0
        self._head, self._rest = bytearray(), bytearray()
        self._encoded: list[bytes] = []

    def audio(self, data: bytes) -> bytes:
        """Take audio; render nothing yet."""
        self._size += len(data)
        missing = _HEAD_BYTES - len(self._head)
        self._head += data[:missing]
        self._rest += data[missing:]
        groups = len(self._rest) - len(self._rest) % 3  # whole groups of base64
        self._encoded.append(base64.b64encode(self._rest[:groups]))
        del self._rest[:groups]
        return b""

    def done(self, done: Done) -> bytes:
        """Render everything."""
        if self._is_wav:
            tell_wav_length(self._head, self._size)
        head, rest = map(base64.b64encode, (self._head, self._rest))
        return b"".join((_OPENING, head, *self._encoded, rest, _closing(self._times(is_last=True))))


#: Query parameters for keys, since browsers cannot set headers of handshakes.
_TOKEN_QUERY = ("single_use_token", "authorization", "xi_api_key")
_SPEECH = "/v1/text-to-speech/{voice_id}"


def elevenlabs_router(runtime: Runtime) -> GuardedRouter:
    """Create all routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="xi_api_key")
    errors = documented(ElevenLabsErrorBody)
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=errors, tags=[NAME])
    of_sockets = declare(replace(rule, query=_TOKEN_QUERY))

    async def serve(websocket: WebSocket, kind: type[_StreamDialect]) -> None:
        query = websocket.query_params

        def dialect(socket: Socket) -> Dialect:
            voice = str(websocket.path_params["voice_id"])
            return kind(socket, stream_options(voice, query, runtime))

        ignored = ["language_code"] if query.get("language_code") else []
        await serve_socket(websocket, runtime, dialect, TABLE, ignored=ignored)

    @router.websocket(_SPEECH + "/multi-stream-input")
    @of_sockets
    async def multi_stream_input(websocket: WebSocket) -> None:
        await serve(websocket, _MultiStreamDialect)

    @router.websocket(_SPEECH + "/stream-input")
    @of_sockets
    async def stream_input(websocket: WebSocket) -> None:
        await serve(websocket, _SingleStreamDialect)

    _add_speech(router, runtime, rule)
    add_account(router, runtime)
    return router


def _add_speech(router: APIRouter, runtime: Runtime, rule: Rule) -> None:
    speaking = declare(replace(rule, speaks=True))
    format_query = Query(DEFAULT_FORMAT, description="`codec_rate_bitrate`.")

    @router.post(_SPEECH, response_class=Response)
    @router.post(_SPEECH + "/stream", response_class=Response)
    @speaking
    async def speech(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a text. The audio is streamed."""
        return spoken(voice_id, body, request, output_format)

    @router.post(_SPEECH + "/stream/with-timestamps", response_class=Response)
    @speaking
    async def timed_stream(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a text as lines of JSON, with times of characters if the model has them."""
        return spoken(voice_id, body, request, output_format, TimedLines)

    @router.post(_SPEECH + "/with-timestamps", response_class=Response)
    @speaking
    async def timed(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a text as one JSON object, with times of characters if the model has them."""
        return spoken(voice_id, body, request, output_format, TimedWhole)

    def spoken(
        voice: str,
        body: SpeechBody,
        request: Request,
        output_format: str,
        timed: type[TimedLines] | None = None,
    ) -> Response:
        """Return the response with the speech. Raises RequestError, CapacityError."""
        format_ = parse_format(output_format)
        runtime.require_ready()
        create = speech_create(body, voice, runtime, timestamps=timed is not None)
        encoder = format_.make_encoder(runtime, create.audio.speed)
        buffered, request_id = timed is TimedWhole, request.state.request_id
        plan = plan_speech(runtime, NAME, request_id, create, encoder, buffered=buffered)
        renderer = BodyRenderer(MEDIA_TYPES[format_.encoding])
        if timed is not None:
            aligner = Aligner(lends=False)
            aligner.append(body.text)
            renderer = timed(aligner, is_wav=format_.encoding == "wav")
        ignored = ["language_code"] if body.language_code else []
        response = HttpSpeech(runtime, plan, body.text, TABLE, renderer, ignored)
        response.headers["request-id"] = request_id
        return response

"""Fish Audio's routes: ``POST /v1/tts`` and ``WS /v1/tts/live`` (docs/reference/dialects.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from fastapi import Request, Response, WebSocket
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule, declare
from service.auth.keys import Scope
from service.contexts.options import SpeechOptions, check_options
from service.contexts.socket_output import Message, Renderer, Revocable
from service.contexts.speech_context import Audio, Output, SpeechContext
from service.dialects.fish.messages import (
    NAME,
    TABLE,
    FishErrorBody,
    Flush,
    Start,
    Stop,
    Text,
    audio_event,
    finish_event,
    parse_event,
)
from service.dialects.fish.request import body_schema, parse_body
from service.errors import idle_timeout
from service.runtime import Runtime
from service.transport.http_response import speak_over_http
from service.transport.http_routes import (
    MSGPACK,
    ClipRoute,
    documented,
    media_type_of,
)
from service.transport.websocket import Dialect, Idle, Socket, serve_socket
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import Done, Warned


class _Turn(Renderer):
    """A text from its ``start`` to its ``finish``. ``ended`` is called with its error, if any."""

    def __init__(
        self, options: SpeechOptions, ended: Callable[[TalkwireError | None], None]
    ) -> None:
        self.options, self._ended = options, ended
        #: Speaks the text, from its first word on.
        self.context: SpeechContext | None = None
        self._warning = ""

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        match output:
            case Audio(packets):
                return [
                    Revocable(audio_event(packet.data, self._take_warning()), packet.samples)
                    for packet in packets
                    if packet.data
                ]
            case Warned(message=message):
                self._warning = f"{self._warning} {message}".lstrip()
            case Done(error=error):
                self._ended(error)
                return [finish_event(error)]
        return []

    def _take_warning(self) -> str:
        warning, self._warning = self._warning, ""
        return warning


class FishDialect(Dialect):
    """See Dialect. One text after another is spoken, each by one context. Errors close the socket,
    since the clients reconnect after one.
    """

    idle = Idle("end")

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self._turn: _Turn | None = None

    def on_text(self, text: str) -> None:
        """Refuse a text message."""
        message = "Send binary messages in MessagePack, not text."
        self.give_up(RequestError(ErrorCode.INVALID_MESSAGE, message), CloseCode.UNSUPPORTED_DATA)

    def on_bytes(self, data: bytes) -> None:
        """Handle an event. An invalid one closes the socket."""
        try:
            self._dispatch(data)
        except TalkwireError as error:
            self.give_up(error)

    def render_error(self, error: TalkwireError) -> bytes:
        """Return a ``finish`` event with an error."""
        self.runtime.errors.count(error, self.socket.session_id, NAME)
        return finish_event(error)

    def _dispatch(self, data: bytes) -> None:
        match parse_event(data):
            case Start(request):
                if self._turn is not None:
                    message = "The last text has not finished: a start comes after its finish."
                    raise RequestError(ErrorCode.CONTEXT_EXISTS, message, param="event")
                options = request.options(self.runtime)
                check_options(self.runtime, options)
                self._turn = _Turn(options, self._on_ended)
                self._say(self._turn, request.text)
            case Text(text):
                self._say(self._open_turn(), text)
            case Flush():
                if (context := self._open_turn().context) is not None:
                    context.flush("turn")
            case Stop():
                if (context := self._open_turn().context) is not None:
                    context.end()
                else:  # nothing to speak
                    self._turn = None
                    self.socket.send(finish_event())

    def _open_turn(self) -> _Turn:
        """Return the turn that takes text. Raises RequestError."""
        if self._turn is None:
            message = "There is no text to continue: the first event of a text is start."
            raise RequestError(ErrorCode.UNKNOWN_CONTEXT, message, param="event")
        context = self._turn.context
        if context is not None and context.has_ended:
            message = "The text has ended; only a start comes after its finish."
            raise RequestError(ErrorCode.CONTEXT_CLOSED, message, param="event")
        return self._turn

    def _say(self, turn: _Turn, text: str) -> None:
        if turn.context is None:
            if not text.strip():
                return
            turn.context = self.socket.speak(turn.options, turn, lambda: None)
        turn.context.append(text)

    def on_idle(self, context: SpeechContext) -> None:
        """End a text whose client sends no more, so that it holds no slot. The client is told by
        its ``finish``.
        """
        if not context.has_ended:
            self.runtime.errors.count(idle_timeout("text"), self.socket.session_id, NAME)
            context.end()

    def _on_ended(self, error: TalkwireError | None) -> None:
        self._turn = None
        if error is not None:
            asyncio.get_running_loop().call_soon(self.socket.finish, TABLE.close_code(error))


def fish_router(runtime: Runtime) -> GuardedRouter:
    """Create all routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE)
    errors = documented(FishErrorBody)
    router = GuardedRouter(rule, route_class=ClipRoute, responses=errors, tags=[NAME])
    schema = body_schema()
    kinds = {kind: {"schema": schema} for kind in ("application/json", "application/msgpack")}
    described = {"requestBody": {"content": kinds, "required": True}}

    @router.post("/v1/tts", response_class=Response, openapi_extra=described)
    @declare(replace(rule, speaks=True))
    async def speak(request: Request) -> Response:
        """Speak a text. The audio is streamed. Clips are bytes in MessagePack, base64 in JSON."""
        kind = media_type_of(request)
        if kind != "application/json" and kind not in MSGPACK:  # a page of any origin can send them
            message = (
                "The body must be JSON or MessagePack, with the header Content-Type: "
                "application/json or application/msgpack."
            )
            raise RequestError(ErrorCode.INVALID_MESSAGE, message)
        body = parse_body(await request.body(), is_packed=kind in MSGPACK)
        options = replace(
            body.options(runtime), format=replace(body.audio_format(), is_chained=False)
        )
        return speak_over_http(request, options, body.text, TABLE)

    @router.websocket("/v1/tts/live")
    async def live(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, FishDialect, TABLE)

    return router

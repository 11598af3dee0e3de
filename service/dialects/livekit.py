"""LiveKit Inference's socket (docs/reference/dialects.md): ``WS /tts``.

Messages are those of its published clients (livekit-agents 1.8.9, ``inference/tts.py``;
@livekit/agents 1.9.0, ``inference/api_protos.ts``).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import WebSocket
from pydantic import BaseModel, Field
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule
from service.audio.filters import FASTEST, SLOWEST
from service.audio.formats import AudioFormat
from service.auth.keys import Scope
from service.contexts.options import (
    SpeechOptions,
    check_options,
    chosen_language,
    served_talker,
)
from service.contexts.socket_output import Message, TextRenderer
from service.contexts.speech_context import SpeechContext
from service.errors import ErrorTable, idle_timeout, parse_message
from service.runtime import Runtime
from service.transport.websocket import Dialect, Idle, Socket, SocketClosing, serve_socket
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.ports import Sampling
from streaming.protocol.field_errors import invalid_field, unknown_choice, unsupported
from streaming.word_timing import WordTiming
from text.markup.vocabulary import manner_of

NAME = "livekit"
_RATE = 24_000


def _body(error: TalkwireError, _: str) -> dict[str, Any]:
    """Return the body of an error, which is our own: LiveKit's clients read the status alone."""
    return {"error": {"code": error.code.value, "message": TABLE.message(error)}}


TABLE = ErrorTable(NAME, _body, fields={"text": "transcript", "speed": "extra.speed"})


class Extra(BaseModel):
    """Options of the vendor that ``model`` names. Others are accepted, without effect."""

    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] | Literal["normal"] | None = None
    speaking_rate: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] | None = None
    #: A factor; for Fish Audio's models, decibels.
    volume: Annotated[float, Field(ge=-20, le=20)] | None = None
    emotion: Annotated[str, Field(max_length=80)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    condition_on_previous_chunks: bool | None = None
    #: Words with their times, as Cartesia's, Inworld's and AssemblyAI's models are asked for them.
    add_timestamps: bool | None = None
    timestamp_type: str | None = None
    word_timestamps: bool | None = None
    add_phoneme_timestamps: bool | None = None


class GenerationConfig(BaseModel):
    """The voice, of the turn that begins with this text."""

    model: str | None = None
    voice: str | None = None
    language: str | None = None


class SessionCreate(GenerationConfig):
    """The first message: what holds for turns that choose nothing else."""

    sample_rate: Annotated[int, Field(ge=1, le=2**31)] = _RATE
    encoding: Literal["pcm_s16le"] = "pcm_s16le"
    extra: Extra = Extra()
    transcript: str = ""


class InputTranscript(BaseModel):
    """A part of a turn's text."""

    transcript: str
    generation_config: GenerationConfig = GenerationConfig()
    extra: Extra | None = None


class SessionFlush(BaseModel):
    """The end of a turn's text."""


class SessionClose(BaseModel):
    """The end of the socket."""


class _Envelope(BaseModel):
    type: str


Event = SessionCreate | InputTranscript | SessionFlush | SessionClose
_EVENTS: dict[str, type[Event]] = {
    "session.create": SessionCreate,
    "input_transcript": InputTranscript,
    "session.flush": SessionFlush,
    "session.close": SessionClose,
}


def parse_event(text: str) -> Event:
    """Parse a client's message. Raises RequestError (``invalid_json``, ``invalid_message``,
    ``unknown_message``).
    """
    name = parse_message(_Envelope, text).type
    if name not in _EVENTS:
        raise unknown_choice("type", name, _EVENTS, ErrorCode.UNKNOWN_MESSAGE)
    return parse_message(_EVENTS[name], text)


def turn_options(runtime: Runtime, session: SessionCreate, text: InputTranscript) -> SpeechOptions:
    """Translate the options of the turn that ``text`` begins. Raises RequestError."""
    config, extra = text.generation_config, text.extra or session.extra
    model = config.model or session.model or ""
    if extra.add_phoneme_timestamps:
        raise unsupported("extra.add_phoneme_timestamps", "This server has no phonemes.")
    if (kind := extra.timestamp_type) not in (None, "WORD", "TIMESTAMP_TYPE_UNSPECIFIED"):
        raise invalid_field("extra.timestamp_type", kind, "WORD", ErrorCode.UNSUPPORTED)
    speed = extra.speaking_rate if extra.speed in (None, "normal") else extra.speed
    deliveries: list[tuple[str, str]] = []
    if extra.emotion:
        deliveries.append((manner_of(extra.emotion)[0], extra.emotion))
    if extra.volume is not None:
        deliveries.append(("volume", _volume(extra.volume, model)))
    wants_words = extra.add_timestamps or extra.word_timestamps or kind == "WORD"
    return SpeechOptions(
        format=AudioFormat("pcm_s16le", session.sample_rate, speed=float(speed or 1)),
        voice=config.voice or session.voice or None,
        language=chosen_language(runtime, {"language": config.language or session.language}),
        sampling=Sampling(extra.temperature, extra.top_p),
        continuity="none" if extra.condition_on_previous_chunks is False else None,
        deliveries=tuple(deliveries),
        timestamps=bool(wants_words) and served_talker(runtime).has_word_timings,
        may_be_silent=True,
    )


def _volume(value: float, model: str) -> str:
    """Return a volume as markup has it. Raises RequestError."""
    if model.startswith("fishaudio"):
        return f"{value:+.2f}db"
    if not 0 <= value <= 2:
        raise invalid_field("extra.volume", value, "at least 0 and at most 2")
    return f"{value:g}"


class TurnRenderer(TextRenderer):
    """Renders the messages of a turn. All have the socket's ``session_id``, without which clients
    drop the audio. ``ended`` is called with the turn's error, if any.
    """

    def __init__(
        self, session_id: str, *, has_spaces: bool, ended: Callable[[TalkwireError | None], None]
    ) -> None:
        self._session_id, self._has_spaces, self._ended = session_id, has_spaces, ended

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """See TextRenderer. Words precede their audio: clients apply them to the next audio."""
        events = []
        if words:
            timed = [
                # clients add the space themselves for Cartesia's models alone
                {
                    "word": word.text if self._has_spaces else word.text + " ",
                    "start": round(word.start_ms / 1000, 3),
                    "end": round(word.end_ms / 1000, 3),
                }
                for word in words
            ]
            events.append(event("output_alignment", self._session_id, words=timed))
        if audio:
            data = base64.b64encode(audio).decode()
            fields = {"audio": data, **self.take_warning()}
            events.append(event("output_audio", self._session_id, **fields))
        return events

    def done(self, error: TalkwireError | None) -> Sequence[Message]:
        """Return the turn's last message."""
        self._ended(error)
        if error is not None:
            return [error_event(error, self._session_id)]
        return [event("done", self._session_id)]


def event(kind: str, session_id: str, **fields: object) -> str:
    """Return a message."""
    return json.dumps({"type": kind, "session_id": session_id, **fields}, separators=(",", ":"))


def error_event(error: TalkwireError, session_id: str) -> str:
    """Return the message for an error, after which the socket closes."""
    return event("error", session_id, message=TABLE.message(error), code=error.code.value)


class LiveKitDialect(Dialect):
    """See Dialect. One turn after another is spoken, each by one context. Errors close the socket,
    since the clients connect again after one; so does an interruption.
    """

    #: An error before the close would be read as one of the next turn.
    idle = Idle("end", is_told=False)
    binary_code = CloseCode.UNSUPPORTED_DATA

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self._session: SessionCreate | None = None
        #: Speaks the turn's text, from its first word on.
        self._turn: SpeechContext | None = None

    def on_text(self, text: str) -> None:
        """Handle a message. An invalid one closes the socket."""
        try:
            self._dispatch(parse_event(text))
        except TalkwireError as error:
            self.give_up(error)

    def render_error(self, error: TalkwireError) -> str:
        """See Dialect."""
        self.runtime.errors.count(error, self.socket.session_id, NAME)
        return error_event(error, self.socket.session_id)

    def _dispatch(self, message: Event) -> None:
        match message:
            case SessionCreate():
                text = InputTranscript(transcript=message.transcript)
                check_options(self.runtime, turn_options(self.runtime, message, text))
                self._session = message
                self.socket.send(event("session.created", self.socket.session_id))
                if message.transcript:
                    self._say(text)
            case InputTranscript():
                self._say(message)
            case SessionFlush():
                if self._turn is None:  # nothing to speak
                    self.socket.send(event("done", self.socket.session_id))
                elif not self._turn.has_ended:
                    self._turn.end()
            case SessionClose():
                self.socket.send(event("session.closed", self.socket.session_id))
                raise SocketClosing(CloseCode.NORMAL_CLOSURE)

    def _say(self, text: InputTranscript) -> None:
        """Add to the turn's text, or begin a turn. Raises RequestError, CapacityError."""
        if self._session is None:
            message = "The first message is session.create."
            raise RequestError(ErrorCode.UNKNOWN_CONTEXT, message, param="type")
        if self._turn is None:
            if not text.transcript.strip():
                return
            model = text.generation_config.model or self._session.model or ""
            renderer = TurnRenderer(
                self.socket.session_id,
                has_spaces=model.startswith("cartesia"),
                ended=self._on_ended,
            )
            options = turn_options(self.runtime, self._session, text)
            self._turn = self.socket.speak(options, renderer, lambda: None)
        if self._turn.has_ended:
            message = "The turn's text was flushed; more text comes after its done."
            raise RequestError(ErrorCode.CONTEXT_CLOSED, message, param="type")
        self._turn.append(text.transcript)

    def on_idle(self, context: SpeechContext) -> None:
        """End a turn whose client sends no more, so that it holds no slot."""
        if not context.has_ended:
            self.runtime.errors.count(idle_timeout("turn"), self.socket.session_id, NAME)
            context.end()

    def _on_ended(self, error: TalkwireError | None) -> None:
        self._turn = None
        if error is not None:
            asyncio.get_running_loop().call_soon(self.socket.finish, TABLE.close_code(error))


def livekit_router(runtime: Runtime) -> GuardedRouter:
    """Create the route of this dialect."""
    router = GuardedRouter(Rule(Scope.SPEAK, TABLE), tags=[NAME])

    @router.websocket("/tts")
    async def inference(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, LiveKitDialect, TABLE)

    return router

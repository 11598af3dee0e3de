"""Deepgram's speech API, version 1 (docs/reference/dialects.md): ``POST`` and ``WS /v1/speak``."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fastapi import Request, Response, WebSocket
from pydantic import BaseModel, Field
from websockets.frames import CloseCode

from service import __version__
from service.access.rules import GuardedRouter, Rule, declare
from service.audio.encoder import AudioEncoder
from service.audio.factory import make_stream_encoder
from service.audio.filters import FASTEST, SLOWEST
from service.auth.authenticator import MAX_TTL_S, answered_subprotocol
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import plan_speech, speech_request
from service.contexts.speech_context import Audio, Message, Output, Revocable, SpeechContext
from service.dialects.errors import ErrorTable, count_error, idle_timeout, parse_json
from service.dialects.voice_aliases import list_voices
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, HttpSpeech
from service.transport.http_routes import SpeechRoute, documented
from service.transport.websocket import Dialect, Socket, SocketClosing, binary_refused, serve_socket
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Done, Flushed
from streaming.protocol import messages as wire
from streaming.protocol.field_errors import invalid_field, missing_field, unknown_field
from streaming.segmenter import CLOSERS, OPENERS, SPACED_MARKS

NAME = "deepgram"
#: Accepted without effect: they concern Deepgram's own accounts.
_IGNORED = ("mip_opt_out", "tag")
_KNOWN = ("model", "encoding", "container", "sample_rate", "bit_rate", "speed", *_IGNORED)
_UNSUPPORTED = ErrorCode.UNSUPPORTED


class _Choice(NamedTuple):
    """A pair of encoding and container: our name, Deepgram's defaults, and the media type."""

    name: str
    sample_rate: int | None
    media_type: str
    bit_rate: int | None = None


#: By encoding and container. Over HTTP, an encoding's first container is its default.
_CHOICES = {
    ("mp3", "none"): _Choice("mp3", 22_050, "audio/mpeg", 48_000),
    ("linear16", "wav"): _Choice("wav", 24_000, "audio/wav"),
    ("linear16", "none"): _Choice("pcm_s16le", 24_000, "audio/l16;rate={rate};channels=1"),
    ("mulaw", "wav"): _Choice("wav_mulaw", 8_000, "audio/wav"),
    ("mulaw", "none"): _Choice("pcm_mulaw", 8_000, "audio/mulaw;rate={rate};channels=1"),
    ("alaw", "wav"): _Choice("wav_alaw", 8_000, "audio/wav"),
    ("alaw", "none"): _Choice("pcm_alaw", 8_000, "audio/alaw;rate={rate};channels=1"),
    ("opus", "ogg"): _Choice("ogg_opus", 48_000, "audio/ogg;codecs=opus"),
    ("flac", "none"): _Choice("flac", None, "audio/flac"),
    ("aac", "none"): _Choice("aac", 22_050, "audio/aac"),
}


class SpeakOptions(NamedTuple):
    """Options of each text. ``model`` is the client's name for the voice."""

    model: str
    create: wire.ContextCreate
    media_type: str
    #: Creates an encoder. Raises RequestError (``unsupported``).
    encoder: Callable[[], AudioEncoder]


def socket_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """Parse a socket's query. Raises RequestError."""
    encoding, container = query.get("encoding", "linear16"), query.get("container", "none")
    if container != "none":
        raise invalid_field("container", container, "none on a socket", _UNSUPPORTED)
    if encoding not in ("linear16", "mulaw", "alaw"):
        raise invalid_field("encoding", encoding, "linear16, mulaw or alaw", _UNSUPPORTED)
    return _options(query, _CHOICES[encoding, "none"], runtime)


def http_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """Parse a request's query. Raises RequestError."""
    encoding = query.get("encoding", "mp3")
    containers = [container for name, container in _CHOICES if name == encoding]
    if not containers:
        names = ", ".join(dict.fromkeys(name for name, _ in _CHOICES))
        raise invalid_field("encoding", encoding, f"one of {names}", _UNSUPPORTED)
    container = query.get("container", containers[0])
    if container not in containers:
        allowed = f"{' or '.join(containers)} for {encoding}"
        raise invalid_field("container", container, allowed, _UNSUPPORTED)
    return _options(query, _CHOICES[encoding, container], runtime, runtime.settings.max_lead_ms)


def _options(
    query: Mapping[str, str], choice: _Choice, runtime: Runtime, max_lead_ms: int | None = None
) -> SpeakOptions:
    for name in query:
        if name not in _KNOWN:
            raise unknown_field(name, sorted(_KNOWN), "parameter", code=_UNSUPPORTED)
    rate, speed = _whole(query, "sample_rate", choice.sample_rate), _number(query, "speed", 1.0)
    if not SLOWEST <= speed <= FASTEST:
        raise _invalid("speed", speed, f"from {SLOWEST} to {FASTEST}")
    bit_rate = _whole(query, "bit_rate", choice.bit_rate)
    model = query.get("model", "")
    voice = runtime.voices[0] if model in ("", *runtime.settings.model_names) else model
    codec_rate, media_type = runtime.codec.spec.sample_rate, choice.media_type.format(rate=rate)
    encoder = partial(
        make_stream_encoder, choice.name, codec_rate, rate, bit_rate=bit_rate, speed=speed
    )
    audio = wire.AudioOptions(speed=speed)
    create = wire.ContextCreate(NAME, voice=voice, audio=audio, max_lead_ms=max_lead_ms)
    # Refuse unsupported options now, in the handshake or request.
    encoder()
    runtime.talker.check_options(speech_request(runtime, create, NAME))
    return SpeakOptions(model or voice, create, media_type, encoder)


def _whole(query: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Parse a whole number; the official client writes 24000.0."""
    if name not in query:
        return default
    number = _number(query, name, 0.0)
    if not number.is_integer():
        raise _invalid(name, query[name], "a whole number")
    return int(number)


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    if name not in query:
        return default
    try:
        number = float(query[name])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**31:
        raise _invalid(name, query[name], "a number")
    return number


def _invalid(name: str, value: object, allowed: str) -> RequestError:
    return invalid_field(name, value, allowed, ErrorCode.INVALID_PARAMETER)


def _code(error: TalkwireError) -> str:
    """Return an error's code in upper case, as Deepgram's codes are."""
    return error.code.value.upper()


def header_value(text: str) -> str:
    """Replace characters that a header cannot contain, since clients may send any names."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _body(error: TalkwireError, request_id: str) -> dict[str, Any]:
    return {"err_code": _code(error), "err_msg": TABLE.message(error), "request_id": request_id}


def _headers(error: TalkwireError, request_id: str) -> dict[str, str]:
    return {"dg-request-id": request_id, "dg-error": header_value(TABLE.message(error))}


TABLE = ErrorTable(
    NAME,
    _body,
    _headers,
    statuses={ErrorCode.UNKNOWN_VOICE: 400},
    fields={"voice": "model", "bitrate": "bit_rate"},
    full_close=CloseCode.TRY_AGAIN_LATER,
)


def error_message(error: TalkwireError, request_id: str) -> str:
    """Return an ``Error`` message, after which the socket closes."""
    fields = {"code": _code(error), "description": TABLE.message(error), "request_id": request_id}
    return json.dumps({"type": "Error", **fields})


class DeepgramErrorBody(BaseModel):
    """The body of a refusal."""

    err_code: str
    err_msg: str
    request_id: str


def joined(before: str, text: str) -> tuple[str, str]:
    """Return ``text`` with missing spaces added, and ``before`` for the next text.

    A space is added before it if a sentence mark precedes, and neither a lower-case letter nor
    the rest of a number follows. One is added after it if it is a whole sentence of several
    words, since the next text may not come for long.
    """
    added = text
    if _ends_sentence(before) and _begins_sentence(before, text):
        added = " " + text
    if len(text.split()) > 1 and _ends_sentence(text) and not _ends_number(text):
        added += " "
    return added, (before + added)[-8:]


def _ends_sentence(text: str) -> bool:
    return text.rstrip("".join(CLOSERS))[-1:] in SPACED_MARKS


def _ends_number(text: str) -> bool:
    return text.rstrip("".join(CLOSERS | SPACED_MARKS))[-1:].isdigit()


def _begins_sentence(before: str, text: str) -> bool:
    first = text[:1]
    if first.isdigit():
        return not _ends_number(before)
    return (first.isalpha() and not first.islower()) or first in OPENERS


class _SpeakDialect(Dialect):
    """See Dialect. The texts up to a pause are spoken by one context, here called a turn."""

    def __init__(self, socket: Socket, options: SpeakOptions) -> None:
        super().__init__(socket)
        self._options = options
        self._request_id = str(uuid.uuid4())
        self._turn: SpeechContext | None = None
        self._sequence = self._flushes = 0
        self._tail = ""
        self._has_unflushed = False

    def open(self) -> None:
        hello = {
            "type": "Metadata",
            "request_id": self._request_id,
            "model_name": self._options.model,
            "model_version": __version__,
            "model_uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, self._options.create.voice or "")),
        }
        self.socket.send(json.dumps(hello))

    def on_text(self, text: str) -> None:
        """Handle a message. An invalid one closes the socket, as in Deepgram's API."""
        try:
            self._dispatch(text)
        except TalkwireError as error:
            self.give_up(error, TABLE.close_code(error))

    def on_bytes(self, data: bytes) -> None:
        self.give_up(binary_refused(), CloseCode.UNSUPPORTED_DATA)

    def on_tick(self, now: float) -> None:
        settings = self.runtime.settings
        if self._turn is not None and self._turn.idle_s(now) > settings.context_idle_s:
            self._expire(self._turn)
        if self.socket.idle_s(now) > settings.session_idle_s:
            self.give_up(idle_timeout("socket"), CloseCode.GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        message = "The socket is about to close; open another for the next turn."
        self._warn(CapacityError(ErrorCode.DRAINING, message), counted=False)

    def render_error(self, error: TalkwireError) -> str:
        count_error(self.runtime, error, self._request_id, NAME)
        return error_message(error, self._request_id)

    def _dispatch(self, text: str) -> None:
        match parse_json(text):
            case {"type": "Speak", **fields}:
                self._speak(fields.get("text"))
            case {"type": "Flush"}:
                self._flush()
            case {"type": "Clear"}:
                self._clear()
                self.socket.drop_audio()  # of earlier turns, whose end may wait for it to be sent
                self.socket.send(self._counted("Cleared"))
            case {"type": "Close"}:
                raise SocketClosing(CloseCode.NORMAL_CLOSURE)
            case _:
                known = "The messages are Speak, Flush, Clear and Close."
                raise RequestError(ErrorCode.UNKNOWN_MESSAGE, known, param="type")

    def _speak(self, text: object) -> None:
        if text is None:
            raise missing_field("text")
        if not isinstance(text, str):
            raise invalid_field("text", text, "a string")
        if not text or (self._turn is None and not text.strip()):
            return
        turn = self._turn or self._begin()
        try:
            added, tail = joined(self._tail, text)
            turn.append(added)
            self._tail = tail
            self._has_unflushed |= bool(text.strip())  # whitespace needs no flush
        except RequestError as error:
            if error.code is not ErrorCode.TEXT_TOO_LONG:
                raise
            self._warn(error)  # the text was not added, and the turn continues

    def _begin(self) -> SpeechContext:
        runtime, handle = self.runtime, self.socket.new_handle()
        runtime.require_slot()
        request_id, options = f"{self._request_id}-{handle}", self._options
        plan = plan_speech(runtime, NAME, request_id, options.create, options.encoder())
        self._turn = self.socket.open_context(plan, handle, self, self._on_closed)
        self._tail, self._flushes = "", 0
        return self._turn

    def _flush(self) -> None:
        if self._turn is None:
            self.socket.send(self._counted("Flushed"))  # nothing to speak
            return
        self._has_unflushed, self._tail = False, ""
        self._flushes += 1
        self._turn.flush(str(self._flushes))

    def _clear(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._has_unflushed = False

    def _on_closed(self) -> None:
        if self._turn not in self.socket.contexts:  # or else an earlier one has closed
            self._turn = None

    def render(self, output: Output) -> Sequence[Message]:
        match output:
            case Audio():
                return [Revocable(packet.data, packet.samples) for packet in output.packets]
            case Flushed():
                return [self._flushed()]
            case Done(error=error) if error is not None:
                # a failed turn closes the socket, since its clients reconnect
                asyncio.get_running_loop().call_soon(self.socket.finish, TABLE.close_code(error))
                return [error_message(error, self._request_id)]
            case _:
                return []

    def _expire(self, turn: SpeechContext) -> None:
        """End an idle turn. Complete sentences were spoken without a flush; other text is lost."""
        if not turn.has_pending_text:
            self._has_unflushed = False
            self._end(turn)
            return
        self._clear()
        message = "Text waited too long for a Flush and was dropped."
        self._warn(CapacityError(ErrorCode.IDLE_TIMEOUT, message))

    def _flushed(self) -> str:
        """Report a flush. After the last one, the turn ends."""
        self._flushes -= 1
        if not self._flushes and not self._has_unflushed:
            asyncio.get_running_loop().call_soon(self._end, self._turn)
        return self._counted("Flushed")

    def _end(self, turn: SpeechContext | None) -> None:
        """End a turn whose text has been spoken; the next text begins another."""
        if turn is not None and turn is self._turn and not self._flushes + self._has_unflushed:
            self._turn = None
            turn.end()

    def _counted(self, kind: str) -> str:
        number, self._sequence = self._sequence, self._sequence + 1
        return json.dumps({"type": kind, "sequence_id": number})

    def _warn(self, error: TalkwireError, *, counted: bool = True) -> None:
        """Send a warning; the socket stays open. One that announces a drain is no error."""
        if counted:
            count_error(self.runtime, error, self._request_id, NAME)
        message = TABLE.message(error)
        fields = {"code": _code(error), "description": message, "warn_msg": message}
        self.socket.send(json.dumps({"type": "Warning", **fields}))


def deepgram_models(runtime: Runtime) -> dict[str, Any]:
    """Return ``GET /v1/models`` in Deepgram's format, in which each voice is a model."""
    models = [
        {
            "name": voice.name,
            "canonical_name": voice.id,
            "architecture": "talkwire",
            "languages": [voice.language or "en"],
            "version": __version__,
            "uuid": voice.id,
        }
        for voice in list_voices(runtime)
    ]
    return {"stt": [], "tts": models}


class SpeakBody(BaseModel):
    """The body of `POST /v1/speak`."""

    text: str = Field(description="The text to speak.")


class GrantBody(BaseModel):
    """The body of `POST /v1/auth/grant`."""

    ttl_seconds: int = Field(
        default=30, ge=1, le=MAX_TTL_S, description="For how long it is valid."
    )


class Grant(BaseModel):
    """A token, for `Authorization: Bearer`."""

    access_token: str
    expires_in: int


def deepgram_router(runtime: Runtime) -> GuardedRouter:
    """Create all routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="deepgram_token")
    errors = documented(DeepgramErrorBody)
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=errors, tags=[NAME])

    @router.websocket("/v1/speak")
    async def speak_socket(websocket: WebSocket) -> None:
        def dialect(socket: Socket) -> Dialect:
            return _SpeakDialect(socket, socket_options(websocket.query_params, runtime))

        subprotocol = answered_subprotocol(websocket.scope.get("subprotocols", []))
        await serve_socket(websocket, runtime, dialect, TABLE, subprotocol)

    @router.post("/v1/speak", response_class=Response)
    @declare(replace(rule, speaks=True))
    async def speak(body: SpeakBody, request: Request) -> Response:
        """Speak a text, with the options of the query: `model` (a voice), `encoding` (mp3),
        `container`, `sample_rate`, `bit_rate`, `speed`. The audio is streamed.
        """
        runtime.require_ready()
        request_id = request.state.request_id
        options = http_options(request.query_params, runtime)
        plan = plan_speech(runtime, NAME, request_id, options.create, options.encoder())
        renderer = BodyRenderer(options.media_type)
        response = HttpSpeech(runtime, plan, body.text, TABLE, renderer)
        response.headers["dg-request-id"] = request_id
        response.headers["dg-model-name"] = header_value(options.model)
        response.headers["dg-char-count"] = str(len(body.text))
        return response

    @router.post("/v1/auth/grant")
    async def grant(body: GrantBody | None = None) -> Grant:
        """Create a short-lived token for a browser to use instead of the key."""
        ttl_s = (body or GrantBody()).ttl_seconds
        token = runtime.authority.issue_token(current_caller(), ttl_s)
        return Grant(access_token=token, expires_in=ttl_s)

    return router

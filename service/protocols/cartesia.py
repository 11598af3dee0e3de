"""Cartesia's speech API (docs/dialects.md): the same sessions in other words."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response, WebSocket
from pydantic import BaseModel

from service.context_settings import session_settings, speech_request
from service.handshake import serve_socket
from service.http_speech import HttpContext, HttpSpeech
from service.http_wording import PlainWording
from service.protocols.cartesia_errors import ERRORS, CartesiaRoute, refusal
from service.protocols.cartesia_messages import EventWording
from service.protocols.cartesia_request import NAME, SpeechBody, context_create
from service.protocols.cartesia_socket import CartesiaDialect
from service.runtime import Runtime
from service.socket import Dialect, Socket
from service.voices_map import ListedVoice, find_voice, list_voices
from streaming.errors import TalkwireError
from streaming.events import Done
from streaming.session import Session
from streaming.words import WordTiming

_EVENTS = "text/event-stream"


class Voice(BaseModel):
    """A voice, in Cartesia's shape."""

    id: str
    name: str
    description: str
    language: str
    created_at: str
    tagline: str = ""
    locales: list[dict[str, Any]] = []
    is_owner: bool = False
    is_public: bool = True
    access: str = "public"
    visibility: str = "all"


class VoicePage(BaseModel):
    """Some of the voices; the first of all is the default."""

    data: list[Voice]
    has_more: bool
    next_page: str | None


class SpeechEvents(PlainWording):
    """Server-sent events, the same as the socket's messages."""

    def __init__(self, events: EventWording, refusal: Callable[[TalkwireError], Response]) -> None:
        super().__init__(_EVENTS, refusal)
        self._events = events
        self._words = b""

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that comes next."""
        self._words += _sse(self._events.timestamps(timings))

    def audio(self, data: bytes) -> bytes:
        """Words that came before it, and a ``chunk``."""
        words, self._words = self._words, b""
        return words + _sse(self._events.chunk(data))

    def done(self, done: Done) -> bytes:
        """``done``."""
        return self._words + _sse(self._events.end())

    def broken(self, error: TalkwireError) -> bytes | None:
        """An ``error``, which ends the stream."""
        return _sse(self._events.error(error))


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def add_cartesia(app: FastAPI, runtime: Runtime) -> None:
    """Add all routes of this dialect."""

    def dialect(socket: Socket, tasks: asyncio.TaskGroup) -> Dialect:
        return CartesiaDialect(runtime, socket.outbox, tasks)

    @app.websocket("/tts/websocket")
    async def websocket(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, dialect, refusal)

    router = APIRouter(route_class=CartesiaRoute, responses=ERRORS, tags=[NAME])
    _add_speech(router, runtime)
    _add_voices(router, runtime)
    app.include_router(router)


def _add_speech(router: APIRouter, runtime: Runtime) -> None:
    @router.post("/tts/bytes", response_class=Response)
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The audio is sent while it is made."""
        format_ = body.require_format("raw", "wav", "mp3")
        context = _context(body, runtime, request, timestamps=False)
        refuse = partial(refusal, request_id=request.state.request_id)
        return HttpSpeech(runtime, context, PlainWording(format_.media_type, refuse))

    @router.post("/tts/sse", response_class=Response)
    async def events(body: SpeechBody, request: Request) -> Response:
        """The same as server-sent events, with words where the model has them."""
        body.require_format("raw")
        context = _context(body, runtime, request, timestamps=True)
        request_id = request.state.request_id
        wording = SpeechEvents(
            EventWording(body.context_id, request_id), partial(refusal, request_id=request_id)
        )
        return HttpSpeech(runtime, context, wording, wording.words)


def _context(
    body: SpeechBody, runtime: Runtime, request: Request, *, timestamps: bool
) -> HttpContext:
    """Raises RequestError, CapacityError."""
    runtime.require_ready()
    request_id = request.state.request_id
    if not timestamps:
        body = body.model_copy(update={"add_timestamps": False})
    create = context_create(body, runtime, request_id, runtime.settings.max_lead_ms)
    asked = speech_request(runtime, create, request_id)
    runtime.talker.check_options(asked)
    format_ = body.require_format("raw", "wav", "mp3")
    encoder = format_.make_encoder(runtime.codec.spec.sample_rate, body.pace)
    session = Session(session_settings(runtime, create))
    return HttpContext(NAME, body.transcript, session, asked, encoder)


def _add_voices(router: APIRouter, runtime: Runtime) -> None:
    started = time.time()

    def shaped(voice: ListedVoice) -> Voice:
        made = datetime.fromtimestamp(voice.created_at or started, UTC)
        return Voice(
            id=voice.id,
            name=voice.name,
            description=voice.description or "",
            language=voice.language or "en",
            created_at=made.isoformat(),
        )

    @router.get("/voices")
    async def voices(
        limit: Annotated[int, Query(ge=1, le=100)] = 100,
        starting_after: str | None = None,
        ending_before: str | None = None,
        q: str = "",
    ) -> VoicePage:
        """The voices that can be asked for, in pages."""
        every = [shaped(voice) for voice in list_voices(runtime)]
        found = [voice for voice in every if q.lower() in voice.name.lower()]
        ids = [voice.id for voice in found]
        if ending_before in ids:
            found = found[: ids.index(ending_before)][-limit:]
            return VoicePage(data=found, has_more=False, next_page=None)
        first = ids.index(starting_after) + 1 if starting_after in ids else 0
        page = found[first : first + limit]
        has_more = len(found) > first + limit
        return VoicePage(data=page, has_more=has_more, next_page=page[-1].id if has_more else None)

    @router.get("/voices/{voice_id}")
    async def voice(voice_id: str) -> Voice:
        """One of them."""
        return shaped(find_voice(voice_id, runtime))

"""Cartesia's HTTP API (docs/reference/dialects.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, WebSocket
from pydantic import BaseModel, Field

from service.access.rules import BROWSER_QUERY, GuardedRouter, Rule
from service.auth.authenticator import MAX_TTL_S
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import plan_speech
from service.dialects.cartesia.messages import (
    ERRORS,
    LANGUAGE_FIELDS,
    NAME,
    TABLE,
    EventRenderer,
    OutputFormat,
    SpeechBody,
    context_create,
    encoded,
)
from service.dialects.cartesia.socket import CartesiaDialect
from service.dialects.voice_aliases import ListedVoice, find_voice, list_voices, page_after
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, HttpSpeech
from service.transport.http_routes import SpeechRoute, speaks
from service.transport.websocket import serve_socket
from streaming.errors import TalkwireError
from streaming.events import Done
from streaming.word_timing import WordTiming

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


class TokenBody(BaseModel):
    """The body of `POST /access-token`. Every token may speak and nothing else, whatever its
    grants.
    """

    expires_in: int = Field(60, ge=1, le=MAX_TTL_S, description="Seconds that it is valid for.")
    grants: dict[str, bool] | None = Field(None, description="Only `tts` has a meaning here.")


class Token(BaseModel):
    """To be sent as `Authorization: Bearer`, or as the query's `access_token`."""

    token: str


class SpeechEvents(BodyRenderer):
    """Server-sent events, the same as the socket's messages."""

    def __init__(self, events: EventRenderer) -> None:
        super().__init__(_EVENTS)
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
    return f"event: {event['type']}\ndata: {encoded(event)}\n\n".encode()


def cartesia_router(runtime: Runtime) -> GuardedRouter:
    """All routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="x_api_key")
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=ERRORS, tags=[NAME])
    sockets = GuardedRouter(replace(rule, query=BROWSER_QUERY))

    @sockets.websocket("/tts/websocket")
    async def websocket(websocket: WebSocket) -> None:
        # each message may name them, and has no header of its own
        await serve_socket(websocket, runtime, CartesiaDialect, TABLE, ignored=LANGUAGE_FIELDS)

    router.take_routes(sockets)
    _add_speech(router, runtime)
    _add_voices(router, runtime)

    @router.post("/access-token")
    async def access_token(body: TokenBody) -> Token:
        """A token that a browser may use instead of the key for a while."""
        return Token(token=runtime.authority.issue_token(current_caller(), body.expires_in))

    return router


def _add_speech(router: APIRouter, runtime: Runtime) -> None:
    @router.post("/tts/bytes", response_class=Response)
    @speaks
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The audio is sent while it is made."""
        format_ = body.require_format("raw", "wav", "mp3")
        renderer = BodyRenderer(format_.media_type)
        return spoken(body, request, format_, renderer, timestamps=False)

    @router.post("/tts/sse", response_class=Response)
    @speaks
    async def events(body: SpeechBody, request: Request) -> Response:
        """The same as server-sent events, with words where the model has them."""
        format_ = body.require_format("raw")
        renderer = SpeechEvents(EventRenderer(body.context_id, request.state.request_id))
        return spoken(body, request, format_, renderer, timestamps=True)

    def spoken(
        body: SpeechBody,
        request: Request,
        format_: OutputFormat,
        renderer: BodyRenderer,
        *,
        timestamps: bool,
    ) -> Response:
        """Raises RequestError, CapacityError."""
        runtime.require_ready()
        request_id, lead_ms = request.state.request_id, runtime.settings.max_lead_ms
        create = context_create(body, runtime, request_id, lead_ms, timestamps=timestamps)
        encoder = format_.make_encoder(runtime.codec.spec.sample_rate, body.pace)
        plan = plan_speech(runtime, NAME, request_id, create, encoder)
        ignored = [name for name in LANGUAGE_FIELDS if getattr(body, name)]
        return HttpSpeech(runtime, plan, body.transcript, TABLE, renderer, ignored)


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
        found = [voice for voice in list_voices(runtime) if q.lower() in voice.name.lower()]
        page, following = page_after(found, starting_after, limit)
        ids = [voice.id for voice in found]
        if ending_before in ids:
            page, following = found[: ids.index(ending_before)][-limit:], None
        data = [shaped(voice) for voice in page]
        return VoicePage(data=data, has_more=following is not None, next_page=following)

    @router.get("/voices/{voice_id}")
    async def voice(voice_id: str) -> Voice:
        """One of them."""
        return shaped(find_voice(voice_id, runtime))

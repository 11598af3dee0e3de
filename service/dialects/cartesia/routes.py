"""Cartesia's HTTP routes and its WebSocket with many contexts (docs/reference/dialects.md)."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, WebSocket
from pydantic import BaseModel, Field

from service.access.rules import BROWSER_QUERY, GuardedRouter, Rule, declare
from service.audio.formats import AudioFormat
from service.auth.authenticator import MAX_TTL_S
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import chosen_language, ignored_languages
from service.dialects.cartesia.messages import (
    LANGUAGE_FIELDS,
    NAME,
    NOTHING_INHERITED,
    OWN_FLUSH,
    TABLE,
    CartesiaErrorBody,
    ContextRequest,
    EventRenderer,
    InheritedState,
    SocketRenderer,
    SpeechBody,
    encoded,
    error_event,
    page_of,
    speech_options,
)
from service.dialects.cartesia.pronunciations import add_pronunciations, dictionary_of
from service.dialects.cloning import clone_voice, form_schema
from service.dialects.voice_lists import ListedVoice, find_voice, list_voices, mentions
from service.dialects.voices import delete_voice
from service.errors import parse_message, peek, too_many_contexts
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, speak_over_http
from service.transport.http_routes import ClipRoute, RulesRoute, SpeechRoute, documented
from service.transport.websocket import Dialect, Idle, Socket, serve_socket
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Done
from streaming.lru_cache import LruCache
from streaming.word_timing import WordTiming

_BUFFER_DELAY_MS = 3000
#: Seconds after the end of its playback when a context expires.
_EXPIRES_S = 1.0


class _CartesiaContext:
    """A context on the socket, opened by ``first``. Only the text of later requests is used, since
    clients send other voices and formats with them. ``inherited``: see EventRenderer. ``closed``
    gets the state for a context that continues it; None if its client has ended it. Raises
    RequestError, CapacityError.
    """

    def __init__(
        self,
        socket: Socket,
        first: ContextRequest,
        context_id: str,
        inherited: InheritedState,
        closed: Callable[[InheritedState | None], None],
    ) -> None:
        runtime = socket.runtime
        timed = runtime.engines.talker.spec.has_word_timings
        options = speech_options(first, first.require_format("raw"), has_word_timings=timed)
        rules = dictionary_of(first.pronunciation_dict_id, runtime)
        language = chosen_language(runtime, first.languages)
        options = replace(options, pronunciations=rules, language=language)
        self._renderer = SocketRenderer(context_id, inherited)
        self._closed, self._began_s = closed, inherited.heard_s
        self._delay_ms = _BUFFER_DELAY_MS
        self._timer: asyncio.TimerHandle | None = None
        self._idle_limit_s = runtime.settings.context_idle_s
        self.speech = socket.speak(options, self._renderer, self._on_closed, context_id)

    def take(self, request: ContextRequest) -> None:
        """Handle a request's text, flush and end. Raises RequestError."""
        if self.speech.has_ended:
            message = "The context was ended; it takes no more transcripts."
            raise RequestError(ErrorCode.CONTEXT_CLOSED, message)
        self.speech.touch()
        if request.transcript:
            self.speech.append(request.transcript)
        self._stop_timer()
        if request.max_buffer_delay_ms is not None:
            self._delay_ms = request.max_buffer_delay_ms
        is_phrase = not self._delay_ms and request.continue_ and request.transcript.strip()
        flushes = request.flush or is_phrase
        if flushes:
            self.speech.flush("asked")
        if not request.continue_:
            self.speech.end()
        elif not flushes:
            # text without the end of a sentence waits no longer than the client wants
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_ms / 1000, self._speak_what_waits)

    def refuse(self, *, is_new: bool, is_last: bool) -> None:
        """Clean up after a failed request: cancel a new context; after the last request of
        another one, speak its text and end it.
        """
        if is_new:
            self.speech.cancel()
        elif is_last and not self.speech.has_ended:
            self._stop_timer()
            self.speech.end()

    def expire(self, now: float) -> None:
        """End the context if all audio has been played, or if it has been idle for too long."""
        if self.speech.has_ended or self._timer is not None:
            return
        if self.speech.silent_s(now) > _EXPIRES_S:
            self._renderer.is_quiet = True
            self.speech.end()
        elif self.speech.driver.idle_s(now) > self._idle_limit_s:
            self.speech.end()

    def _speak_what_waits(self) -> None:
        self._timer = None
        with suppress(CapacityError):  # too many flushes wait, but no text is left to speak
            self.speech.flush(OWN_FLUSH)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_closed(self) -> None:
        self._stop_timer()
        heard_s, flush_id = self._began_s + self.speech.audio_s, self._renderer.flush_id
        self._closed(InheritedState(heard_s, flush_id) if self._renderer.is_quiet else None)


_REMEMBERED = 256


class _CartesiaDialect(Dialect):
    """See Dialect. Errors do not close the socket; one of a context ends only that context."""

    idle = Idle(is_told=False)

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self._contexts: dict[str, _CartesiaContext] = {}
        #: The states of expired contexts, from which a context with the same id continues.
        self._expired: LruCache[str, InheritedState] = LruCache(_REMEMBERED)

    def on_text(self, text: str) -> None:
        """Handle a message. Errors are sent to the client, and are never fatal."""
        try:
            request = parse_message(ContextRequest, text)
        except RequestError as error:
            self.socket.send(self.render_error(error, peek(text, "context_id")))
            return
        context_id = request.context_id or uuid.uuid4().hex
        is_new = context_id not in self._contexts
        try:
            self._carry_out(context_id, request)
        except TalkwireError as error:
            if (context := self._contexts.get(context_id)) is not None:
                context.refuse(is_new=is_new, is_last=not request.continue_)
            self.socket.send(self.render_error(error, context_id))

    def _carry_out(self, context_id: str, request: ContextRequest) -> None:
        context = self._contexts.get(context_id)
        if request.cancel:
            self._expired.pop(context_id, None)
            if context is not None:
                context.speech.cancel()
            self.socket.drop_audio(context_id)
        elif context is not None:
            context.take(request)
        elif request.transcript.strip():
            self._open(context_id, request).take(request)
        else:
            self._answer_silent(context_id, request)

    def _answer_silent(self, context_id: str, request: ContextRequest) -> None:
        """Answer a request without text for an expired or unknown context."""
        inherited = self._expired.get(context_id, NOTHING_INHERITED)
        renderer = EventRenderer(context_id, inherited)
        if request.flush:
            self.socket.send(encoded(renderer.flush_done()))
            self._expired[context_id] = inherited._replace(flush_id=renderer.flush_id)
        if not request.continue_:
            self._expired.pop(context_id, None)
            self.socket.send(encoded(renderer.end()))

    def _open(self, context_id: str, request: ContextRequest) -> _CartesiaContext:
        limit = self.runtime.settings.max_contexts_per_session
        if len(self._contexts) >= limit:
            raise too_many_contexts(limit)
        inherited = self._expired.get(context_id, NOTHING_INHERITED)
        context = _CartesiaContext(
            self.socket, request, context_id, inherited, partial(self._on_closed, context_id)
        )
        self._contexts[context_id] = context
        return context

    def _on_closed(self, context_id: str, state: InheritedState | None) -> None:
        del self._contexts[context_id]
        self._expired.pop(context_id, None)
        if state is not None:
            self._expired[context_id] = state

    def on_tick(self, now: float) -> None:
        """Expire contexts, and close a socket that has been idle for too long."""
        for context in list(self._contexts.values()):
            context.expire(now)
        super().on_tick(now)

    def render_error(self, error: TalkwireError, context_id: str | None = None) -> str:
        """Return an ``error`` message, with a request id that is also in the logs."""
        request_id, done = uuid.uuid4().hex, context_id not in self._contexts
        self.runtime.errors.count(error, request_id, NAME)
        return json.dumps(error_event(error, context_id, request_id, done=done))


class Voice(BaseModel):
    """A voice in Cartesia's format."""

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
    """A page of the voices; the first voice of all is the default. ``has_more`` and ``next_page``,
    the cursor, are of the direction in which the client goes.
    """

    data: list[Voice]
    has_more: bool
    next_page: str | None


class TokenBody(BaseModel):
    """The body of `POST /access-token`. Tokens may only speak, whatever their grants."""

    expires_in: int = Field(60, ge=1, le=MAX_TTL_S, description="Seconds that it is valid for.")
    grants: dict[str, bool] | None = Field(None, description="Only `tts` has a meaning here.")


class Token(BaseModel):
    """A token, for `Authorization: Bearer` or the query parameter `access_token`."""

    token: str


class _SpeechEvents(EventRenderer, BodyRenderer):
    """Renders server-sent events, which equal the socket's messages."""

    media_type, _words = "text/event-stream", b""

    def words(self, timings: Sequence[WordTiming]) -> None:
        self._words += _sse(self.timestamps(timings))

    def audio(self, data: bytes) -> bytes:
        words, self._words = self._words, b""
        return words + _sse(self.chunk(data))

    def done(self, done: Done) -> bytes:
        return self._words + _sse(self.end())

    def broken(self, error: TalkwireError) -> bytes | None:
        return _sse(self.error(error))


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {encoded(event)}\n\n".encode()


def cartesia_router(runtime: Runtime) -> GuardedRouter:
    """Create all routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="x_api_key")
    errors = documented(CartesiaErrorBody)
    speaking = declare(replace(rule, speaks=True))
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=errors, tags=[NAME])

    @router.websocket("/tts/websocket")
    @declare(replace(rule, query=BROWSER_QUERY))
    async def websocket(websocket: WebSocket) -> None:
        ignored: list[str] = []

        def dialect(socket: Socket) -> Dialect:
            if not runtime.engines.talker.spec.languages:
                # messages, which have no headers, may contain these fields
                ignored.extend(LANGUAGE_FIELDS)
            return _CartesiaDialect(socket)

        await serve_socket(websocket, runtime, dialect, TABLE, ignored=ignored)

    @router.post("/tts/bytes", response_class=Response)
    @speaking
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The audio is streamed."""
        return spoken(body, request, body.require_format("raw", "wav", "mp3"))

    @router.post("/tts/sse", response_class=Response)
    @speaking
    async def events(body: SpeechBody, request: Request) -> Response:
        """Speak a text as server-sent events, with words if the model has them."""
        format_ = body.require_format("raw")
        renderer = _SpeechEvents(body.context_id, request_id=request.state.request_id)
        return spoken(body, request, format_, renderer)

    def spoken(
        body: SpeechBody,
        request: Request,
        format_: AudioFormat,
        renderer: _SpeechEvents | None = None,
    ) -> Response:
        """Return the response with the speech. Raises RequestError, CapacityError."""
        timed = renderer is not None and runtime.engines.talker.spec.has_word_timings
        options = speech_options(body, format_, has_word_timings=timed)
        rules = dictionary_of(body.pronunciation_dict_id, runtime)
        language = chosen_language(runtime, body.languages)
        options = replace(options, pronunciations=rules, language=language)
        ignored = ignored_languages(runtime, body.languages)
        return speak_over_http(request, options, body.transcript, TABLE, renderer, ignored)

    _add_account(router, runtime)
    dictionaries = GuardedRouter(rule, route_class=RulesRoute, responses=errors, tags=[NAME])
    add_pronunciations(dictionaries, runtime, replace(rule, access=Scope.VOICES_WRITE))
    router.include_router(dictionaries)
    changes = replace(rule, access=Scope.VOICES_WRITE)
    clones = GuardedRouter(changes, route_class=ClipRoute, responses=errors, tags=[NAME])
    _add_cloning(clones, runtime)
    router.include_router(clones)
    return router


def _add_cloning(router: APIRouter, runtime: Runtime) -> None:
    """Add the routes that add and delete voices."""

    @router.post("/voices/clone", openapi_extra=form_schema("clip"))
    async def clone(request: Request) -> Voice:
        """Make and store a voice from a clip, with the consent of whose it is."""
        voice = await clone_voice(
            request,
            runtime,
            "clip",
            how=(
                "the fields consent_by and consent_statement, with Cartesia's client as "
                'extra_body={"consent_by": "Anna", "consent_statement": "I agree to this use."}'
            ),
            refused={"base_voice_id": "A voice is made from a clip alone."},
        )
        return _shaped(find_voice(voice.id, runtime.voices), time.time())

    @router.delete("/voices/{voice_id}", status_code=204)
    async def delete(voice_id: str, request: Request) -> None:
        """Delete an added voice permanently, with its file, codes and name."""
        await delete_voice(request, runtime, voice_id)


def _shaped(voice: ListedVoice, started: float) -> Voice:
    """Return a voice in Cartesia's format. Those that came with the server are as old as it."""
    made = datetime.fromtimestamp(voice.created_at or started, UTC)
    return Voice(
        id=voice.id,
        name=voice.name,
        description=voice.description or "",
        language=voice.language or "en",
        created_at=made.isoformat(),
    )


def _add_account(router: APIRouter, runtime: Runtime) -> None:
    """Add the routes of voices and tokens."""
    started = time.time()

    @router.get("/voices")
    async def voices(
        limit: Annotated[int, Query(ge=1, le=100)] = 100,
        starting_after: str | None = None,
        ending_before: str | None = None,
        q: str = "",
    ) -> VoicePage:
        """List the available voices, in pages."""
        every = list_voices(runtime.voices)
        found = [one for one in every if mentions(q, (one.name, one.description, one.id))]
        ids = [voice.id for voice in found]
        begin, end, following = page_of(ids, limit, starting_after, ending_before)
        data = [_shaped(voice, started) for voice in found[begin:end]]
        return VoicePage(data=data, has_more=following is not None, next_page=following)

    @router.get("/voices/{voice_id}")
    async def voice(voice_id: str) -> Voice:
        """Get a voice."""
        return _shaped(find_voice(voice_id, runtime.voices), started)

    @router.post("/access-token")
    async def access_token(body: TokenBody) -> Token:
        """Create a short-lived token for a browser to use instead of the key."""
        return Token(token=runtime.authority.issue_token(current_caller(), body.expires_in))

"""The routes of ElevenLabs' API (docs/reference/dialects.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Query, Request, Response, WebSocket

from service.access.rules import GuardedRouter, Rule, declare
from service.auth.caller import NOBODY, current_caller
from service.auth.keys import Scope
from service.contexts.options import ignored_languages
from service.dialects.elevenlabs.account import add_account, add_cloning
from service.dialects.elevenlabs.dialogue import add_dialogue
from service.dialects.elevenlabs.dialogue_streams import DialogueStreamDialect
from service.dialects.elevenlabs.late_key import LateKeys
from service.dialects.elevenlabs.messages import TABLE, Aligner, ElevenLabsErrorBody
from service.dialects.elevenlabs.pronunciations import add_pronunciations
from service.dialects.elevenlabs.request import (
    DEFAULT_FORMAT,
    NAME,
    SpeechBody,
    StreamOptions,
    at_speed,
    parse_format,
    speech_options,
    stream_options,
)
from service.dialects.elevenlabs.streams import (
    MultiStreamDialect,
    SingleStreamDialect,
    StreamDialect,
)
from service.dialects.elevenlabs.timed_bodies import TimedLines, TimedWhole
from service.runtime import Runtime
from service.transport.http_response import speak_over_http
from service.transport.http_routes import ClipRoute, RulesRoute, SpeechRoute, documented
from service.transport.websocket import Dialect, Socket, serve_socket

#: Query parameters for keys, since browsers cannot set headers of handshakes.
_TOKEN_QUERY = ("single_use_token", "authorization", "xi_api_key")
_SPEECH = "/v1/text-to-speech/{voice_id}"


def elevenlabs_router(runtime: Runtime) -> GuardedRouter:
    """Create all routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="xi_api_key")
    errors = documented(ElevenLabsErrorBody)
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=errors, tags=[NAME])
    of_sockets = declare(replace(rule, query=_TOKEN_QUERY, late_key=True))
    late_keys = LateKeys(runtime)

    async def serve(
        websocket: WebSocket, make: Callable[[Socket, StreamOptions], StreamDialect]
    ) -> None:
        if current_caller() is NOBODY:
            admitted = await late_keys.admit(websocket)
            if admitted is None:
                return
            websocket = admitted
        query, ignored = websocket.query_params, list[str]()
        voice = websocket.path_params.get("voice_id")  # lines of a dialogue name theirs

        def dialect(socket: Socket) -> Dialect:
            fields = {"language_code": query.get("language_code")}
            ignored.extend(ignored_languages(runtime, fields))
            return make(socket, stream_options(voice, query, runtime))

        await serve_socket(websocket, runtime, dialect, TABLE, ignored=ignored)

    @router.websocket(_SPEECH + "/multi-stream-input")
    @of_sockets
    async def multi_stream_input(websocket: WebSocket) -> None:
        await serve(websocket, MultiStreamDialect)

    @router.websocket("/v1/text-to-dialogue/multi-stream-input")
    @of_sockets
    async def dialogue_multi_stream_input(websocket: WebSocket) -> None:
        await serve(websocket, partial(DialogueStreamDialect, has_contexts=True))

    @router.websocket("/v1/text-to-dialogue/stream-input")
    @of_sockets
    async def dialogue_stream_input(websocket: WebSocket) -> None:
        await serve(websocket, partial(DialogueStreamDialect, has_contexts=False))

    @router.websocket(_SPEECH + "/stream-input")
    @of_sockets
    async def stream_input(websocket: WebSocket) -> None:
        await serve(websocket, SingleStreamDialect)

    _add_speech(router, runtime, rule)
    add_dialogue(router, runtime, rule)
    add_account(router, runtime)
    dictionaries = GuardedRouter(rule, route_class=RulesRoute, responses=errors, tags=[NAME])
    add_pronunciations(dictionaries, runtime, replace(rule, access=Scope.VOICES_WRITE))
    router.include_router(dictionaries)
    changes = replace(rule, access=Scope.VOICES_WRITE)
    clones = GuardedRouter(changes, route_class=ClipRoute, responses=errors, tags=[NAME])
    add_cloning(clones, runtime)
    router.include_router(clones)
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
        format_ = at_speed(parse_format(output_format), body.voice_settings)
        timestamps = timed is not None and runtime.engines.talker.spec.has_word_timings
        options = speech_options(body, voice, format_, runtime, timestamps=timestamps)
        renderer = None
        if timed is not None:
            options = replace(options, buffered=timed is TimedWhole)
            aligner = Aligner(lends=False)
            aligner.append(body.text)
            aligner.flush()
            renderer = timed(aligner, is_wav=format_.name == "wav")
        ignored = ignored_languages(runtime, {"language_code": body.language_code})
        response = speak_over_http(request, options, body.text, TABLE, renderer, ignored)
        response.headers["request-id"] = request.state.request_id
        return response

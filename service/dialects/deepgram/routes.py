"""The routes of Deepgram's API: speech and tokens (docs/reference/dialects.md), and its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request, Response, WebSocket
from pydantic import BaseModel, Field

from service import __version__
from service.access.rules import GuardedRouter, Rule, declare
from service.auth.authenticator import MAX_TTL_S, answered_subprotocol
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.dialects.deepgram.aura import AuraDialect
from service.dialects.deepgram.flux import FluxDialect
from service.dialects.deepgram.messages import (
    NAME,
    TABLE,
    DeepgramErrorBody,
    header_value,
    model_uuid,
)
from service.dialects.deepgram.request import flux_query, http_options, socket_options
from service.dialects.voice_lists import ListedVoice
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, speak_over_http
from service.transport.http_routes import SpeechRoute, documented
from service.transport.websocket import Dialect, Socket, serve_socket


def deepgram_models(voices: Sequence[ListedVoice]) -> dict[str, Any]:
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
        for voice in voices
    ]
    return {"stt": [], "tts": models}


class SpeakBody(BaseModel):
    """The body of `POST /v1/speak` and `POST /v2/speak`."""

    text: str = Field(description="The text to speak.")
    model: str | None = Field(None, description="A voice, if the query has no `model`.")
    voice: str | None = Field(None, description="The same, as clients of Piper's server send it.")


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

    async def serve(websocket: WebSocket, make: Callable[[Socket], Dialect]) -> None:
        subprotocol = answered_subprotocol(websocket.scope.get("subprotocols", []))
        await serve_socket(websocket, runtime, make, TABLE, subprotocol)

    def spoken(body: SpeakBody, request: Request, query: Mapping[str, str]) -> Response:
        if named := body.model or body.voice:
            query = {"model": named, **query}
        options = http_options(query, runtime)
        renderer = BodyRenderer(options.media_type)
        response = speak_over_http(request, options.speech, body.text, TABLE, renderer)
        response.headers["dg-request-id"] = request.state.request_id
        response.headers["dg-model-name"] = header_value(options.model)
        # SDKs of versions 3 and 4 read it without asking whether it is there
        response.headers["dg-model-uuid"] = model_uuid(options.speech.voice)
        response.headers["dg-char-count"] = str(len(body.text))
        return response

    @router.websocket("/v1/speak")
    async def speak_socket(websocket: WebSocket) -> None:
        query = websocket.query_params
        await serve(websocket, lambda socket: AuraDialect(socket, socket_options(query, runtime)))

    @router.websocket("/v2/speak")
    async def flux_socket(websocket: WebSocket) -> None:
        def dialect(socket: Socket) -> Dialect:
            query = flux_query(websocket.query_params)
            return FluxDialect(socket, socket_options(query, runtime))

        await serve(websocket, dialect)

    @router.post("/v1/speak", response_class=Response)
    @declare(replace(rule, speaks=True))
    async def speak(body: SpeakBody, request: Request) -> Response:
        """Speak a text, with the options of the query: `model` (a voice), `encoding` (mp3),
        `container`, `sample_rate`, `bit_rate`, `speed`. The audio is streamed.
        """
        return spoken(body, request, request.query_params)

    @router.post("/v2/speak", response_class=Response)
    @declare(replace(rule, speaks=True))
    async def flux_speak(body: SpeakBody, request: Request) -> Response:
        """Speak a text. The options are those of `POST /v1/speak`, and an `expressivity` of 0."""
        return spoken(body, request, flux_query(request.query_params))

    @router.post("/v1/auth/grant")
    async def grant(body: GrantBody | None = None) -> Grant:
        """Create a short-lived token for a browser to use instead of the key."""
        ttl_s = (body or GrantBody()).ttl_seconds
        token = runtime.authority.issue_token(current_caller(), ttl_s)
        return Grant(access_token=token, expires_in=ttl_s)

    return router

"""Deepgram's speech API, version 1 (docs/dialects.md): the same sessions in other words."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, FastAPI, Request, Response, WebSocket
from pydantic import BaseModel, Field

from service.auth.credentials import answered_subprotocol
from service.context_settings import session_settings, speech_request
from service.handshake import serve_socket
from service.http_speech import HttpContext, HttpSpeech
from service.http_wording import PlainWording
from service.protocols.deepgram_errors import ERRORS, DeepgramRoute, header_value, refusal
from service.protocols.deepgram_request import NAME, http_options, socket_options
from service.protocols.deepgram_socket import SpeakDialect
from service.runtime import Runtime
from service.socket import Dialect, Socket
from streaming.session import Session

_SPEAK = "/v1/speak"


class SpeakBody(BaseModel):
    """The body of `POST /v1/speak`."""

    text: str = Field(description="The text to speak.")


def add_deepgram(app: FastAPI, runtime: Runtime) -> None:
    """Add all routes of this dialect."""

    def dialect(websocket: WebSocket, socket: Socket, tasks: asyncio.TaskGroup) -> Dialect:
        options = socket_options(websocket.query_params, runtime)
        return SpeakDialect(runtime, socket.outbox, tasks, options, socket.finish)

    @app.websocket(_SPEAK)
    async def speak_socket(websocket: WebSocket) -> None:
        subprotocol = answered_subprotocol(websocket.scope.get("subprotocols", []))
        await serve_socket(websocket, runtime, partial(dialect, websocket), refusal, subprotocol)

    router = APIRouter(route_class=DeepgramRoute, responses=ERRORS, tags=[NAME])

    @router.post(_SPEAK, response_class=Response)
    async def speak(body: SpeakBody, request: Request) -> Response:
        """Speak a text. The query says how: `model` (a voice), `encoding` (mp3), `container`,
        `sample_rate`, `bit_rate`, `speed`. The audio is sent while it is made.
        """
        runtime.require_ready()
        request_id = request.state.request_id
        options = http_options(request.query_params, runtime)
        create = options.create(request_id, runtime.settings.max_lead_ms)
        context = HttpContext(
            NAME,
            body.text,
            Session(session_settings(runtime, create)),
            speech_request(runtime, create, request_id),
            options.encoder(runtime.codec.spec.sample_rate),
        )
        wording = PlainWording(options.media_type, partial(refusal, request_id=request_id))
        response = HttpSpeech(runtime, context, wording)
        response.headers["dg-request-id"] = request_id
        response.headers["dg-model-name"] = header_value(options.model)
        response.headers["dg-char-count"] = str(len(body.text))
        return response

    app.include_router(router)

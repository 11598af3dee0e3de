"""OpenAI's speech API over HTTP (docs/reference/http.md)."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from service.access.hosts import require_own_page
from service.access.rules import BROWSER_QUERY, GuardedRouter, Rule, declare
from service.audio.factory import MEDIA_TYPES
from service.auth.keys import Scope
from service.contexts.options import require_model
from service.dialects.deepgram import deepgram_models
from service.dialects.elevenlabs.account import elevenlabs_models
from service.dialects.errors import validation_error
from service.dialects.openai.batch import BatchAnswer, BatchBody, batch_response
from service.dialects.openai.errors import TABLE, ErrorBody, error_body
from service.dialects.openai.request import (
    FORMATS,
    SpeechBody,
    heard_frame_s,
    ignored_fields,
    pcm_rate,
    response_format,
    speech_plan,
    token_usage,
    warning_header,
)
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, HttpSpeech
from service.transport.http_routes import ClipRoute, documented
from streaming.errors import TalkwireError
from streaming.events import Done

_EVENTS = "text/event-stream"
#: Query parameters that are not fields: keys, and Azure's version.
_NO_FIELDS = frozenset((*BROWSER_QUERY, "api-version"))


class _EventRenderer(BodyRenderer):
    """Renders server-sent events."""

    def __init__(self, frame_s: float) -> None:
        super().__init__(_EVENTS)
        self._frame_s = frame_s

    def audio(self, data: bytes) -> bytes:
        """Render a ``speech.audio.delta`` with base64 of the encoded audio."""
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})

    def done(self, done: Done) -> bytes:
        usage = token_usage(done.report, self._frame_s)
        return _event({"type": "speech.audio.done", "usage": usage})

    def broken(self, error: TalkwireError) -> bytes | None:
        return _event({"type": "error", **error_body(error)})


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Model(BaseModel):
    """A model in OpenAI's format."""

    id: str
    object: str = "model"
    created: int = Field(description="When this server started, in seconds since 1970.")
    owned_by: str = "talkwire"


class ModelList(BaseModel):
    """The served model and its aliases."""

    object: str = "list"
    data: list[Model]


#: SGLang-Omni's headers for the format of raw samples.
_PCM_HEADERS = {"x-channels": "1", "x-bit-depth": "16"}
_AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The audio, sent as it is made.",
        "content": {
            media_type: {"schema": {"type": "string", "format": "binary"}}
            for media_type in (*(MEDIA_TYPES[name] for name in FORMATS.values()), _EVENTS)
        },
    }
}


class AudioModel(BaseModel):
    """A name of the model."""

    id: str
    name: str


class AudioModels(BaseModel):
    """All names of the served model."""

    models: list[AudioModel]


def query_body(request: Request) -> SpeechBody:
    """Return the body that is equivalent to a query. Raises RequestError."""
    asked = {
        name: _typed(name, value)
        for name, value in request.query_params.items()
        if name not in _NO_FIELDS
    }
    try:
        return SpeechBody.model_validate(asked)
    except ValidationError as error:
        raise validation_error(error.errors(), rooted=False) from error


def _typed(name: str, value: str) -> object:
    """Convert a parameter to the JSON type of its field, if possible."""
    field = SpeechBody.model_fields.get(name)
    kinds = "" if field is None else str(field.annotation)
    if not any(kind in kinds for kind in ("int", "float", "bool")):
        return value
    try:
        return json.loads(value.lower())
    except (ValueError, RecursionError):
        return value


def speech_response(body: SpeechBody, runtime: Runtime, request_id: str) -> Response:
    """Return the response with the speech. Raises RequestError, CapacityError."""
    plan = speech_plan(body, runtime, request_id)
    format_ = response_format(body, runtime)
    renderer = BodyRenderer(MEDIA_TYPES[FORMATS[format_]])
    if body.stream_format == "sse":
        renderer = _EventRenderer(heard_frame_s(body, runtime))
    ignored = ignored_fields(body, runtime)
    response = HttpSpeech(runtime, plan, body.input, TABLE, renderer, ignored)
    if body.stream_format != "sse" and format_ == "pcm":
        response.headers.update({"x-sample-rate": str(pcm_rate(body)), **_PCM_HEADERS})
    response.headers.update(warning_header(body, runtime))
    return response


def openai_router(runtime: Runtime) -> GuardedRouter:
    """Create the routes of this API."""
    rule = Rule(Scope.SPEAK, TABLE)
    audio: dict[str, Any] = {"response_class": Response, "responses": _AUDIO}
    errors, speaking = documented(ErrorBody), declare(replace(rule, speaks=True))
    router = GuardedRouter(rule, route_class=ClipRoute, responses=errors, tags=["openai"])
    started = int(time.time())

    @router.post("/v1/audio/speech", **audio)
    @speaking
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The audio is streamed."""
        return speech_response(body, runtime, request.state.request_id)

    @router.post("/openai/v1/audio/speech", **audio)
    @router.post("/openai/deployments/{deployment}/audio/speech", **audio)
    @speaking
    async def azure_speech(
        body: SpeechBody, request: Request, deployment: str | None = None
    ) -> Response:
        """Speak a text, at Azure's paths. A deployment is a model's name."""
        named = body.model_copy(update={"model": body.model or deployment})
        return speech_response(named, runtime, request.state.request_id)

    @router.get("/v1/audio/speech", **audio)
    @declare(replace(rule, query=BROWSER_QUERY, speaks=True))
    async def spoken_query(request: Request) -> Response:
        """Speak a text, for clients that can only open a URL, such as an `<audio>` element or a
        telephone system. The query's parameters are the body's fields; `api_key` may be a key.
        """
        require_own_page(request, runtime.settings.allowed_origins)
        return speech_response(query_body(request), runtime, request.state.request_id)

    @router.post("/v1/audio/speech/batch", response_model=BatchAnswer)
    async def batch(body: BatchBody, request: Request) -> Response:
        """Speak several texts. Errors are reported for each item."""
        return batch_response(body, runtime, request.state.request_id)

    @router.get("/v1/models", response_model=ModelList)
    async def models(request: Request) -> ModelList | JSONResponse:
        """List the served model and its aliases. Clients that send `xi-api-key` get ElevenLabs'
        list of models, and those that send `Authorization: Token` Deepgram's, with the voices.
        """
        names = runtime.settings.model_names
        if "xi-api-key" in request.headers:
            return JSONResponse(elevenlabs_models(names))
        if request.headers.get("authorization", "").lower().startswith("token "):
            return JSONResponse(deepgram_models(runtime))
        return ModelList(data=[Model(id=name, created=started) for name in names])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Model:
        """Get a model."""
        require_model(runtime, name)
        return Model(id=name, created=started)

    @router.get("/v1/audio/models")
    async def audio_models() -> AudioModels:
        """List the model's names for Open WebUI."""
        return AudioModels(models=[AudioModel(id=n, name=n) for n in runtime.settings.model_names])

    return router

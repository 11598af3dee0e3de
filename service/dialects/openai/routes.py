"""OpenAI's speech API over HTTP (docs/reference/http.md)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from service.access.rules import BROWSER_QUERY, GuardedRouter, Rule, declare
from service.audio.formats import MEDIA_TYPES
from service.auth.keys import Scope
from service.contexts.options import require_served
from service.dialects.deepgram.routes import deepgram_models
from service.dialects.elevenlabs.account import elevenlabs_models
from service.dialects.openai.batch import BatchAnswer, BatchBody, batch_response
from service.dialects.openai.captions import (
    CAPTION_TYPES,
    CaptionFormat,
    accepted_captions,
    captioned,
)
from service.dialects.openai.errors import TABLE, ErrorBody, error_body
from service.dialects.openai.request import (
    EVENTS,
    FORMATS,
    SpeechBody,
    finish_reason,
    heard_frame_s,
    ignored_fields,
    pcm_rate,
    response_format,
    speech_options,
    token_usage,
    warning_header,
)
from service.dialects.voice_lists import VoiceListBody, list_voices
from service.errors import validation_error
from service.hosts import require_own_page
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, speak_over_http
from service.transport.http_routes import ClipRoute, documented
from streaming.errors import TalkwireError
from streaming.events import Done
from streaming.protocol.field_errors import invalid_parameter
from streaming.word_timing import WordTiming

#: Query parameters that are not fields: keys, and Azure's version.
_NO_FIELDS = frozenset((*BROWSER_QUERY, "api-version"))


class _Captioned(BodyRenderer):
    """Keeps the words for captions at the end, if a ``format_`` of these is given."""

    def __init__(self, media_type: str, format_: CaptionFormat | None) -> None:
        super().__init__(media_type)
        self._format = format_
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        self._words += timings

    @property
    def captions(self) -> dict[str, Any]:
        """The field ``captions``, or none."""
        return captioned(self._format, self._words)


class _EventRenderer(_Captioned):
    """Renders server-sent events."""

    def __init__(self, frame_s: float, captions: CaptionFormat | None) -> None:
        super().__init__(EVENTS, captions)
        self._frame_s = frame_s

    def audio(self, data: bytes) -> bytes:
        """Render a ``speech.audio.delta`` with base64 of the encoded audio."""
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})

    def done(self, done: Done) -> bytes:
        usage = token_usage(done.report, self._frame_s)
        told = {"usage": usage, "finish_reason": finish_reason(done)}
        return _event({"type": "speech.audio.done", **told, **self.captions})

    def broken(self, error: TalkwireError) -> bytes | None:
        return _event({"type": "error", **error_body(error)})


class _CaptionRenderer(_Captioned):
    """Renders captions instead of the audio."""

    def __init__(self, format_: CaptionFormat) -> None:
        super().__init__(CAPTION_TYPES[format_], format_)

    def audio(self, data: bytes) -> bytes:
        return b""

    def done(self, done: Done) -> bytes:
        return str(self.captions["captions"]).encode()


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
            **{
                MEDIA_TYPES[name]: {"schema": {"type": "string", "format": "binary"}}
                for name in FORMATS.values()
            },
            **{kind: {"schema": {"type": "string"}} for kind in CAPTION_TYPES.values()},
            EVENTS: {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}},
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


def speech_response(body: SpeechBody, runtime: Runtime, request: Request) -> Response:
    """Return the response with the speech. Raises RequestError, CapacityError."""
    accepted = accepted_captions(request.headers.get("accept", ""))
    if accepted is not None:
        body = body.model_copy(update={"captions": accepted})
    options = speech_options(body, runtime)
    renderer: BodyRenderer | None = None
    if accepted is not None:
        renderer = _CaptionRenderer(accepted)
    elif body.stream_format == "sse":
        renderer = _EventRenderer(heard_frame_s(body, runtime), body.captions)
    elif body.captions is not None:
        how = "Captions beside audio need stream_format sse; alone, a header accept of their type."
        raise invalid_parameter("captions", how)
    ignored = ignored_fields(body, runtime)
    response = speak_over_http(request, options, body.input, TABLE, renderer, ignored)
    if renderer is None and response_format(body, runtime.settings) == "pcm":
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
        return speech_response(body, runtime, request)

    @router.post("/openai/v1/audio/speech", **audio)
    @router.post("/openai/deployments/{deployment}/audio/speech", **audio)
    @speaking
    async def azure_speech(
        body: SpeechBody, request: Request, deployment: str | None = None
    ) -> Response:
        """Speak a text, at Azure's paths. A deployment is a model's name."""
        named = body.model_copy(update={"model": body.model or deployment})
        return speech_response(named, runtime, request)

    @router.get("/v1/audio/speech", **audio)
    @declare(replace(rule, query=BROWSER_QUERY, speaks=True))
    async def spoken_query(request: Request) -> Response:
        """Speak a text, for clients that can only open a URL, such as an `<audio>` element or a
        telephone system. The query's parameters are the body's fields; `api_key` may be a key.
        """
        require_own_page(request, runtime.settings.allowed_origins)
        response = speech_response(query_body(request), runtime, request)
        # a player that asks for a range gets all (200), and learns that it cannot seek
        response.headers["accept-ranges"] = "none"
        return response

    @router.head("/v1/audio/speech", include_in_schema=False)
    @declare(replace(rule, query=BROWSER_QUERY))
    async def spoken_headers(request: Request) -> Response:
        """The headers alone, as players ask for them before they play; nothing is spoken."""
        spoken = await spoken_query(request)
        response = Response()
        response.raw_headers = spoken.raw_headers  # without a length, which nobody knows
        return response

    @router.post("/v1/audio/speech/batch", response_model=BatchAnswer)
    async def batch(body: BatchBody, request: Request) -> Response:
        """Speak several texts. Errors are reported for each item."""
        return batch_response(body, runtime, request.state.request_id)

    voices = VoiceListBody(runtime.voices, lambda: list_voices(runtime.voices), deepgram_models)

    @router.get("/v1/models", response_model=ModelList)
    async def models(request: Request) -> ModelList | Response:
        """List the served model and its aliases. Clients that send `xi-api-key` get ElevenLabs'
        list of models, and those that send `Authorization: Token` Deepgram's, with the voices.
        """
        names = runtime.settings.model_names
        if "xi-api-key" in request.headers:
            return JSONResponse(elevenlabs_models(names))
        if request.headers.get("authorization", "").lower().startswith("token "):
            return await voices.response()
        return ModelList(data=[Model(id=name, created=started) for name in names])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Model:
        """Get a model."""
        require_served(runtime.settings, name)
        return Model(id=name, created=started)

    @router.get("/v1/audio/models")
    @declare(replace(rule, lists=True))
    async def audio_models() -> AudioModels:
        """List the model's names for Open WebUI."""
        return AudioModels(models=[AudioModel(id=n, name=n) for n in runtime.settings.model_names])

    return router

"""OpenAI's speech API over HTTP (docs/http.md): the same sessions in other words."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from service.audio.factory import MEDIA_TYPES
from service.http_route import documented
from service.http_speech import HttpSpeech
from service.protocols.openai_batch import BatchAnswer, BatchBody, batch_response
from service.protocols.openai_errors import ErrorBody, OpenAiRoute, error_body, error_response
from service.protocols.openai_request import (
    FORMATS,
    SpeechBody,
    http_context,
    model_names,
    require_model,
)
from service.runtime import Runtime
from streaming.errors import TalkwireError
from streaming.events import Done

_EVENTS = "text/event-stream"


class AudioWording:
    """The body is the encoded audio and nothing else."""

    def __init__(self, media_type: str, request_id: str) -> None:
        self.media_type, self._request_id = media_type, request_id

    def audio(self, data: bytes) -> bytes:
        """See service.http_speech.Wording."""
        return data

    def done(self, done: Done) -> bytes:
        """Nothing: the body's end says it."""
        return b""

    def broken(self, error: TalkwireError) -> bytes | None:
        """No words: they would be heard."""
        return None

    def refusal(self, error: TalkwireError) -> Response:
        """See service.http_speech.Wording."""
        return error_response(error, self._request_id)


class EventWording(AudioWording):
    """Server-sent events. ``frame_s``: seconds of audio, as heard, that count as one token."""

    def __init__(self, frame_s: float, request_id: str) -> None:
        super().__init__(_EVENTS, request_id)
        self._frame_s = frame_s

    def audio(self, data: bytes) -> bytes:
        """A ``speech.audio.delta``; base64 of the encoded audio."""
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})

    def done(self, done: Done) -> bytes:
        """``speech.audio.done``. A token is a character of the text or a frame of audio."""
        came, made = done.report.characters, round(done.report.audio_s / self._frame_s)
        usage = {"input_tokens": came, "output_tokens": made, "total_tokens": came + made}
        return _event({"type": "speech.audio.done", "usage": usage})

    def broken(self, error: TalkwireError) -> bytes | None:
        """An ``error`` event, which ends the stream."""
        return _event({"type": "error", **error_body(error)})


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Model(BaseModel):
    """A model, in OpenAI's shape."""

    id: str
    object: str = "model"
    created: int = Field(description="When this server started, in seconds since 1970.")
    owned_by: str = "talkwire"


class ModelList(BaseModel):
    """The served model, and the names that stand for it."""

    object: str = "list"
    data: list[Model]


_ERRORS = documented(ErrorBody)
_AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The audio, sent as it is made.",
        "content": {
            media_type: {"schema": {"type": "string", "format": "binary"}}
            for media_type in (*(MEDIA_TYPES[name] for name in FORMATS.values()), _EVENTS)
        },
    }
}


class _SpeechRoute(OpenAiRoute):
    """Takes clips, for ``ref_audio``."""

    takes_clips = True


def openai_router(runtime: Runtime) -> APIRouter:
    """The routes of this API."""
    router = APIRouter(route_class=OpenAiRoute, responses=_ERRORS, tags=["openai"])
    started = int(time.time())

    clips = APIRouter(route_class=_SpeechRoute, responses=_ERRORS, tags=["openai"])

    @clips.post("/v1/audio/speech", response_class=Response, responses=_AUDIO)
    async def speech(body: SpeechBody, request: Request) -> Response:
        """Speak a text. The audio is sent while it is made."""
        request_id = request.state.request_id
        context = http_context(body, runtime, request_id)
        if body.stream_format == "sse":
            frame_s = runtime.codec.spec.frame_s / body.speed
            return HttpSpeech(runtime, context, EventWording(frame_s, request_id))
        media_type = MEDIA_TYPES[FORMATS[body.response_format]]
        return HttpSpeech(runtime, context, AudioWording(media_type, request_id))

    @router.post("/v1/audio/speech/batch", response_model=BatchAnswer)
    async def batch(body: BatchBody, request: Request) -> Response:
        """Speak several texts. What cannot be served of them is told item by item."""
        return batch_response(body, runtime, request.state.request_id)

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The served model and its aliases."""
        return ModelList(data=[Model(id=name, created=started) for name in model_names(runtime)])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Model:
        """One of them."""
        require_model(runtime, name)
        return Model(id=name, created=started)

    router.include_router(clips)
    return router

"""Vapi's custom voices (docs/reference/dialects.md): ``POST /v1/vapi``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from service.access.rules import GuardedRouter, Rule
from service.audio.formats import AudioFormat
from service.auth.keys import Scope
from service.contexts.options import SpeechOptions
from service.errors import ErrorTable
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, speak_over_http
from service.transport.http_routes import SpeechRoute, documented
from streaming.errors import TalkwireError


def _body(error: TalkwireError, _: str) -> dict[str, Any]:
    """Return the body of an error, which is our own: Vapi reads the status alone."""
    return {"error": {"code": error.code.value, "message": TABLE.message(error)}}


TABLE = ErrorTable(
    "vapi", _body, fields={"text": "message.text", "sample_rate": "message.sampleRate"}
)


class VoiceMessage(BaseModel):
    """What is to be spoken. Vapi's other fields, such as the call, have no effect."""

    type: Literal["voice-request"]
    text: str = Field(description="The text to speak.")
    sample_rate: Annotated[int, Field(ge=1, le=2**31)] = Field(
        alias="sampleRate", description="Of the audio, in Hz."
    )


class VoiceRequest(BaseModel):
    """The body of `POST /v1/vapi`."""

    message: VoiceMessage


class VapiErrorDetail(BaseModel):
    """The reason of a refusal."""

    code: str
    message: str


class VapiErrorBody(BaseModel):
    """The body of a refusal."""

    error: VapiErrorDetail


def vapi_router(runtime: Runtime) -> GuardedRouter:
    """Create the route of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="x_vapi_secret", speaks=True)
    errors = documented(VapiErrorBody)
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=errors, tags=["vapi"])

    @router.post("/v1/vapi", response_class=Response)
    async def speak(
        body: VoiceRequest,
        request: Request,
        voice: Annotated[str | None, Query(description="A voice; without it, the default.")] = None,
    ) -> Response:
        """Speak a text as raw samples: s16le, mono. The audio is streamed."""
        format_ = AudioFormat("pcm_s16le", body.message.sample_rate)
        options = SpeechOptions(format=format_, voice=voice, may_be_silent=True)
        renderer = BodyRenderer("application/octet-stream")
        return speak_over_http(request, options, body.message.text, TABLE, renderer)

    return router

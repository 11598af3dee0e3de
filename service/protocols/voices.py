"""Voices over HTTP: listed, added from a clip, deleted (docs/voices.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.http_route import documented
from service.origin import is_allowed
from service.protocols.openai_errors import ErrorBody, OpenAiRoute
from service.protocols.voices_body import openapi_body, read_new_voice
from service.runtime import Runtime
from service.voices.file import Voice
from streaming.errors import ErrorCode, RequestError

_ERRORS = documented(ErrorBody)


class ConsentInfo(BaseModel):
    """Who agreed, to what, and when."""

    by: str
    statement: str
    at: str


class VoiceInfo(BaseModel):
    """A voice that can be spoken with."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str = Field(description="What to ask for; the id does as well.")
    built_in: bool = Field(description="It comes with the checkpoint and cannot be deleted.")
    default: bool = Field(description="It speaks where no voice is asked for.")
    language: str | None
    description: str | None
    text: str | None = Field(description="What is said in its clip.")
    text_source: Literal["given", "recognised"] | None
    duration_s: float = Field(description="Seconds of its clip.")
    created_at: int | None = Field(description="In seconds since 1970.")
    consent: ConsentInfo | None


class VoiceList(BaseModel):
    """Names of voices, the default first, and more about those that have a clip."""

    voices: list[str]
    object: Literal["list"] = "list"
    data: list[VoiceInfo]
    lasting: bool = Field(description="Whether added voices are kept when the server ends.")


class DeletedVoice(BaseModel):
    """A voice that is gone for good."""

    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True


class VoiceRoute(OpenAiRoute):
    """Takes clips."""

    takes_clips = True


def voices_router(runtime: Runtime) -> APIRouter:
    """The routes of voices."""
    router = APIRouter(route_class=VoiceRoute, responses=_ERRORS, tags=["voices"])
    path, library = "/v1/audio/voices", runtime.library

    def info(voice: Voice) -> VoiceInfo:
        return _info(voice, runtime.codec.spec.frame_s)

    @router.get(path)
    async def voices() -> VoiceList:
        """The voices that can be asked for by name."""
        data = [info(voice) for voice in library.voices(current_caller().tenant)]
        return VoiceList(voices=list(runtime.voices), data=data, lasting=library.is_lasting)

    @router.post(path, status_code=201, openapi_extra=openapi_body())
    async def add(request: Request) -> VoiceInfo:
        """Make a voice of a clip, and keep it. It can be spoken with when the answer comes."""
        _require_own_page(request, runtime)
        runtime.require_ready()
        cloner = runtime.cloner
        cloner.require_able("audio_sample")
        new = await read_new_voice(request, cloner.max_clip_bytes)
        caller = current_caller()
        most = runtime.accounts.limits(caller).max_voices
        return info(await cloner.add(replace(new, tenant=caller.tenant, max_voices=most)))

    @router.get(path + "/{id}")
    async def voice(id: str) -> VoiceInfo:
        """One voice, by id or name."""
        return info(library.find(id, current_caller().tenant))

    @router.delete(path + "/{id}")
    async def delete(id: str, request: Request) -> DeletedVoice:
        """Delete an added voice for good: its file, its codes, its name."""
        _require_own_page(request, runtime)
        caller = current_caller()
        everybodys = Scope.ADMIN in caller.scopes
        return DeletedVoice(id=(await library.remove(id, caller.tenant, everybodys=everybodys)).id)

    return router


def _info(voice: Voice, frame_s: float) -> VoiceInfo:
    consent = voice.consent
    record = None
    if consent is not None:
        record = ConsentInfo(by=consent.by, statement=consent.statement, at=consent.at)
    return VoiceInfo(
        id=voice.id,
        name=voice.name,
        built_in=consent is None,
        default=voice.is_default,
        language=voice.language,
        description=voice.description,
        text=voice.text,
        text_source=voice.text_source,
        duration_s=round(voice.codes.shape[1] * frame_s, 2),
        created_at=voice.created_at,
        consent=record,
    )


def _require_own_page(request: Request, runtime: Runtime) -> None:
    """Raise RequestError for a foreign web page: a browser would let it send a form."""
    headers, allowed = request.headers, runtime.settings.allowed_origins
    if not is_allowed(headers.getlist("origin"), headers.get("host"), allowed):
        raise RequestError(
            ErrorCode.FORBIDDEN_ORIGIN, "Pages of this origin may not change voices here."
        )

"""HTTP routes to list, add and delete voices (docs/guides/voices.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

from service.access.rules import GuardedRouter, Rule, declare
from service.auth.caller import NOBODY, current_caller
from service.auth.keys import Scope
from service.dialects.openai.errors import RESOURCE_TABLE, ErrorBody
from service.dialects.voice_lists import ListedVoice, VoiceListBody, list_voices
from service.errors import parse_message, validation_error
from service.hosts import require_own_page
from service.runtime import Runtime
from service.transport.http_routes import ClipRoute, documented, is_form, read_form
from service.voices.clip_reader import decode_base64
from service.voices.cloning import NewVoice
from service.voices.store import Consent, Voice
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import unknown_field

_CONSENT = {"consent_by": "by", "consent_statement": "statement", "consent_at": "at"}
#: Text that is not blank.
_SOME = StringConstraints(strip_whitespace=True, min_length=1)
_NAME = r"^[A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9._-])?$"


class ConsentBody(BaseModel):
    """The consent to use a voice."""

    model_config = ConfigDict(extra="forbid")

    by: Annotated[str, _SOME, Field(max_length=256)] = Field(
        description="Whose voice it is, or who may decide for them."
    )
    statement: Annotated[str, _SOME, Field(max_length=2000)] = Field(
        description="What they agreed to, in words."
    )
    at: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="When, as an ISO 8601 date and time; without it, now."
    )

    @field_validator("at")
    @classmethod
    def _check_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                datetime.fromisoformat(value)
            except ValueError as error:
                raise PydanticCustomError("iso_8601", "not ISO 8601") from error
        return value


class VoiceBody(BaseModel):
    """The body of `POST /v1/audio/voices`. As a form, `audio_sample` is a file and the consent's
    fields are `consent_by`, `consent_statement` and `consent_at`.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME)] = Field(
        description="What it is asked for by: A to Z, a to z, digits, spaces, dots, dashes and "
        "underscores, the first a letter or a digit, the last no space."
    )
    type: Literal["audio_sample"] = "audio_sample"
    audio_sample: str = Field(
        description="The clip: WAV, FLAC, MP3, M4A, Ogg, WebM and others, 1 to 30 s, "
        "at most 10 MiB; in base64, bare or as a `data:` address."
    )
    ref_text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in the clip, word for word. The voice is better with it."
    )
    language: Annotated[str, Field(max_length=64)] | None = Field(None, description="For people.")
    description: Annotated[str, Field(max_length=1000)] | None = Field(
        None, description="For people."
    )
    consent: ConsentBody | None = Field(
        None, description="Required: no voice is kept without the consent of whose it is."
    )


async def read_new_voice(request: Request, max_clip_bytes: int) -> NewVoice:
    """Parse a request for a new voice. Raises RequestError."""
    if is_form(request):
        fields, clip = await _read_form(request)
        body = _checked({"audio_sample": "", **fields} if clip is not None else fields)
    else:
        body, clip = parse_message(VoiceBody, await request.body()), None
    if body.consent is None:
        names = "consent_by and consent_statement" if is_form(request) else "consent"
        message = f"A voice is kept only with the consent of whose it is: send {names}."
        raise RequestError(ErrorCode.CONSENT_REQUIRED, message, param="consent")
    if clip is None:
        clip = decode_base64(body.audio_sample, max_clip_bytes, "audio_sample")
    return _voice(body, body.consent, clip)


def new_voice(form: Mapping[str, Any], clip: bytes) -> NewVoice:
    """Return the voice of a form's fields, which have the consent, and of its file. Raises
    RequestError.
    """
    fields = {name: value for name, value in form.items() if name not in _CONSENT}
    consent = {_CONSENT[name]: value for name, value in form.items() if name in _CONSENT}
    body = _checked({"audio_sample": "", **fields, "consent": consent})
    assert body.consent is not None
    return _voice(body, body.consent, clip)


def _voice(body: VoiceBody, given: ConsentBody, clip: bytes) -> NewVoice:
    at = given.at or datetime.now(UTC).isoformat(timespec="seconds")
    consent = Consent(given.by, given.statement, at)
    text = (body.ref_text or "").strip() or None
    return NewVoice(body.name, clip, consent, text, body.language or None, body.description or None)


async def _read_form(request: Request) -> tuple[dict[str, Any], bytes | None]:
    """Parse a form into fields as in JSON, and its file."""
    fields: dict[str, Any] = {}
    consent: dict[str, str] = {}
    clip: bytes | None = None
    for name, value in await read_form(request):
        if isinstance(value, bytes):
            clip = value
            if name != "audio_sample":
                raise unknown_field(name, sorted((*VoiceBody.model_fields, *_CONSENT)))
        elif name in _CONSENT:
            consent[_CONSENT[name]] = value
        elif name != "consent":  # an id at OpenAI, whose client always sends it
            fields[name] = value
    return (fields | {"consent": consent} if consent else fields), clip


def _checked(fields: dict[str, Any]) -> VoiceBody:
    """Validate a form's fields. Errors have the form's own field names."""
    try:
        return VoiceBody.model_validate(fields)
    except ValidationError as error:
        names: dict[Any, Any] = {("consent", k): (flat,) for flat, k in _CONSENT.items()}
        faults = [{**one, "loc": names.get(one["loc"], one["loc"])} for one in error.errors()]
        raise validation_error(faults, rooted=False) from error


def openapi_body() -> dict[str, Any]:
    """Return OpenAPI's description of the body, as JSON and as a form, without ``$ref``."""
    schema = VoiceBody.model_json_schema()
    consent = schema.pop("$defs")["ConsentBody"]
    schema["properties"]["consent"] = {
        **consent,
        "description": schema["properties"]["consent"]["description"],
    }
    schema["required"].append("consent")
    flat = {k: v for k, v in schema["properties"].items() if k != "consent"}
    for field, name in _CONSENT.items():
        flat[field] = consent["properties"][name]
    flat["audio_sample"] = {"type": "string", "format": "binary", "description": "The clip."}
    required = [n for n in schema["required"] if n != "consent"]
    form = {
        "type": "object",
        "title": "VoiceForm",
        "properties": flat,
        "required": [*required, "consent_by", "consent_statement"],
    }
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


class ConsentInfo(BaseModel):
    """A recorded consent."""

    by: str
    statement: str
    at: str


class VoiceInfo(BaseModel):
    """A voice."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    type: Literal["audio_sample"] = "audio_sample"
    name: str = Field(description="What to ask for; the id does as well.")
    built_in: bool = Field(description="It comes with the checkpoint and cannot be deleted.")
    default: bool = Field(description="It speaks where no voice is asked for.")
    language: str | None
    description: str | None
    text: str | None = Field(description="What is said in its clip.")
    text_source: Literal["given", "recognised"] | None
    warning: str | None = Field(description="Why the likeness is poorer than it could be.")
    duration_s: float = Field(description="Seconds of its clip.")
    created_at: int | None = Field(description="In seconds since 1970.")
    consent: ConsentInfo | None


class VoiceName(BaseModel):
    """The id and name of a voice."""

    id: str = Field(description="What to ask for; the name does as well.")
    name: str


class VoiceList(BaseModel):
    """The voices, the default first, with details of those that have a clip."""

    voices: list[VoiceName] = Field(description="As Open WebUI reads them.")
    voice_names: list[str] = Field(description="The same as bare names.")
    object: Literal["list"] = "list"
    data: list[VoiceInfo]
    lasting: bool = Field(description="Whether added voices are kept when the server ends.")


class DeletedVoice(BaseModel):
    """A deleted voice."""

    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True


async def delete_voice(request: Request, runtime: Runtime, key: str) -> Voice:
    """Delete an added voice by its id or name. Raises RequestError."""
    require_own_page(request, runtime.settings.allowed_origins)
    caller = current_caller()
    is_admin = Scope.ADMIN in caller.scopes
    return await runtime.voices.library.remove(key, caller.tenant, may_remove_public=is_admin)


def voices_router(runtime: Runtime) -> GuardedRouter:
    """Create the routes of voices."""
    rule, errors = Rule(Scope.SPEAK, RESOURCE_TABLE), documented(ErrorBody)
    router = GuardedRouter(rule, route_class=ClipRoute, responses=errors, tags=["voices"])
    changes = declare(Rule(Scope.VOICES_WRITE, RESOURCE_TABLE))
    path, library = "/v1/audio/voices", runtime.voices.library

    def info(voice: Voice) -> VoiceInfo:
        consent = voice.consent
        # no warnings about a checkpoint's own voices
        warning = None if consent is None else runtime.voices.cloner.voice_warning(voice.text)
        return VoiceInfo(
            id=voice.id,
            name=voice.name,
            built_in=consent is None,
            default=voice.is_default,
            language=voice.language,
            description=voice.description,
            text=voice.text,
            text_source=voice.text_source,
            warning=warning,
            duration_s=round(voice.codes.shape[1] * runtime.engines.codec.spec.frame_s, 2),
            created_at=voice.created_at,
            consent=None if consent is None else ConsentInfo(**asdict(consent)),
        )

    def take() -> tuple[list[Voice], list[ListedVoice]]:
        caller = current_caller()
        described = [] if caller is NOBODY else library.voices(caller.tenant)
        return described, list_voices(runtime.voices)

    def shape(taken: tuple[list[Voice], list[ListedVoice]]) -> VoiceList:
        described, every = taken
        return VoiceList(
            voices=[VoiceName(id=one.id, name=one.name) for one in every],
            voice_names=[one.name for one in every],
            data=[info(voice) for voice in described],
            lasting=library.is_lasting,
        )

    body = VoiceListBody(runtime.voices, take, shape)

    @router.get(path, response_model=VoiceList)
    @declare(replace(rule, lists=True))
    async def voices() -> Response:
        """List the available voices, for clients without a key only their names."""
        return await body.response()

    @router.post(path, status_code=201, openapi_extra=openapi_body())
    @changes
    async def add(request: Request) -> VoiceInfo:
        """Make and store a voice from a clip. It can be used as soon as the response arrives."""
        require_own_page(request, runtime.settings.allowed_origins)
        runtime.lifecycle.require_ready()
        cloner = runtime.voices.cloner
        cloner.require_able("audio_sample")
        new = await read_new_voice(request, cloner.max_clip_bytes)
        caller = current_caller()
        most = runtime.accounts.limits(caller).max_voices
        with runtime.lifecycle.connection():  # for which a drain waits
            return info(await cloner.add(replace(new, tenant=caller.tenant, max_voices=most)))

    @router.get(path + "/{id}")
    async def voice(id: str) -> VoiceInfo:
        """Get a voice by id or name."""
        return info(library.find(id, current_caller().tenant))

    @router.delete(path + "/{id}")
    @changes
    async def delete(id: str, request: Request) -> DeletedVoice:
        """Delete an added voice permanently, with its file, codes and name."""
        deleted = await delete_voice(request, runtime, id)
        return DeletedVoice(id=deleted.id)

    return router

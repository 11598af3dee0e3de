"""Voices that clients of other vendors add from a clip, with the consent of whose voice it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import Request

from service.auth.caller import current_caller
from service.dialects.voices import new_voice
from service.errors import parse_json
from service.hosts import require_own_page
from service.runtime import Runtime
from service.transport.http_routes import is_form, read_form
from service.voices.store import Voice
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import invalid_field, missing_field, unsupported

#: Fields of a form that a voice takes; the vendors' others have no effect.
_FIELDS = (
    "name", "description", "language", "ref_text", "consent_by", "consent_statement", "consent_at",
)  # fmt: skip
#: As many files as ElevenLabs takes, to tell that one is too few for them, not a broken form.
_MAX_FILES = 25


async def clone_voice(
    request: Request, runtime: Runtime, clip_field: str, *, how: str, refused: Mapping[str, str]
) -> Voice:
    """Add the voice of a vendor's form.

    Args:
        request: A form with one file, and fields as our own API has them. A field ``labels`` may
            hold some of them as an object in JSON, whose other labels have no effect.
        runtime: The service's parts.
        clip_field: The vendor's name of the file's field.
        how: How the vendor's client sends the consent, for the error without it.
        refused: Fields that cannot be served, and why, unless they are empty or ``false``.

    Raises RequestError, CapacityError.
    """
    require_own_page(request, runtime.settings.allowed_origins)
    runtime.lifecycle.require_ready()
    cloner = runtime.voices.cloner
    cloner.require_able(clip_field)
    if not is_form(request):
        message = "The body must be a form, with the header Content-Type: multipart/form-data."
        raise RequestError(ErrorCode.INVALID_MESSAGE, message)
    form = await read_form(request, _MAX_FILES)
    clips = [value for _, value in form if isinstance(value, bytes)]
    sent = {name: value for name, value in form if isinstance(value, str)}
    for name, why in refused.items():
        if sent.get(name, "") not in ("", "false"):
            raise unsupported(name, why)
    if not clips:
        raise missing_field(clip_field)
    if len(clips) > 1:
        message = f"This server takes one clip of a voice, not {len(clips)}."
        raise unsupported(clip_field, message)
    known = _labels(sent.get("labels", "")) | sent
    fields = {name: known[name] for name in _FIELDS if name in known}
    if not {"consent_by", "consent_statement"} & fields.keys():
        message = f"A voice is kept only with the consent of whose it is: send {how}."
        raise RequestError(ErrorCode.CONSENT_REQUIRED, message, param="consent_by")
    caller = current_caller()
    most = runtime.accounts.limits(caller).max_voices
    voice = replace(new_voice(fields, clips[0]), tenant=caller.tenant, max_voices=most)
    with runtime.lifecycle.connection():  # for which a drain waits
        return await cloner.add(voice)


def _labels(text: str) -> dict[str, Any]:
    """Parse ElevenLabs' labels. Raises RequestError."""
    labels = parse_json(text) if text.strip() else None
    if labels is not None and not isinstance(labels, dict):
        raise invalid_field("labels", labels, "an object")
    return labels or {}


def form_schema(clip_field: str) -> dict[str, Any]:
    """Return OpenAPI's description of a vendor's form."""
    texts = {name: {"type": "string"} for name in (*_FIELDS, "labels")}
    clip = {"type": "string", "format": "binary", "description": "The clip."}
    schema = {
        "type": "object",
        "properties": {clip_field: clip, **texts},
        "required": [clip_field, "name"],
    }
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }

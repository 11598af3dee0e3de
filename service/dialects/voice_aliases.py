"""Resolution of voice names: other vendors' ids, aliases, and the voices of this server.

A client made for another service sends that service's voice ids. The settings ``voice_aliases``
and ``unknown_voice`` map them to voices of this server, in every protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.auth.caller import current_caller
from service.runtime import Runtime
from service.voices.store import VOICE_ID
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import describe, listed
from talker.request_builder import DEFAULT_VOICE


def resolve_voice(name: str | None, runtime: Runtime) -> str:
    """Return the voice for ``name``; for None or an empty name, the default voice.

    An alias, set by the operator, takes precedence over a voice of that name. If the settings allow
    it, an unknown name is the default voice, unless it looks like the id of a deleted voice.
    Otherwise raises RequestError (``unknown_voice``).
    """
    settings = runtime.settings
    if not name:
        return runtime.voices[0]
    voice = settings.voice_aliases.get(name, name)
    if _is_known(voice, runtime):
        return voice
    if settings.accepts_unknown_voices and not VOICE_ID.fullmatch(voice):
        return runtime.voices[0]
    message = f"There is no voice {describe(name)}; there is {listed(runtime.voices)}."
    raise RequestError(ErrorCode.UNKNOWN_VOICE, message, param="voice")


def is_replaced(name: str | None, runtime: Runtime) -> bool:
    """Whether ``name`` is unknown, so that the default voice replaces it."""
    voice = runtime.settings.voice_aliases.get(name, name) if name else DEFAULT_VOICE
    return not _is_known(voice, runtime)


def _is_known(voice: str, runtime: Runtime) -> bool:
    """Whether ``voice`` is a name, or the id of an added voice."""
    if voice in runtime.voices or voice == DEFAULT_VOICE:
        return True
    return runtime.library.is_known(voice, current_caller().tenant)


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """A voice in other vendors' lists. ``created_at``: seconds since 1970, for added voices."""

    id: str
    name: str
    language: str | None = None
    description: str | None = None
    created_at: int | None = None


def list_voices(runtime: Runtime) -> list[ListedVoice]:
    """Return all voices visible to the caller, the default first."""
    known = {voice.name: voice for voice in runtime.library.voices(current_caller().tenant)}
    return [
        ListedVoice(name, name)
        if (voice := known.get(name)) is None
        else ListedVoice(voice.id, name, voice.language, voice.description, voice.created_at)
        for name in runtime.voices
    ]


def find_voice(key: str, runtime: Runtime) -> ListedVoice:
    """Return the voice for requests with ``key``. Raises RequestError (``unknown_voice``)."""
    wanted = resolve_voice(key, runtime)
    every = list_voices(runtime)
    return next((voice for voice in every if wanted in (voice.id, voice.name)), every[0])


def mentions(query: str, fields: Iterable[str | None]) -> bool:
    """Whether a search for ``query`` finds a voice with these fields."""
    return any(query.lower() in field.lower() for field in fields if field is not None)

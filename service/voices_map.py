"""The names that other vendors' clients ask for, and the voices of this server.

A client made for another service sends that service's voice ids. The settings
``voice_aliases`` and ``unknown_voice`` say what they stand for here.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.auth.caller import current_caller
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError


def resolve_voice(name: str | None, runtime: Runtime) -> str:
    """The voice that ``name`` stands for; None and an empty name are the default voice.

    An alias wins over a voice of that name: the operator said so. A name that is nobody's
    comes back as it is, for the talker to refuse (``unknown_voice``), unless the setting
    ``unknown_voice`` gives such clients the default voice.
    """
    settings = runtime.settings
    if not name:
        return runtime.voices[0]
    voice = settings.voice_aliases.get(name, name)
    if settings.unknown_voice == "default" and not _is_known(voice, runtime):
        return runtime.voices[0]
    return voice


def _is_known(voice: str, runtime: Runtime) -> bool:
    """By its name, or by the id of one that was added."""
    tenant = current_caller().tenant
    return voice in runtime.voices or runtime.library.is_known(voice, tenant)


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """A voice as other vendors' clients list it. ``created_at``: seconds since 1970, of one
    that was added here.
    """

    id: str
    name: str
    language: str | None = None
    description: str | None = None
    created_at: int | None = None


def list_voices(runtime: Runtime) -> list[ListedVoice]:
    """All voices that the caller may know of, the default first."""
    known = {voice.name: voice for voice in runtime.library.voices(current_caller().tenant)}
    return [
        ListedVoice(name, name)
        if (voice := known.get(name)) is None
        else ListedVoice(voice.id, name, voice.language, voice.description, voice.created_at)
        for name in runtime.voices
    ]


def find_voice(key: str, runtime: Runtime) -> ListedVoice:
    """The voice that a request for ``key`` would be spoken with. Raises RequestError
    (``unknown_voice``).
    """
    wanted = resolve_voice(key, runtime)
    for voice in list_voices(runtime):
        if wanted in (voice.id, voice.name):
            return voice
    raise RequestError(ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice")

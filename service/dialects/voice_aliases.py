"""Resolution of voice names: other vendors' ids, aliases, and the voices of this server.

A client made for another service sends that service's voice ids. The settings
``voice_aliases`` and ``unknown_voice`` say what they stand for here, in every protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.auth.caller import current_caller
from service.runtime import Runtime
from service.voices.store import VOICE_ID
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import describe, listed

#: The checkpoint's own, however it is named.
DEFAULT_VOICE = "default"


def resolve_voice(name: str | None, runtime: Runtime) -> str:
    """The voice that ``name`` stands for; None and an empty name are the default voice.

    An alias wins over a voice of that name: the operator said so. An unknown name is the default
    voice where the settings say so, unless it is the id of a voice of this server that is gone.
    Raises RequestError (``unknown_voice``) otherwise.
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
    """Whether a client that asks for ``name`` gets the default voice because there is no other."""
    voice = runtime.settings.voice_aliases.get(name, name) if name else DEFAULT_VOICE
    return not _is_known(voice, runtime)


def _is_known(voice: str, runtime: Runtime) -> bool:
    """By its name, or by the id of one that was added."""
    if voice in runtime.voices or voice == DEFAULT_VOICE:
        return True
    return runtime.library.is_known(voice, current_caller().tenant)


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
    every = list_voices(runtime)
    return next((voice for voice in every if wanted in (voice.id, voice.name)), every[0])


def page_after(
    voices: Sequence[ListedVoice], after: str | None, size: int
) -> tuple[Sequence[ListedVoice], str | None]:
    """A page of ``voices``: those behind the one whose id is ``after``, or the first, and the id to
    ask for more after; None at their end.
    """
    ids = [voice.id for voice in voices]
    first = ids.index(after) + 1 if after in ids else 0
    page = voices[first : first + size]
    return page, page[-1].id if len(voices) > first + size else None

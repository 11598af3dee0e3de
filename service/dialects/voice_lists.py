"""Lists of voices in other vendors' formats, and searches in them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic_core import to_json
from starlette.responses import Response

from service.auth.caller import current_caller
from service.voices.names import Voices

#: Number of tenants whose lists are kept.
_BODIES = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """A voice in other vendors' lists. ``created_at``: seconds since 1970, for added voices."""

    id: str
    name: str
    language: str | None = None
    description: str | None = None
    created_at: int | None = None


def list_voices(voices: Voices) -> list[ListedVoice]:
    """Return all voices visible to the caller, the default first."""
    listed = {
        name: ListedVoice(name, name, speaker.language, speaker.description)
        for name, speaker in voices.speakers.items()
    }
    for voice in voices.library.voices(current_caller().tenant):
        listed[voice.name] = ListedVoice(
            voice.id, voice.name, voice.language, voice.description, voice.created_at
        )
    return [listed.get(name) or ListedVoice(name, name) for name in voices.names]


class VoiceListBody(Generic[T]):
    """The body of a response that lists all voices.

    It takes a fifth of a second for thousands of voices. So it is made in a thread, one at a time,
    and kept for the last few tenants until the voices change. ``shape`` makes the list from what
    ``take`` collects.
    """

    def __init__(self, voices: Voices, take: Callable[[], T], shape: Callable[[T], object]) -> None:
        self._voices, self._take, self._shape = voices, take, shape
        self._bodies: OrderedDict[str | None, tuple[object, bytes]] = OrderedDict()
        self._making = asyncio.Lock()

    async def response(self) -> Response:
        """Return the list for the current caller."""
        tenant = current_caller().tenant
        async with self._making:
            state = self._voices.library.version, self._voices.names
            known, body = self._bodies.pop(tenant, (None, b""))
            if known != state:
                taken = self._take()
                body = await asyncio.to_thread(lambda: to_json(self._shape(taken)))
            self._bodies[tenant] = state, body
            while len(self._bodies) > _BODIES:
                self._bodies.popitem(last=False)
        return Response(body, media_type="application/json")


def find_voice(key: str, voices: Voices) -> ListedVoice:
    """Return the voice for requests with ``key``. Raises RequestError (``unknown_voice``)."""
    wanted = voices.resolve(key)
    every = list_voices(voices)
    return next((voice for voice in every if wanted in (voice.id, voice.name)), every[0])


def mentions(query: str, fields: Iterable[str | None]) -> bool:
    """Whether a search for ``query`` finds a voice with these fields."""
    return any(query.lower() in field.lower() for field in fields if field is not None)

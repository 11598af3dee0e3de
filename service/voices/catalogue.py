"""The voices that there are, in memory: who may know of which, and what to speak with.

This is bounded: a voice is at most some 12 KiB of codes, and ``max_voices`` of them may be added.
"""

from __future__ import annotations

import logging

from service.voices.file import VOICE_ID, Voice
from streaming.delay import apply_delay
from streaming.errors import ErrorCode, RequestError
from streaming.spec import CodecSpec
from talker.intake import DEFAULT_VOICE
from talker.prompts import ReferenceVoice

log = logging.getLogger(__name__)


class VoiceCatalogue:
    """Implements ``talker.intake.VoiceSource``. ``spec`` is set before the first voice."""

    def __init__(self, max_voices: int) -> None:
        self._max_voices = max_voices
        self._built_in: dict[str, Voice] = {}
        self._added: dict[str, Voice] = {}
        #: Of added voices, by whose they are and their name.
        self._ids: dict[tuple[str | None, str], str] = {}
        self._spoken: dict[str, ReferenceVoice] = {}
        self._spec: CodecSpec | None = None

    # -- speaking

    def names(self) -> list[str]:
        """The names that are everybody's, without ``default``: the checkpoint's, then the added
        ones.
        """
        built_in = (name for name in self._built_in if name != DEFAULT_VOICE)
        return [*built_in, *self._added_names(None)]

    def own_names(self, tenant: str | None) -> list[str]:
        """The names that a tenant has given; only it knows of them."""
        return [] if tenant is None else self._added_names(tenant)

    def _added_names(self, tenant: str | None) -> list[str]:
        return sorted(name for owner, name in self._ids if owner == tenant)

    def get(self, name: str) -> ReferenceVoice | None:
        """What to speak with. ``default`` is the checkpoint's default voice, if it has one; ids
        do as well as the names of added voices that are everybody's. A tenant's voices are
        found by their ids alone, which ``resolve`` gives to the tenant and to nobody else.
        """
        if name == DEFAULT_VOICE:
            chosen = (v.name for v in self._built_in.values() if v.is_default)
            name = next(chosen, DEFAULT_VOICE)
        return self._spoken.get(self._ids.get((None, name), name))

    def resolve(self, key: str, tenant: str | None) -> str:
        """What to ``get`` for what ``tenant`` calls ``key``. Raises RequestError
        (``unknown_voice``) if it is another's; a key that is nobody's comes back as it is.
        """
        own = None if tenant is None else self._ids.get((tenant, key))
        if own is None and not self._is_visible(key, tenant):
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )
        return own or key

    def is_known(self, key: str, tenant: str | None) -> bool:
        """Whether ``tenant`` can speak with what it calls ``key``."""
        if tenant is not None and (tenant, key) in self._ids:
            return True
        return self._is_visible(key, tenant) and self.get(key) is not None

    def _is_visible(self, id: str, tenant: str | None) -> bool:
        added = self._added.get(id)
        return added is None or added.tenant in (None, tenant)

    # -- listing

    def voices(self, tenant: str | None = None) -> list[Voice]:
        """All voices that ``tenant`` may know of, in the order of ``names`` and ``own_names``."""
        owners = (None,) if tenant is None else (None, tenant)
        ids = [self._ids[owner, name] for owner in owners for name in self._added_names(owner)]
        return [*self._built_in.values(), *(self._added[id] for id in ids)]

    def find(self, key: str, tenant: str | None = None) -> Voice:
        """The voice that ``tenant`` calls by that name or id. Raises RequestError
        (``unknown_voice``).
        """
        own = None if tenant is None else self._ids.get((tenant, key))
        id = own or self._ids.get((None, key), key)
        voice = self._built_in.get(key) or self._added.get(id)
        if voice is None or voice.tenant not in (None, tenant):
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name or id.", param="id"
            )
        return voice

    def require_free(self, name: str, tenant: str | None = None) -> None:
        """Raise RequestError (``voice_exists``, ``too_many_voices``) if it cannot be added."""
        is_taken = (None, name) in self._ids or (tenant, name) in self._ids
        # who asks for a voice by its id must not hear one that was named so later
        is_taken = is_taken or VOICE_ID.fullmatch(name) is not None
        if is_taken or name == DEFAULT_VOICE or name in self._built_in:
            raise RequestError(
                ErrorCode.VOICE_EXISTS, "There is a voice of that name already.", param="name"
            )
        if len(self._added) >= self._max_voices:
            raise RequestError(
                ErrorCode.TOO_MANY_VOICES, f"This server keeps {self._max_voices} voices at most."
            )

    def _take_built_in(self, voice: Voice) -> None:
        self._built_in[voice.name] = voice
        self._spoken[voice.name] = self._reference(voice)

    def _take(self, voice: Voice) -> None:
        self._added[voice.id] = voice
        self._ids[voice.tenant, voice.name] = voice.id
        self._spoken[voice.id] = self._reference(voice)

    def _drop(self, id: str) -> None:
        voice = self._added.pop(id)
        del self._ids[voice.tenant, voice.name], self._spoken[id]

    def _fits(self, voice: Voice) -> bool:
        spec = self._spec
        assert spec is not None
        codes = voice.codes
        fits = codes.shape[0] == spec.num_codebooks and bool(
            ((codes >= 0) & (codes < spec.codebook_size)).all()
        )
        if not fits:
            log.error("a voice does not fit the codec: %s", voice.id)
        return fits

    def _reference(self, voice: Voice) -> ReferenceVoice:
        assert self._spec is not None
        size = self._spec.codebook_size
        return ReferenceVoice(apply_delay(voice.codes.T, size, size + 1), voice.text)

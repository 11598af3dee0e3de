"""Voices by the names that callers use: other vendors' ids, aliases, and the voices of this server.

A client made for another service sends that service's voice ids. The settings ``voice_aliases``
and ``unknown_voice`` map them to voices of this server, in every protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from service.auth.caller import current_caller
from service.engines.chunking import max_segment_chars
from service.engines.contracts import Engines
from service.settings import Settings
from service.voices.clip_reader import ClipReader
from service.voices.cloning import Cloner
from service.voices.registry import VoiceLibrary
from service.voices.shipped import ShippedVoicesError, encode_shipped
from service.voices.store import VOICE_ID
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError
from streaming.ports import OwnSpeaker, Reference
from streaming.protocol.field_errors import describe, listed
from talker.request_builder import DEFAULT_VOICE

log = logging.getLogger(__name__)
#: A reference of a few seconds, for the warm-up.
_STAND_IN_FRAMES, _STAND_IN_TEXT = 50, "Nobody says this."


class Voices:
    """The voices that the current caller may name. ``library`` is the source of the talker's."""

    def __init__(self, settings: Settings, engines: Engines, library: VoiceLibrary) -> None:
        self.library = library
        self._settings, self._engines = settings, engines
        self._cloner: Cloner | None = None

    async def open(self) -> None:
        """Load the voices, once the engines have started. Raises BackendError."""
        talker, codec = self._engines.talker, self._engines.codec
        await self.library.open(codec.spec, codec.fingerprint, talker.spec.folder)
        reader = ClipReader(codec.spec.sample_rate)
        chars = max_segment_chars(self._settings, talker)
        recogniser = self._engines.recogniser
        self._cloner = Cloner(self.library, reader, codec, talker, chars, recogniser)
        # the project's own voices are for checkpoints without any
        has_own = self.library.has_built_in or not talker.spec.max_references
        is_bare = talker.spec.folder is not None and not has_own
        if self._settings.shipped_voices == "off" or not is_bare:
            return
        try:
            voices = await encode_shipped(codec, reader, check=self._cloner.check)
        except ShippedVoicesError as error:
            raise BackendError(ErrorCode.STORAGE_FAILED, str(error)) from error
        self.library.add_built_in(voices, chooses=not talker.spec.needs_reference)
        log.info("shipped voices", extra={"voices": [voice.name for voice in voices]})

    def stand_in(self) -> Reference | None:
        """Return a reference for the warm-up, and for checks, of a model that needs one; None if
        its default voice, or its own, will do.
        """
        talker, codec = self._engines.talker.spec, self._engines.codec.spec
        if not talker.needs_reference or self.library.get(DEFAULT_VOICE) is not None:
            return None
        vector = np.zeros(talker.vector_size, np.float32) if talker.vector_size else None
        codes = np.zeros((codec.num_codebooks, _STAND_IN_FRAMES), np.int16)
        return Reference(codes, _STAND_IN_TEXT, vector)

    @property
    def cloner(self) -> Cloner:
        """Makes voices from clips. Raises CapacityError during the start."""
        if self._cloner is None:
            raise CapacityError(ErrorCode.NOT_READY, "The server is not ready yet.")
        return self._cloner

    @property
    def names(self) -> Sequence[str]:
        """Names of the voices that the caller may use; the first is the default."""
        own = self.library.own_names(current_caller().tenant)
        return tuple(dict.fromkeys((*self._engines.talker.voices, *own)))

    @property
    def speakers(self) -> Mapping[str, OwnSpeaker]:
        """The model's own speakers by name; none are known during the start."""
        return {} if self._cloner is None else self._engines.talker.spec.speakers

    def resolve(self, name: str | None) -> str:
        """Return the voice for ``name``; for None or an empty name, the default voice.

        An alias, set by the operator, takes precedence over a voice of that name. The model's own
        names may be written in any case, as their makers do. If the settings
        allow it, an unknown name is the default voice, unless it looks like the id of a deleted
        voice. Otherwise raises RequestError (``unknown_voice``).
        """
        if not name:
            return self.names[0]
        if (voice := self._find(name)) is not None:
            return voice
        voice = self._settings.voice_aliases.get(name, name)
        if self._settings.accepts_unknown_voices and not VOICE_ID.fullmatch(voice):
            return self.names[0]
        message = f"There is no voice {describe(name)}; there is {listed(self.names)}."
        raise RequestError(ErrorCode.UNKNOWN_VOICE, message, param="voice")

    def replacement_warning(self, name: str | None) -> str | None:
        """Return a warning for people if the default voice replaces ``name``, else None."""
        if not self.is_replaced(name):
            return None
        there = listed(self.names)
        return f"There is no voice {describe(name)}, so the default one speaks; there is {there}."

    def is_replaced(self, name: str | None) -> bool:
        """Whether ``name`` is unknown, so that the default voice replaces it."""
        return self._find(name or DEFAULT_VOICE) is None

    def _find(self, name: str) -> str | None:
        """Return the voice that has a name, or is aliased by it; None if there is none."""
        voice = self._settings.voice_aliases.get(name, name)
        if voice == DEFAULT_VOICE or self.library.is_known(voice, current_caller().tenant):
            return voice
        return next((own for own in (voice, voice.lower()) if own in self.names), None)

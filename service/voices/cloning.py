"""Voice cloning: decode a clip, encode it, transcribe it if necessary, check its length."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.engines.contracts import RunningCodec, RunningTalker, Transcriber
from service.voices.clip_reader import ClipReader, decode_base64
from service.voices.registry import VoiceLibrary
from service.voices.store import Consent, Voice
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.lru_cache import LruCache
from streaming.ports import Reference, SpeechRequest
from streaming.protocol.field_errors import unsupported

log = logging.getLogger(__name__)
#: Number of cached one-off references, so that a client may send the same with each text.
_REMEMBERED = 32
#: Word of the text with which references are checked.
_WORD = "abcdefghij "
#: Warning for clips without a text.
NO_TEXT = (
    "The clip came without its text, and this server has no recogniser: the likeness is poorer."
)
#: Warning for voices whose clips came without a text, and in which no words were recognised.
UNHEARD = (
    "The clip came without its text, and the recogniser did not supply it: the likeness is poorer."
)
#: Makes the references of a context, one for each speaker of its text. Raises TalkwireError.
Prepare = Callable[[], Awaitable[tuple[Reference, ...]]]


@dataclass(frozen=True, slots=True)
class NewVoice:
    """A voice to add. A ``tenant`` may have ``max_voices``; without one, the voice is public."""

    name: str
    clip: bytes
    consent: Consent
    text: str | None = None
    language: str | None = None
    description: str | None = None
    tenant: str | None = None
    max_voices: int | None = None


class _Made(NamedTuple):
    """A reference and the source of its text. ``is_unheard``: the recogniser failed, so that
    another try may find a text.
    """

    reference: Reference
    text_source: Literal["given", "recognised"] | None
    is_unheard: bool


class Cloner:
    """Makes references from clips, and voices from references, that leave room for a text of
    ``longest_text`` characters. Without a ``transcriber``, clips may remain without a text.
    """

    def __init__(
        self,
        library: VoiceLibrary,
        reader: ClipReader,
        codec: RunningCodec,
        talker: RunningTalker,
        longest_text: int,
        transcriber: Transcriber | None = None,
    ) -> None:
        self._library, self._reader = library, reader
        self.max_clip_bytes = reader.limits.max_bytes
        self._codec, self._talker = codec, talker
        self._longest_text, self._transcriber = longest_text, transcriber
        self._known: LruCache[bytes, Reference] = LruCache(_REMEMBERED)
        self._adding: set[tuple[str | None, str]] = set()

    @property
    def is_able(self) -> bool:
        """Whether the model can imitate a clip."""
        return self._codec.can_encode and self._talker.spec.max_references > 0

    def require_able(self, param: str) -> None:
        """Raise RequestError (``unsupported``) if this model takes no references, or its codec has
        no encoder.
        """
        if not self.is_able:
            raise unsupported(param, "The served model cannot clone voices.")

    def text_warning(self, texts: Iterable[str | None]) -> str | None:
        """Return a warning if any of the clips with these texts will remain without one."""
        if self._transcriber is not None or all((text or "").strip() for text in texts):
            return None
        return NO_TEXT

    def voice_warning(self, text: str | None) -> str | None:
        """Return a warning for an added voice that has no ``text``, else None."""
        if text:
            return None
        return NO_TEXT if self._transcriber is None else UNHEARD

    def require_count(self, count: int, param: str) -> None:
        """Raise RequestError (``unsupported``) if the model takes fewer references."""
        most = self._talker.spec.max_references
        if count > most:
            several = "one reference" if most == 1 else f"{most} references at most"
            raise unsupported(param, f"The served model takes {several}, not {count}.")

    def prepare(
        self, audio: str, text: str | None, param: str, *, vector_only: bool = False
    ) -> Prepare:
        """Return a function that makes the reference of a base64 clip. Raises RequestError."""
        self.require_able(param)
        clip = decode_base64(audio, self.max_clip_bytes, param)
        return self.prepare_bytes(clip, text, param, vector_only=vector_only)

    def prepare_bytes(
        self, clip: bytes, text: str | None, param: str, *, vector_only: bool = False
    ) -> Prepare:
        """Return a function that makes the reference of a clip. If it is to be the speaker's
        ``vector_only``, it gets no text. Raises RequestError.
        """
        self.require_able(param)

        async def made() -> tuple[Reference, ...]:
            spoken = None if vector_only else (text or "").strip() or None
            return (await self.one_off(clip, spoken, param, vector_only=vector_only),)

        return made

    def prepare_together(self, each: Sequence[Prepare]) -> Prepare:
        """Return a function that makes several references, or raises RequestError if they leave no
        room for a text.
        """

        async def made() -> tuple[Reference, ...]:
            references = [one for prepare in each for one in await prepare()]
            if len(references) > 1:
                self.check(*references)
            return tuple(references)

        return made

    async def one_off(
        self, clip: bytes, text: str | None, param: str, *, vector_only: bool = False
    ) -> Reference:
        """Make a one-off reference. The last few are cached, only in memory, unless the recogniser
        has failed. Raises RequestError, for an unreadable clip with ``param``, CapacityError,
        BackendError.
        """
        kind = b"\1" if vector_only else b"\0"
        digest = hashlib.sha256(clip + kind + (text or "").encode(errors="replace")).digest()
        if (known := self._known.get(digest)) is not None:
            return known
        made = await self._reference(clip, text, param, recognises=not vector_only)
        if not made.is_unheard:
            self._known[digest] = made.reference
        return made.reference

    async def add(self, new: NewVoice) -> Voice:
        """Add a voice, which can be used when this returns. Raises RequestError, CapacityError,
        BackendError, without adding anything.
        """
        self._library.require_free(new.name, new.tenant, new.max_voices)
        if (new.tenant, new.name) in self._adding:
            message = "A voice of that name is being added."
            raise RequestError(ErrorCode.VOICE_EXISTS, message, param="name")
        self._adding.add((new.tenant, new.name))
        try:
            made = await self._reference(new.clip, new.text, "audio_sample")
            reference = made.reference
            voice = Voice(
                self._library.new_id(),
                new.name,
                reference.codes,
                reference.text,
                new.language,
                new.description,
                created_at=int(time.time()),
                codec=self._codec.fingerprint,
                text_source=made.text_source,
                consent=new.consent,
                tenant=new.tenant,
                vector=reference.vector,
            )
            await self._library.add(voice, new.max_voices)
        finally:
            self._adding.discard((new.tenant, new.name))
        log.info("voice added", extra={"voice": voice.id})
        return voice

    async def _reference(
        self, clip: bytes, text: str | None, param: str, *, recognises: bool = True
    ) -> _Made:
        """Make a reference of the clip in the field ``param``."""
        try:
            samples = await self._reader.read(clip)
        except RequestError as error:
            error.param = param
            raise
        codes, vector = await self._codec.encode(samples)
        source: Literal["given", "recognised"] | None = "given" if text else None
        is_unheard = False
        if not text and recognises and self._transcriber is not None:
            try:
                text = await self._transcriber.transcribe(samples, self._codec.spec.sample_rate)
                source = "recognised" if text else None
            except TalkwireError as error:  # the voice can be used without a text
                log.warning("a clip has no transcript: %s", error)
                is_unheard = True
        reference = Reference(codes, text or None, vector)
        owner, dot, _ = param.rpartition(".")
        self.check(reference, text_param=f"{owner}.text" if dot else "ref_text")
        return _Made(reference, source, is_unheard)

    def check(self, reference: Reference, *others: Reference, text_param: str = "ref_text") -> None:
        """Raise RequestError, for an unusable text of the clip with ``text_param``, unless the
        model can speak the longest text with these references.
        """
        trial = (_WORD * self._longest_text)[: self._longest_text]
        request = SpeechRequest("trial", trial, reference=reference, other_references=others)
        try:
            self._talker.check(request)
        except RequestError as error:
            if error.code is ErrorCode.TEXT_TOO_LONG:
                what = "clips and their texts" if others else "clip and its text"
                message = f"The {what} are too long for this model."
                raise RequestError(ErrorCode.INVALID_AUDIO, message) from error
            if error.code is ErrorCode.INVALID_TEXT:
                message = "The clip's text cannot be used."
                raise RequestError(ErrorCode.INVALID_TEXT, message, param=text_param) from error
            raise

"""Voice cloning: decode a clip, encode it, transcribe it if necessary, check its length."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from service.engines import RunningCodec, RunningTalker
from service.voices.clip_reader import ClipReader, decode_base64
from service.voices.registry import VoiceLibrary
from service.voices.store import Consent, Voice
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.ports import Reference, SpeechRequest
from streaming.protocol.field_errors import unsupported
from streaming.spec import Samples

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


class Transcriber(Protocol):
    """A recogniser of the words in a clip. It may start with the first clip."""

    async def prepare(self) -> None:
        """Find the model. Raises BackendError if it cannot be used."""

    async def stop(self) -> None:
        """Stop it."""

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        """Return the text, which may be empty. Raises CapacityError, BackendError."""


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
        self._known: OrderedDict[bytes, Reference] = OrderedDict()
        self._adding: set[tuple[str | None, str]] = set()

    def require_able(self, param: str) -> None:
        """Raise RequestError (``unsupported``) if this model's codec has no encoder."""
        if not self._codec.can_encode:
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
        most = self._talker.max_references
        if count > most:
            several = "one reference" if most == 1 else f"{most} references at most"
            raise unsupported(param, f"The served model takes {several}, not {count}.")

    def prepare(self, audio: str, text: str | None, param: str) -> Prepare:
        """Return a function that makes the reference of a base64 clip. Raises RequestError."""
        self.require_able(param)
        clip = decode_base64(audio, self.max_clip_bytes, param)

        async def made() -> tuple[Reference, ...]:
            return (await self.one_off(clip, (text or "").strip() or None, param),)

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

    async def one_off(self, clip: bytes, text: str | None, param: str) -> Reference:
        """Make a one-off reference. The last few are cached, only in memory, unless the recogniser
        has failed. Raises RequestError, for an unreadable clip with ``param``, CapacityError,
        BackendError.
        """
        digest = hashlib.sha256(clip + b"\0" + (text or "").encode(errors="replace")).digest()
        if digest not in self._known:
            made = await self._reference(clip, text, param)
            if made.is_unheard:
                return made.reference
            self._known[digest] = made.reference
        self._known.move_to_end(digest)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return self._known[digest]

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
            )
            await self._library.add(voice, new.max_voices)
        finally:
            self._adding.discard((new.tenant, new.name))
        log.info("voice added", extra={"voice": voice.id})
        return voice

    async def _reference(self, clip: bytes, text: str | None, param: str) -> _Made:
        """Make a reference of the clip in the field ``param``."""
        try:
            samples = await self._reader.read(clip)
        except RequestError as error:
            error.param = param
            raise
        codes = await self._codec.encode(samples)
        source: Literal["given", "recognised"] | None = "given" if text else None
        is_unheard = False
        if not text and self._transcriber is not None:
            try:
                text = await self._transcriber.transcribe(samples, self._codec.spec.sample_rate)
                source = "recognised" if text else None
            except TalkwireError as error:  # the voice can be used without a text
                log.warning("a clip has no transcript: %s", error)
                is_unheard = True
        reference = Reference(codes, text or None)
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

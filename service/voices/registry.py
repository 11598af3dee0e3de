"""The registry of voices in memory: visibility by tenant, and lookup.

Memory is bounded: a voice has at most some 12 KiB of codes, and ``max_voices`` may be added.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import insort
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from service.voices.store import (
    MAX_FILE_BYTES,
    VOICE_ID,
    Voice,
    VoiceFileError,
    VoiceFolder,
    unpack_built_in,
)
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.protocol.field_errors import unsupported
from streaming.spec import CodecSpec
from talker.prompts import ReferenceVoice
from talker.request_builder import DEFAULT_VOICE, SMART_VOICE

log = logging.getLogger(__name__)
#: Interval at which the changes of other servers that share the folder are read.
REFRESH_S = 5.0


class VoiceLibrary:
    """The voices, a ``talker.request_builder.VoiceSource``. All methods must be called on one event
    loop. Without ``folder``, added voices are lost at the end of the service.
    """

    def __init__(self, folder: Path | None, max_voices: int, refresh_s: float = REFRESH_S) -> None:
        self._folder = None if folder is None else VoiceFolder(folder)
        #: Whether added voices are stored permanently.
        self.is_lasting = folder is not None
        self._max_voices, self._refresh_s = max_voices, refresh_s
        self._built_in: dict[str, Voice] = {}
        self._added: dict[str, Voice] = {}
        #: Ids of added voices by (tenant, name).
        self._ids: dict[tuple[str | None, str], str] = {}
        #: Sorted names of added voices by tenant.
        self._names: dict[str | None, list[str]] = {}
        #: Number of changes so far.
        self.version = 0
        self._spoken: dict[str, ReferenceVoice] = {}
        self._spec: CodecSpec | None = None
        #: Whether ``smart_voice`` names the model's own choice: the default is a shipped clip.
        self._offers_smart_voice = False
        #: Ids in the folder that do not fit this codec; each is logged once.
        self._foreign: set[str] = set()
        self._unused: set[str] = set()
        self._codec = ""
        self._lock = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    # -- speaking

    def names(self) -> list[str]:
        """Return public names without ``default``: built-in ones, ``smart_voice``, added ones."""
        built_in = [name for name in self._built_in if name != DEFAULT_VOICE]
        smart = [SMART_VOICE] if self._offers_smart_voice else []
        return [*built_in, *smart, *self._added_names(None)]

    def own_names(self, tenant: str | None) -> list[str]:
        """Return the names of a tenant's voices, which are visible only to it."""
        return [] if tenant is None else self._added_names(tenant)

    def _added_names(self, tenant: str | None) -> list[str]:
        return self._names.get(tenant, [])

    def get(self, name: str) -> ReferenceVoice | None:
        """Return a voice for the talker: ``default`` (the checkpoint's), or one by its id or, if
        public, its name. ``resolve`` gives only a voice's own tenant its id.
        """
        if name == DEFAULT_VOICE:
            name = next((v.name for v in self._built_in.values() if v.is_default), name)
        return self._spoken.get(self._ids.get((None, name), name))

    def resolve(self, key: str, tenant: str | None) -> str:
        """Return the name for ``get`` of the voice that ``tenant`` calls ``key``; an unknown key is
        returned unchanged. Raises RequestError (``unknown_voice``) for another tenant's voice.
        """
        own = None if tenant is None else self._ids.get((tenant, key))
        if own is None and not self._is_visible(key, tenant):
            message = "There is no voice of that name."
            raise RequestError(ErrorCode.UNKNOWN_VOICE, message, param="voice")
        return own or key

    def is_known(self, key: str, tenant: str | None) -> bool:
        """Whether ``tenant`` can use a voice that it calls ``key``."""
        if tenant is not None and (tenant, key) in self._ids:
            return True
        return self._is_visible(key, tenant) and self.get(key) is not None

    def _is_visible(self, id: str, tenant: str | None) -> bool:
        added = self._added.get(id)
        return added is None or added.tenant in (None, tenant)

    # -- listing

    def voices(self, tenant: str | None = None) -> list[Voice]:
        """Return all voices visible to ``tenant``, in the order of ``names`` and ``own_names``."""
        owners = (None,) if tenant is None else (None, tenant)
        ids = [self._ids[owner, name] for owner in owners for name in self._added_names(owner)]
        return [*self._built_in.values(), *(self._added[id] for id in ids)]

    def find(self, key: str, tenant: str | None = None) -> Voice:
        """Find the voice that ``tenant`` calls ``key``. Raises RequestError (``unknown_voice``)."""
        id = self._ids.get((tenant, key)) or self._ids.get((None, key), key)
        voice = self._added.get(id) or self._built_in.get(key)
        if voice is None or voice.tenant not in (None, tenant):
            message = "There is no voice of that name or id."
            raise RequestError(ErrorCode.UNKNOWN_VOICE, message, param="id")
        return voice

    def require_free(
        self, name: str, tenant: str | None = None, max_own: int | None = None
    ) -> None:
        """Raise RequestError (``voice_exists``, ``too_many_voices``) if it cannot be added by a
        tenant that may have ``max_own`` voices.
        """
        is_taken = (None, name) in self._ids or (tenant, name) in self._ids
        # a name must not shadow the id of another voice
        is_taken = is_taken or VOICE_ID.fullmatch(name) is not None
        if is_taken or name in (DEFAULT_VOICE, SMART_VOICE) or name in self._built_in:
            message = "There is a voice of that name already."
            raise RequestError(ErrorCode.VOICE_EXISTS, message, param="name")
        if len(self._added) >= self._max_voices:
            message = f"This server keeps {self._max_voices} voices at most."
            raise RequestError(ErrorCode.TOO_MANY_VOICES, message)
        if max_own is not None and len(self.own_names(tenant)) >= max_own:
            message = f"This tenant may keep {max_own} voices at most."
            raise RequestError(ErrorCode.TOO_MANY_VOICES, message)

    def _take_built_in(self, voice: Voice) -> None:
        self._built_in[voice.name] = voice
        self._spoken[voice.name] = _spoken(voice)
        self.version += 1

    def _take(self, voice: Voice) -> None:
        self._added[voice.id] = voice
        self._ids[voice.tenant, voice.name] = voice.id
        self._spoken[voice.id] = _spoken(voice)
        insort(self._names.setdefault(voice.tenant, []), voice.name)
        self.version += 1

    def _drop(self, id: str) -> None:
        voice = self._added.pop(id)
        del self._ids[voice.tenant, voice.name], self._spoken[id]
        names = self._names[voice.tenant]
        names.remove(voice.name)
        if not names:
            del self._names[voice.tenant]
        self.version += 1

    def _fits(self, voice: Voice) -> bool:
        spec, codes = self._spec, voice.codes
        assert spec is not None
        if codes.shape[0] == spec.num_codebooks and spec.are_codes(codes):
            return True
        log.error("a voice does not fit the codec: %s", voice.id)
        return False

    # -- loading and changing

    async def require_folder(self) -> None:
        """Create the folder, if one is set. Raises BackendError (``storage_failed``) if it cannot
        be used.
        """
        if self._folder is not None:
            with _usable():
                await asyncio.to_thread(self._folder.open)

    async def open(self, spec: CodecSpec, codec: str, checkpoint: Path | None) -> None:
        """Load all voices of the codec with the fingerprint ``codec``. Raises BackendError
        (``storage_failed``) if the folder cannot be used.
        """
        self._spec, self._codec = spec, codec
        if checkpoint is not None:
            for voice in await asyncio.to_thread(_read_built_in, checkpoint / "voices"):
                if self._fits(voice):
                    self._take_built_in(voice)
        if self._folder is not None:
            await self.require_folder()  # which may have gone while the engines were started
            with _usable():
                await self._refresh()
            self._refreshing = asyncio.create_task(self._keep_refreshing())
        log.info("voices", extra={"built_in": len(self._built_in), "added": len(self._added)})

    @property
    def has_built_in(self) -> bool:
        """Whether the model has voices of its own."""
        return bool(self._built_in)

    def add_built_in(self, voices: Iterable[Voice], *, chooses: bool = True) -> None:
        """Add shipped voices like the checkpoint's own, after ``open``; the first is the default.
        Voices that do not fit the codec, or have the name of an added voice, are omitted. From then
        on ``smart_voice`` names the voice that the model chooses itself, if it ``chooses`` any.
        """
        has_default = False
        for voice in voices:
            if self._fits(voice) and (None, voice.name) not in self._ids:
                self._take_built_in(replace(voice, is_default=not has_default))
                has_default = True
        self._offers_smart_voice |= has_default and chooses

    async def close(self) -> None:
        """Stop reading the folder."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing

    @staticmethod
    def new_id() -> str:
        """Return a new id for a voice to add."""
        return f"voice_{secrets.token_hex(8)}"

    async def add(self, voice: Voice, max_own: int | None = None) -> None:
        """Store a voice, which can be used when this returns. Raises RequestError like
        ``require_free``, BackendError (``storage_failed``).
        """
        async with self._changing("written"):
            await self._take_over()
            self.require_free(voice.name, voice.tenant, max_own)
            if self._folder is not None:
                await _to_its_end(self._folder.write, voice)
            self._take(voice)

    async def remove(
        self, key: str, tenant: str | None = None, *, may_remove_public: bool = True
    ) -> Voice:
        """Delete and return an added voice, also a public one if ``may_remove_public``.

        Raises RequestError (``unknown_voice``; ``unsupported`` for one of the checkpoint's,
        ``forbidden``), BackendError (``storage_failed``), without changing anything.
        """
        async with self._changing("removed"):
            await self._take_over()
            voice = self.find(key, tenant)
            if voice.id not in self._added:
                raise unsupported("id", "A voice of the checkpoint cannot be deleted.")
            if voice.tenant is None and not may_remove_public:
                message = "This voice is everybody's: it takes an admin's key."
                raise RequestError(ErrorCode.FORBIDDEN, message)
            if self._folder is not None:
                await _to_its_end(self._folder.delete, voice)
            self._drop(voice.id)
        return voice

    # -- the folder

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._refresh()
            except Exception as error:  # without a free thread, too, it is read later
                log.error("the folder of voices cannot be read: %s", error)

    async def _refresh(self) -> None:
        async with self._lock:
            await self._take_over()

    async def _take_over(self) -> None:
        """Apply the changes that other servers made in the folder."""
        if self._folder is None:
            return
        known = [*self._added, *self._foreign]
        new, gone = await asyncio.to_thread(self._folder.changes, known)
        for id in gone:
            self._foreign.discard(id)
            if id in self._added:
                self._drop(id)
        for voice in new:
            if voice.codec != self._codec or not self._fits(voice):
                log.warning("a voice is of another codec: %s", voice.id)
                self._foreign.add(voice.id)
                continue
            try:
                self.require_free(voice.name, voice.tenant)
                self._take(voice)
            except RequestError:
                if voice.id not in self._unused:  # it may be usable later
                    self._unused.add(voice.id)
                    log.warning("a voice's name is taken, or there is no room for it: %s", voice.id)

    @asynccontextmanager
    async def _changing(self, verb: str) -> AsyncIterator[None]:
        """Lock the voices against other changes, here and on other servers, during the block.
        Raises BackendError (``storage_failed``) if a voice could not be ``verb``, e.g. written.
        """
        async with self._lock:
            if self._folder is None:
                yield
                return
            held = self._folder.lock()
            try:
                try:
                    await _to_its_end(held.acquire)
                    yield
                finally:
                    held.release()
            except OSError as error:
                log.error("a voice could not be %s: %s", verb, error)
                message = f"The voice's file could not be {verb}."
                raise BackendError(ErrorCode.STORAGE_FAILED, message) from error


def _spoken(voice: Voice) -> ReferenceVoice:
    return ReferenceVoice(voice.codes.T, voice.text, voice.vector)


@contextmanager
def _usable() -> Iterator[None]:
    """Raise the block's OSError as BackendError (``storage_failed``), for operators."""
    try:
        yield
    except OSError as error:
        message = f"The setting voices_dir names no folder that can be used ({error})."
        raise BackendError(ErrorCode.STORAGE_FAILED, message) from error


def _read_built_in(folder: Path) -> Iterable[Voice]:
    voices = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                voices.append(unpack_built_in(file.read(MAX_FILE_BYTES + 1)))
        except (OSError, VoiceFileError) as error:
            log.error("a voice of the checkpoint cannot be used: %s: %s", path.name, error)
    return voices


async def _to_its_end(work: Callable[..., object], *args: object) -> None:
    """Run blocking work in a thread. A cancellation takes effect only after its end."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise

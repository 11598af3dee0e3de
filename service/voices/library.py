"""All voices that can be asked for by name: the checkpoint's own, and those that were added.

A voice that is deleted is gone at once: from the names, from memory and from the disk. An
utterance that speaks with it just then is spoken to its end; the next one hears
``unknown_voice``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from service.voices.catalogue import VoiceCatalogue
from service.voices.file import MAX_FILE_BYTES, Voice, VoiceFileError, unpack_built_in
from service.voices.folder import VoiceFolder
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.spec import CodecSpec

log = logging.getLogger(__name__)
#: Folders may be shared among servers: what others did is seen after so long at the latest.
REFRESH_S = 5.0
P = ParamSpec("P")
T = TypeVar("T")


class VoiceLibrary(VoiceCatalogue):
    """A catalogue that is kept in a folder. All methods belong to one event loop.

    ``folder`` None: added voices last as long as the service runs.
    """

    def __init__(self, folder: Path | None, max_voices: int, refresh_s: float = REFRESH_S) -> None:
        super().__init__(max_voices)
        self._folder = None if folder is None else VoiceFolder(folder)
        self._refresh_s = refresh_s
        #: Ids in the folder that are of no use here, told of once.
        self._foreign: set[str] = set()
        self._unused: set[str] = set()
        self._codec = ""
        self._lock = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    async def open(self, spec: CodecSpec, codec: str, checkpoint: Path | None) -> None:
        """Load everything. ``codec`` is its fingerprint: voices of other codecs are passed
        over. Raises BackendError (``storage_failed``) if the folder cannot be used.
        """
        self._spec, self._codec = spec, codec
        if checkpoint is not None:
            for voice in await asyncio.to_thread(_read_built_in, checkpoint / "voices"):
                if self._fits(voice):
                    self._take_built_in(voice)
        if self._folder is not None:
            try:
                await asyncio.to_thread(self._folder.open)
                await self._refresh()
            except OSError as error:
                message = f"The setting voices_dir names no folder that can be used ({error})."
                raise BackendError(ErrorCode.STORAGE_FAILED, message) from error
            self._refreshing = asyncio.create_task(self._keep_refreshing())
        log.info("voices", extra={"built_in": len(self._built_in), "added": len(self._added)})

    async def close(self) -> None:
        """Look into the folder no more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing

    @property
    def is_lasting(self) -> bool:
        """Whether added voices are kept when the service ends."""
        return self._folder is not None

    @staticmethod
    def new_id() -> str:
        """An id for a voice that is about to be added."""
        return f"voice_{secrets.token_hex(8)}"

    async def add(self, voice: Voice) -> None:
        """Keep a voice; it can be spoken with when this returns.

        Raises RequestError as ``require_free`` does, BackendError (``storage_failed``).
        """
        try:
            async with self._alone():
                await self._take_over()
                self.require_free(voice.name, voice.tenant)
                if self._folder is not None:
                    await _to_its_end(self._folder.write, voice)
                self._take(voice)
        except OSError as error:
            raise _storage_failed("written", error) from error

    async def remove(
        self, key: str, tenant: str | None = None, *, everybodys: bool = True
    ) -> Voice:
        """Delete an added voice for good and return what it was; ``everybodys``: also one that
        is not the tenant's alone.

        Raises RequestError (``unknown_voice``; ``unsupported`` for one of the checkpoint's,
        ``forbidden``), BackendError (``storage_failed``): then nothing has changed.
        """
        try:
            async with self._alone():
                voice = self._removable(key, tenant, everybodys)
                if self._folder is not None:
                    await _to_its_end(self._folder.delete, voice)
                self._drop(voice.id)
                return voice
        except OSError as error:
            raise _storage_failed("removed", error) from error

    def _removable(self, key: str, tenant: str | None, everybodys: bool) -> Voice:
        voice = self.find(key, tenant)
        if voice.id not in self._added:
            raise RequestError(
                ErrorCode.UNSUPPORTED, "A voice of the checkpoint cannot be deleted.", param="id"
            )
        if voice.tenant is None and not everybodys:
            raise RequestError(
                ErrorCode.FORBIDDEN, "This voice is everybody's: it takes an admin's key."
            )
        return voice

    # -- the folder

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._refresh()
            except OSError as error:
                log.error("the folder of voices cannot be read: %s", error)

    async def _refresh(self) -> None:
        async with self._lock:
            await self._take_over()

    async def _take_over(self) -> None:
        """Do what other servers did, in the folder, to what is known here."""
        if self._folder is None:
            return
        known = [*self._added, *self._foreign]
        changes = await asyncio.to_thread(self._folder.changes, known)
        for id in changes.gone:
            self._foreign.discard(id)
            if id in self._added:
                self._drop(id)
        for voice in changes.new:
            if voice.codec != self._codec or not self._fits(voice):
                log.warning("a voice is of another codec: %s", voice.id)
                self._foreign.add(voice.id)
                continue
            try:
                self.require_free(voice.name, voice.tenant)
                self._take(voice)
            except RequestError:
                self._tell_unused(voice.id)

    def _tell_unused(self, id: str) -> None:
        """Once: it may be of use later."""
        if id not in self._unused:
            self._unused.add(id)
            log.warning("a voice's name is taken, or there is no room for it: %s", id)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Nobody else changes the voices meanwhile, on this server or another."""
        async with self._lock:
            if self._folder is None:
                yield
                return
            held = self._folder.lock()
            try:
                await _to_its_end(held.acquire)
                yield
            finally:
                held.release()


def _read_built_in(folder: Path) -> Iterable[Voice]:
    voices = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise VoiceFileError("it is too large")
            voices.append(unpack_built_in(path.read_bytes()))
        except (OSError, VoiceFileError) as error:
            log.error("a voice of the checkpoint cannot be used: %s: %s", path.name, error)
    return voices


def _storage_failed(verb: str, error: OSError) -> BackendError:
    log.error("a voice could not be %s: %s", verb, error)
    return BackendError(ErrorCode.STORAGE_FAILED, f"The voice's file could not be {verb}.")


async def _to_its_end(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do what blocks in a thread; who is cancelled waits for its end, and only then goes."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **options))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise

"""The store's files: one for each voice, written whole or not at all. Blocks; run in threads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from service.voices.file import MAX_FILE_BYTES, VOICE_ID, Voice, VoiceFileError, pack, unpack

log = logging.getLogger(__name__)
_SUFFIX, _UNFINISHED = ".safetensors", ".unfinished"
_LOCK = ".lock"
#: How long another server may be busy with the folder; it takes milliseconds.
_LOCK_S, _LOCK_AGAIN_S = 10.0, 0.02
#: What is unfinished for so long is of nobody who still writes.
_LEFT_S = 300.0
_HELD = {errno.EAGAIN, errno.EACCES}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in the folder: voices that came, and ids that went."""

    new: list[Voice] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class FolderLock:
    """Held by one server at a time. Where the file system knows no locks, it holds nobody up."""

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, -1

    def acquire(self) -> None:
        """Wait for it. Raises OSError, also if others do not let go of it."""
        self._held = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up_at = time.monotonic() + _LOCK_S
        while True:
            try:
                return fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return None
                if error.errno not in _HELD or time.monotonic() > give_up_at:
                    raise
            time.sleep(_LOCK_AGAIN_S)

    def release(self) -> None:
        """Let go of it, if it is held."""
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


class VoiceFolder:
    """Voices as files ``ID.safetensors``. Raises OSError where the file system does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Files that are no voices, told of once: name -> time of the last change.
        self._bad: dict[str, int] = {}

    def open(self) -> None:
        """Make the folder."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self) -> FolderLock:
        """What keeps other servers from changing the folder."""
        return FolderLock(self._path / _LOCK)

    def changes(self, known: Collection[str]) -> Changes:
        """Compare the folder with the ids that are known. Damaged files are left alone; what a
        crash has left unfinished goes.
        """
        self._sweep()
        found = {entry.name.removesuffix(_SUFFIX): entry for entry in self._voices()}
        new = [voice for id in found.keys() - set(known) if (voice := self._read(found[id]))]
        new.sort(key=lambda voice: (voice.created_at or 0, voice.id))
        return Changes(new, [id for id in known if id not in found])

    def _sweep(self) -> None:
        for left in self._path.glob(f"*{_UNFINISHED}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    left.unlink()

    def write(self, voice: Voice) -> None:
        """Write a voice: afterwards it is there, whatever crashes; or OSError, and it is not."""
        target = self._file(voice.id)
        unfinished = target.with_suffix(_UNFINISHED)
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(pack(voice))
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(target)
            self._sync()
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise

    def delete(self, voice: Voice) -> None:
        """Remove a voice for good, and whatever else its owner has under its name: what two
        servers added at once without locks, or one of another codec, would be heard again later.
        What is gone already is no error.
        """
        self._file(voice.id).unlink(missing_ok=True)
        for other in self.changes(()).new:
            if (other.tenant, other.name) == (voice.tenant, voice.name):
                self._file(other.id).unlink(missing_ok=True)
        self._sync()

    def _file(self, id: str) -> Path:
        if not VOICE_ID.fullmatch(id):
            raise ValueError(f"not an id: {id!r}")
        return self._path / f"{id}{_SUFFIX}"

    def _voices(self) -> list[os.DirEntry[str]]:
        with os.scandir(self._path) as entries:
            return [
                entry
                for entry in entries
                if VOICE_ID.fullmatch(entry.name.removesuffix(_SUFFIX))
                and entry.name.endswith(_SUFFIX)
                and entry.is_file(follow_symlinks=False)
            ]

    def _read(self, entry: os.DirEntry[str]) -> Voice | None:
        try:
            changed = entry.stat(follow_symlinks=False).st_mtime_ns
            if self._bad.get(entry.name) == changed:
                return None
            with open(entry.path, "rb") as file:
                voice = unpack(file.read(MAX_FILE_BYTES + 1))
            if voice.id != entry.name.removesuffix(_SUFFIX):
                raise VoiceFileError("its name is not its id")
        except FileNotFoundError:
            return None
        except (VoiceFileError, OSError) as error:
            log.error("a voice's file cannot be used: %s: %s", entry.name, error)
            self._bad[entry.name] = changed
            return None
        return voice

    def _sync(self) -> None:
        """Make renames and removals last, where the system lets one."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

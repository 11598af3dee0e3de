"""Stored voices: one safetensors file each, written atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from streaming.spec import Codes, SpeakerVector

log = logging.getLogger(__name__)
#: Far more than a minute of codes and a long transcript need.
MAX_FILE_BYTES = 1 << 20
#: Pattern of the ids of added voices, which is not allowed for names.
VOICE_ID = re.compile(r"voice_[0-9a-f]{16}")
_CHECKSUM = "sha256"
#: Fields of a voice that have the same names in its file.
_TEXTS = ("id", "name", "text", "language", "description", "codec", "text_source", "tenant")


class VoiceFileError(Exception):
    """The file is not a voice, or is corrupted. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Consent:
    """Consent to use a voice: the person, the statement and the time (ISO 8601)."""

    by: str
    statement: str
    at: str


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice. One of a checkpoint has its name as its id, and no consent. A voice is visible only
    to its ``tenant``; None: to all. ``vector``: its speaker's, for talkers that need one.
    """

    id: str
    name: str
    codes: Codes
    text: str | None = None
    language: str | None = None
    description: str | None = None
    is_default: bool = False
    created_at: int | None = None
    codec: str = ""
    text_source: Literal["given", "recognised"] | None = None
    consent: Consent | None = None
    tenant: str | None = None
    vector: SpeakerVector | None = None


def pack(voice: Voice) -> bytes:
    """Return the file content of an added voice."""
    assert voice.consent is not None
    entries = {name: getattr(voice, name) for name in _TEXTS}
    entries |= {f"consent_{name}": value for name, value in asdict(voice.consent).items()}
    entries["created_at"] = str(voice.created_at)
    metadata = {name: value for name, value in entries.items() if value}
    tensors: dict[str, npt.NDArray[Any]] = {"codes": np.ascontiguousarray(voice.codes, np.int16)}
    if voice.vector is not None:
        tensors["vector"] = np.ascontiguousarray(voice.vector, np.float32)
    metadata[_CHECKSUM] = _checksum(voice.codes, voice.vector, metadata)
    data: bytes = save(tensors, metadata)
    return data


def unpack(data: bytes) -> Voice:
    """Parse an added voice's file, and verify its checksum. Raises VoiceFileError."""
    codes, vector, metadata = _read(data)
    if metadata.pop(_CHECKSUM, "") != _checksum(codes, vector, metadata):
        raise VoiceFileError("the checksum is wrong")
    try:
        consent = Consent(*(metadata[f"consent_{one.name}"] for one in fields(Consent)))
        heard = metadata.get("text_source") == "recognised"
        return Voice(
            metadata["id"],
            metadata["name"],
            codes,
            metadata.get("text"),
            metadata.get("language"),
            metadata.get("description"),
            created_at=int(metadata["created_at"]),
            codec=metadata["codec"],
            text_source="recognised" if heard else "given" if metadata.get("text") else None,
            consent=consent,
            tenant=metadata.get("tenant"),
            vector=vector,
        )
    except (KeyError, ValueError) as error:
        raise VoiceFileError(f"an entry is missing or wrong: {error}") from error


def unpack_built_in(data: bytes) -> Voice:
    """Parse the file of a checkpoint's voice. Raises VoiceFileError."""
    codes, vector, metadata = _read(data)
    name = metadata.get("name", "")
    if not name:
        raise VoiceFileError("it has no name")
    return Voice(
        name,
        name,
        codes,
        metadata.get("text") or None,
        metadata.get("language") or None,
        metadata.get("description") or None,
        is_default=metadata.get("default") == "true",
        text_source="given" if metadata.get("text") else None,
        vector=vector,
    )


def _read(data: bytes) -> tuple[Codes, SpeakerVector | None, dict[str, str]]:
    if len(data) > MAX_FILE_BYTES:
        raise VoiceFileError("it is too large")
    try:
        tensors = load(data)  # checks the header
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (SafetensorError, KeyError, ValueError) as error:
        raise VoiceFileError("it is not a safetensors file") from error
    codes = tensors.get("codes")
    if codes is None or codes.dtype != np.int16 or codes.ndim != 2 or not codes.size:
        raise VoiceFileError("it has no codes [K, T] of int16")
    vector = tensors.get("vector")
    if vector is not None and (
        vector.dtype != np.float32 or vector.ndim != 1 or not np.isfinite(vector).all()
    ):
        raise VoiceFileError("its vector is not [D] of finite float32")
    return codes, vector, metadata


def _checksum(codes: Codes, vector: SpeakerVector | None, metadata: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps([list(codes.shape), metadata], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(codes, "<i2").tobytes())
    if vector is not None:
        digest.update(np.ascontiguousarray(vector, "<f4").tobytes())
    return digest.hexdigest()


_SUFFIX, _UNFINISHED = ".safetensors", ".unfinished"
_VOICE_FILE = re.compile(VOICE_ID.pattern + re.escape(_SUFFIX))
_LOCK = ".lock"
#: Seconds to wait for another server's lock, which is usually held for milliseconds.
_LOCK_S, _LOCK_AGAIN_S = 10.0, 0.02
#: Age in seconds from which an unfinished file is left over from a crash.
_LEFT_S = 300.0
_HELD = {errno.EAGAIN, errno.EACCES}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class FolderLock:
    """A lock for one server at a time. It has no effect on file systems without locks."""

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, -1

    def acquire(self) -> None:
        """Wait for the lock. Raises OSError, also if another server does not release it."""
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
        """Release the lock, if it is held."""
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


class VoiceFolder:
    """A folder of voices as files ``ID.safetensors``. Methods raise the file system's OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Ids of files that could not be read as voices, each logged once.
        self._bad: set[str] = set()

    def open(self) -> None:
        """Create the folder, and check that it can be read."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ids()

    def lock(self) -> FolderLock:
        """Return a lock that keeps other servers from changing the folder."""
        return FolderLock(self._path / _LOCK)

    def changes(self, known: Collection[str]) -> tuple[list[Voice], list[str]]:
        """Return new voices and the ids of deleted ones, compared with ``known`` ids. Unfinished
        files of a crash are deleted, if that is possible.
        """
        for left in self._path.glob(f"*{_UNFINISHED}"):
            with contextlib.suppress(OSError):  # the folder may be one that is only read
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    left.unlink()
        found = self._ids()
        self._bad &= found
        new = [voice for id in found.difference(known) if (voice := self._read(id))]
        new.sort(key=lambda voice: (voice.created_at or 0, voice.id))
        return new, [id for id in known if id not in found]

    def write(self, voice: Voice) -> None:
        """Write a voice durably and atomically: after OSError there is no file."""
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
        """Delete a voice, if it exists, and others with its tenant and name. Those that two servers
        added at once without locks, or that are of another codec, would reappear later.
        """
        self._file(voice.id).unlink(missing_ok=True)
        others, _ = self.changes(())
        for other in others:
            if (other.tenant, other.name) == (voice.tenant, voice.name):
                self._file(other.id).unlink(missing_ok=True)
        self._sync()

    def _file(self, id: str) -> Path:
        if not VOICE_ID.fullmatch(id):
            raise ValueError(f"not an id: {id!r}")
        return self._path / f"{id}{_SUFFIX}"

    def _ids(self) -> set[str]:
        """Return the ids of the voices' files."""
        with os.scandir(self._path) as entries:
            return {
                entry.name.removesuffix(_SUFFIX)
                for entry in entries
                if _VOICE_FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            }

    def _read(self, id: str) -> Voice | None:
        path = self._file(id)
        try:
            with path.open("rb") as file:
                voice = unpack(file.read(MAX_FILE_BYTES + 1))
            if voice.id != id:
                raise VoiceFileError("its name is not its id")
        except FileNotFoundError:
            return None
        except (VoiceFileError, OSError) as error:
            if id not in self._bad:
                log.error("a voice's file cannot be used: %s: %s", path.name, error)
            self._bad.add(id)
            return None
        self._bad.discard(id)
        return voice

    def _sync(self) -> None:
        """Sync renames and removals to the disk, if the system can."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

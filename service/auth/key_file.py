"""The file of keys: JSON, read as a whole or not at all, and written beside its place.

::

    {"tenants": {"acme": {"max_contexts": 8, "characters_per_minute": 6000}},
     "keys": [{"id": "key_0123456789ab", "tenant": "acme", "sha256": "…", "scopes": ["speak"],
               "created_at": "2026-01-31T12:00:00+00:00", "expires_at": null, "revoked_at": null,
               "limits": {"max_connections": 2}}]}
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.auth.keys import ApiKey, KeyRing, Limits, Scope

_MAX_BYTES = 8 << 20
_MAX_KEYS, _MAX_TENANTS = 10_000, 1000
#: A tenant's name is a label of metrics and a word in logs.
TENANT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_Tenant = Annotated[str, Field(pattern=TENANT)]
_Count = Annotated[int, Field(ge=1, le=10**9)]


class KeyFileError(Exception):
    """The file of keys cannot be used; the text, for operators, names no digest."""


class LimitsEntry(BaseModel):
    """See service.auth.keys.Limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_contexts: _Count | None = None
    max_share: Annotated[float, Field(gt=0, le=1)] | None = None
    max_connections: _Count | None = None
    characters_per_minute: _Count | None = None
    max_voices: Annotated[int, Field(ge=0, le=10_000)] | None = None

    def limits(self) -> Limits:
        """In the service's words."""
        return Limits(**self.model_dump())


class KeyEntry(BaseModel):
    """One key."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    tenant: _Tenant
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = (Scope.SPEAK,)
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None
    limits: LimitsEntry = LimitsEntry()

    def key(self) -> ApiKey:
        """In the service's words."""
        return ApiKey(
            self.id,
            self.tenant,
            bytes.fromhex(self.sha256),
            frozenset(self.scopes),
            _seconds(self.expires_at),
            _seconds(self.revoked_at),
            self.limits.limits(),
        )


class KeyFile(BaseModel):
    """All of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    tenants: Annotated[dict[_Tenant, LimitsEntry], Field(max_length=_MAX_TENANTS)] = {}
    keys: Annotated[tuple[KeyEntry, ...], Field(max_length=_MAX_KEYS)] = ()

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        for what in ("id", "sha256"):
            counts = Counter(getattr(key, what) for key in self.keys)
            if any(count > 1 for count in counts.values()):
                raise ValueError(f"two keys have the same {what}")
        if len({*self.tenants, *(key.tenant for key in self.keys)}) > _MAX_TENANTS:
            raise ValueError(f"there are more than {_MAX_TENANTS} tenants")
        return self

    def ring(self) -> KeyRing:
        """What the service works with."""
        tenants = {name: entry.limits() for name, entry in self.tenants.items()}
        return KeyRing((entry.key() for entry in self.keys), tenants)


def read(path: Path) -> KeyFile:
    """Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise KeyFileError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        return KeyFile.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise KeyFileError(f"{path}: {where}: {fault['msg']}") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile: without this, of two keys that are made at the same
    time one would be lost. Raises KeyFileError.
    """
    path = path.resolve()  # as ``write`` does: the file behind a link is the one that is read
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeyFileError(f"cannot open {path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(path: Path, content: KeyFile) -> None:
    """Replace the file, ``locked``; a reader sees the old or the new one. Whose it is and who may
    read it stay as they are. Raises KeyFileError.
    """
    path = path.resolve()
    data = content.model_dump_json(indent=1, exclude_none=True, exclude_defaults=True) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)  # of somebody who was killed while writing
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            was = path.stat()
            mine = beside.stat()
            if (was.st_uid, was.st_gid) != (mine.st_uid, mine.st_gid):
                os.chown(beside, was.st_uid, was.st_gid)
            beside.chmod(was.st_mode & 0o777)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()

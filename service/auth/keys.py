"""API keys: their digests, their file, and the functions of ``talkwire keys``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

#: Prefix of all keys, by which people and secret scanners recognise them.
PREFIX = "talkwire_"
_SECRET_BYTES = 32
Number = TypeVar("Number", int, float)


class Scope(StrEnum):
    """A permission of keys."""

    SPEAK = "speak"
    VOICES_WRITE = "voices:write"
    ADMIN = "admin"


#: A tenant's name, which is used as a label of metrics and in logs.
TENANT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_Tenant = Annotated[str, Field(pattern=TENANT)]
_Count = Annotated[int, Field(ge=1, le=10**9)]


class Limits(BaseModel):
    """Limits of concurrent use and of characters per minute; None: no limit but the server's.

    ``max_share``: share of all contexts that the server admits, at most 1; one is always allowed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_contexts: _Count | None = None
    max_share: Annotated[float, Field(gt=0, le=1)] | None = None
    max_connections: _Count | None = None
    characters_per_minute: _Count | None = None
    max_voices: Annotated[int, Field(ge=0, le=10_000)] | None = None

    def contexts(self, capacity: int) -> int | None:
        """Return the maximum number of contexts on a server that admits ``capacity``."""
        if self.max_share is None:
            return self.max_contexts
        # rounded because 0.29 * 100 is less than 29
        share = max(1, int(round(self.max_share * capacity, 6)))
        return least(self.max_contexts, share)


UNLIMITED = Limits()


class ApiKey(BaseModel):
    """A key, stored only as its digest."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    tenant: _Tenant
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = (Scope.SPEAK,)
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None
    limits: Limits = UNLIMITED

    def is_valid(self, now: float) -> bool:
        """Whether the key is valid at ``now``, in seconds since 1970."""
        return self.state(now) == "valid"

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Return the key's state at ``now``."""
        if self.revoked_at is not None:
            return "revoked"
        is_over = self.expires_at is not None and self.expires_at.timestamp() <= now
        return "expired" if is_over else "valid"


class KeyRing:
    """All keys and tenants, immutable; a reload replaces it."""

    def __init__(self, keys: Iterable[ApiKey] = (), tenants: Mapping[str, Limits] | None = None):
        self.keys: Mapping[str, ApiKey] = MappingProxyType({key.id: key for key in keys})
        named = {key.tenant: UNLIMITED for key in self.keys.values()}
        self.tenants: Mapping[str, Limits] = MappingProxyType({**named, **(tenants or {})})
        self._by_digest = {key.sha256: key for key in self.keys.values()}

    def find(self, secret: str) -> ApiKey | None:
        """Find a key, valid or not. Timing reveals only digests, which clients cannot choose."""
        return self._by_digest.get(digest_of(secret))


def new_secret() -> str:
    """Return a new key, of characters that need no quoting in headers, URLs or subprotocols."""
    return PREFIX + secrets.token_hex(_SECRET_BYTES)


def digest_of(secret: str) -> str:
    """Return the digest of a key in hexadecimal digits."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def least(*limits: Number | None) -> Number | None:
    """Return the lowest of some limits; None is no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


_MAX_BYTES = 8 << 20
_MAX_KEYS, _MAX_TENANTS = 10_000, 1000


class KeyFileError(Exception):
    """The file of keys cannot be used. The text is for operators, and contains no digest."""


class KeyFile(BaseModel):
    """The content of a key file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    tenants: Annotated[dict[_Tenant, Limits], Field(max_length=_MAX_TENANTS)] = {}
    keys: Annotated[tuple[ApiKey, ...], Field(max_length=_MAX_KEYS)] = ()

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
        """Return the keys for look-ups by the service."""
        return KeyRing(self.keys, self.tenants)


def read_keys(path: Path) -> KeyFile:
    """Read a key file. Raises KeyFileError, also for a pipe or device, which might never end."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise KeyFileError(f"{path} is not a regular file")
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise KeyFileError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        return KeyFile.model_validate_json(data)
    except ValidationError as error:
        raise KeyFileError(f"{path}: {_first_fault(error, 'the file')}") from None


def _open_at_once(name: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe."""
    return os.open(name, flags | os.O_NONBLOCK)


def _first_fault(error: ValidationError, whole: str = "") -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc'])) or whole}: {fault['msg']}"


@contextlib.contextmanager
def lock_keys(path: Path) -> Iterator[None]:
    """Lock the file against other writers while the block runs. Raises KeyFileError."""
    path = path.resolve()  # the target of a link, like ``write_keys``
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeyFileError(f"cannot open {path.parent}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # some file systems have no locks
            raise KeyFileError(f"cannot lock {path.parent}: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)


def write_keys(path: Path, content: KeyFile) -> None:
    """Replace the locked file atomically, keeping its owner and mode. Raises KeyFileError."""
    path = path.resolve()
    data = content.model_dump_json(indent=1, exclude_none=True, exclude_defaults=True) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)  # of a process that was killed while writing
        with open(beside, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
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


_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def issue(
    path: Path,
    tenant: str,
    scopes: Sequence[Scope],
    expires: str | None = None,
    **limits: int | None,
) -> tuple[str, str]:
    """Create a key and return its id and itself. Raises KeyFileError, ValueError (see Limits)."""
    now, secret = _now(), new_secret()
    try:
        entry = ApiKey(
            id=f"key_{secrets.token_hex(6)}",  # not secret
            tenant=tenant,
            sha256=digest_of(secret),
            scopes=tuple(dict.fromkeys(scopes)),
            created_at=now,
            expires_at=None if expires is None else parse_expiry(expires, now),
            limits=Limits.model_validate(limits),
        )
        with lock_keys(path):
            content = read_keys(path) if path.exists() else KeyFile()
            write_keys(path, KeyFile(tenants=content.tenants, keys=(*content.keys, entry)))
    except ValidationError as error:
        raise ValueError(_first_fault(error)) from error
    return entry.id, secret


def listed(path: Path) -> list[dict[str, Any]]:
    """Return all keys, without their digests. Raises KeyFileError."""
    now = time.time()
    return [
        {
            "id": entry.id,
            "tenant": entry.tenant,
            "state": entry.state(now),
            "scopes": [scope.value for scope in entry.scopes],
            "created_at": entry.created_at and entry.created_at.isoformat(),
            "expires_at": entry.expires_at and entry.expires_at.isoformat(),
            "limits": entry.limits.model_dump(exclude_none=True),
        }
        for entry in read_keys(path).keys
    ]


def revoke(path: Path, key_id: str) -> None:
    """Revoke a key. Raises KeyFileError, also if there is no such key."""
    with lock_keys(path):
        content = read_keys(path)
        keys = {entry.id: entry for entry in content.keys}
        if key_id not in keys:
            raise KeyFileError(f"there is no key {key_id}")
        revoked_at = keys[key_id].revoked_at or _now()
        keys[key_id] = keys[key_id].model_copy(update={"revoked_at": revoked_at})
        write_keys(path, KeyFile(tenants=content.tenants, keys=tuple(keys.values())))


def parse_expiry(text: str, now: datetime) -> datetime:
    """Parse ``90d``, ``12h``, ``30m``, or a future ISO 8601 date and time. Raises ValueError."""
    try:
        if match := re.fullmatch(r"(\d{1,6})([mhd])", text):
            at = now + timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"expires: not 90d, 12h or an ISO 8601 date: {text!r}") from error
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at <= now:
        raise ValueError(f"expires: that is over already: {text}")
    return at


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)

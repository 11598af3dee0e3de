"""What ``talkwire keys`` does to the file of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from service.auth import key_file
from service.auth.key_file import KeyEntry, KeyFile, KeyFileError, LimitsEntry
from service.auth.keys import Limits, Scope, digest_of, new_id, new_secret

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def issue(
    path: Path, tenant: str, scopes: Sequence[Scope], expires: str | None, limits: Limits
) -> tuple[str, str]:
    """A new key's id and the key itself. Raises KeyFileError, ValueError (the arguments)."""
    now, secret = _now(), new_secret()
    try:
        entry = KeyEntry(
            id=new_id(),
            tenant=tenant,
            sha256=digest_of(secret).hex(),
            scopes=tuple(dict.fromkeys(scopes)),
            created_at=now,
            expires_at=parse_expiry(expires, now) if expires else None,
            limits=LimitsEntry(
                max_contexts=limits.max_contexts,
                max_connections=limits.max_connections,
                characters_per_minute=limits.characters_per_minute,
            ),
        )
        with key_file.locked(path):
            content = key_file.read(path) if path.exists() else KeyFile()
            grown = KeyFile(tenants=content.tenants, keys=(*content.keys, entry))
            key_file.write(path, grown)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(str(at) for at in fault['loc'])}: {fault['msg']}") from error
    return entry.id, secret


def listed(path: Path) -> list[dict[str, Any]]:
    """All keys, without anything that would open a door. Raises KeyFileError."""
    now = _now()
    return [
        {
            "id": entry.id,
            "tenant": entry.tenant,
            "state": _state(entry, now),
            "scopes": [scope.value for scope in entry.scopes],
            "created_at": _written(entry.created_at),
            "expires_at": _written(entry.expires_at),
            "limits": entry.limits.model_dump(exclude_none=True),
        }
        for entry in key_file.read(path).keys
    ]


def revoke(path: Path, key_id: str) -> None:
    """A key opens nothing any more. Raises KeyFileError, also where there is no such key."""
    with key_file.locked(path):
        content = key_file.read(path)
        if key_id not in (entry.id for entry in content.keys):
            raise KeyFileError(f"there is no key {key_id}")
        entries = tuple(
            entry.model_copy(update={"revoked_at": entry.revoked_at or _now()})
            if entry.id == key_id
            else entry
            for entry in content.keys
        )
        key_file.write(path, KeyFile(tenants=content.tenants, keys=entries))


def parse_expiry(text: str, now: datetime) -> datetime:
    """``90d``, ``12h``, ``30m``, or an ISO 8601 date and time to come. Raises ValueError."""
    try:
        if match := re.fullmatch(r"(\d{1,6})([mhd])", text):
            at = now + timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"expires: not 90d, 12h or an ISO 8601 date: {text}") from error
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at <= now:
        raise ValueError(f"expires: that is over already: {text}")
    return at


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _state(entry: KeyEntry, now: datetime) -> str:
    if entry.revoked_at is not None:
        return "revoked"
    return "expired" if entry.expires_at is not None and entry.expires_at <= now else "valid"


def _written(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()

"""API keys as the service knows them: by their digests, never by themselves. No I/O.

A key is 256 random bits, so a plain SHA-256 of it is safe to keep: there is no password to be
guessed, and a slow hash would only cost every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

#: What keys begin with, so that people and scanners of leaked secrets know one when they see it.
PREFIX = "talkwire_"
_SECRET_BYTES = 32


class Scope(StrEnum):
    """What a key may be for."""

    SPEAK = "speak"
    VOICES_WRITE = "voices:write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used at once, or in a minute; None: as much as the server has.

    ``max_share`` is of all contexts that the server admits, from 0 to 1; one is always allowed.
    """

    max_contexts: int | None = None
    max_share: float | None = None
    max_connections: int | None = None
    characters_per_minute: int | None = None
    max_voices: int | None = None

    def contexts(self, capacity: int) -> int | None:
        """The most contexts on a server that admits ``capacity`` of them."""
        share = None if self.max_share is None else max(1, int(self.max_share * capacity))
        return least(self.max_contexts, share)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``digest`` is SHA-256 of the key; times are in seconds since 1970."""

    id: str
    tenant: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope] = frozenset((Scope.SPEAK,))
    expires_at: float | None = None
    revoked_at: float | None = None
    limits: Limits = Limits()

    def is_valid(self, now: float) -> bool:
        """Whether it opens anything at ``now``."""
        is_revoked = self.revoked_at is not None
        return not is_revoked and (self.expires_at is None or now < self.expires_at)


class KeyRing:
    """All keys and tenants at one time; never changed, only replaced."""

    def __init__(self, keys: Iterable[ApiKey] = (), tenants: Mapping[str, Limits] | None = None):
        self.keys: Mapping[str, ApiKey] = MappingProxyType({key.id: key for key in keys})
        named = {key.tenant: Limits() for key in self.keys.values()}
        self.tenants: Mapping[str, Limits] = MappingProxyType({**named, **(tenants or {})})
        self._by_digest = {key.digest: key for key in self.keys.values()}

    def find(self, secret: str) -> ApiKey | None:
        """The key, valid or not. How long this takes tells about digests, not about keys: whoever
        could choose a digest would have to invert SHA-256.
        """
        digest = digest_of(secret)
        key = self._by_digest.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def get(self, key_id: str) -> ApiKey | None:
        """By its id."""
        return self.keys.get(key_id)


def new_secret() -> str:
    """A key, made of letters that no header, address or subprotocol has to quote."""
    return PREFIX + secrets.token_hex(_SECRET_BYTES)


def new_id() -> str:
    """An id for a key; it is no secret."""
    return f"key_{secrets.token_hex(6)}"


def digest_of(secret: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def least(*limits: int | None) -> int | None:
    """The tightest of some limits, of which None is no limit."""
    return min((limit for limit in limits if limit is not None), default=None)

"""Authentication of requests by API keys and tokens.

Short-lived tokens replace an API key in browsers. A token contains its key's id, so it has that
key's tenant and limits, and ends with it. It is signed, not stored, so every process with the same
secret accepts it. A JSON Web Token that a client has signed itself (``service.auth.jwt``) counts as
a token of its key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

from service.auth.caller import ANYBODY, Caller, network_of
from service.auth.jwt import looks_signed, signing_key
from service.auth.keys import KeyFile, KeyFileError, KeyRing, Scope, read_keys
from service.auth.limits import MINUTE_S, Accounts, LeakyBucket
from service.protocols import KEY_HEADERS
from service.reloading import Reloader, file_state
from streaming.errors import CapacityError, ErrorCode, RequestError
from streaming.lru_cache import LruCache

_TOKEN_PREFIX = "talkwire-token"
#: Maximum validity of a token in seconds.
MAX_TTL_S = 3600
_SECRET_BYTES = 32
_TOKEN_PARTS = 5


class TokenSecretError(KeyFileError):
    """The file of the tokens' secret cannot be used."""


class TokenSigner:
    """Issues and checks tokens. The default ``secret`` is random, for this process alone."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(_SECRET_BYTES)

    @classmethod
    def of_file(cls, path: Path | None) -> TokenSigner:
        """Read the secret from a file, for processes that share it. Raises TokenSecretError."""
        if path is None:
            return cls()
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise TokenSecretError(f"cannot read {path}: {error.strerror}") from error
        if len(secret) < _SECRET_BYTES:
            raise TokenSecretError(f"{path} has fewer than {_SECRET_BYTES} bytes")
        return cls(secret)

    def issue(self, key_id: str | None, ttl_s: int, now: float) -> str:
        """Return a token of the key, valid for ``ttl_s`` from ``now`` (seconds since 1970)."""
        expires_at = int(now) + max(1, min(ttl_s, MAX_TTL_S))
        nonce, owner = secrets.token_hex(8), key_id or ""
        signature = self._signature(f"{expires_at}.{nonce}.{owner}")
        return f"{_TOKEN_PREFIX}.{expires_at}.{nonce}.{signature}.{owner}"

    def key_of(self, token: str, now: float) -> str | None:
        """Return the key's id of a valid token; None for any other text."""
        parts = token.split(".", _TOKEN_PARTS - 1)
        if len(parts) != _TOKEN_PARTS or parts[0] != _TOKEN_PREFIX:
            return None
        _, expiry, nonce, signature, owner = parts
        expected = self._signature(f"{expiry}.{nonce}.{owner}")
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        return owner if now < int(expiry) else None

    def _signature(self, signed: str) -> str:
        return hmac.new(self._secret, signed.encode(), hashlib.sha256).hexdigest()


log = logging.getLogger(__name__)
#: Prefix of the subprotocol in which a browser sends a key, besides the native one.
KEY_SUBPROTOCOL = "talkwire.key."
_SCHEMES = ("bearer", "token")
#: Azure's clients use the last one.
_HEADERS = frozenset((*(name.lower().encode() for name in KEY_HEADERS.values()), b"api-key"))
#: A key has 73 characters, and a token that LiveKit's clients sign about 300.
_MOST_CHARS = 1024


def presented_key(
    headers: Iterable[tuple[bytes, bytes]],
    subprotocols: Sequence[str] = (),
    query: bytes = b"",
    query_names: Collection[str] = (),
) -> str | None:
    """Return the first key of a request, if any."""
    found: list[str] = []
    for raw, value in headers:
        name, text = raw.lower(), value.decode("latin-1").strip()
        if name in _HEADERS:
            found.append(text)
        elif name == b"authorization":
            scheme, _, key = text.partition(" ")
            found += [key.strip()] if scheme.lower() in _SCHEMES else []
    own = [name for name in subprotocols if name.startswith(KEY_SUBPROTOCOL)]
    if own:
        found.append(own[0].removeprefix(KEY_SUBPROTOCOL))
    elif answered_subprotocol(subprotocols):
        found.append(subprotocols[1])
    if not any(found) and query_names:
        asked = parse_qsl(query.decode("latin-1"))
        found += [value for name, value in asked if name in query_names]
    return next((key[:_MOST_CHARS] for key in found if key), None)


def answered_subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol that answers an offer with a key; browsers require an answer."""
    return offered[0] if len(offered) > 1 and offered[0].lower() in _SCHEMES else None


_ADDRESSES = 4096


class Failures:
    """Counts wrong keys by address or network, for the last 4096 of them."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._spent: LruCache[str, LeakyBucket] = LruCache(_ADDRESSES)

    def add(self, address: str, now: float) -> float:
        """Count a wrong key, and return the seconds for which its address is refused, or 0."""
        spent = self._spent.setdefault(address, LeakyBucket())
        excess = spent.leak(self._per_minute, now) + 1 - self._per_minute
        if excess > 0:
            return excess * MINUTE_S / self._per_minute
        spent.add(1)
        return 0.0


class Authority:
    """Authenticates callers by the keys of a file. Without ``path`` no keys are needed.

    Raises KeyFileError if the file cannot be used at the start. If it cannot be used later, this is
    logged, and the previous keys stay valid. All methods must be called on one event loop.
    """

    def __init__(
        self, path: Path | None, failures_per_minute: int = 30, tokens: TokenSigner | None = None
    ) -> None:
        #: Whether keys are needed.
        self.is_on = path is not None
        self._tokens = tokens or TokenSigner()
        #: Reads the file again.
        self._reloader: Reloader[KeyFile] | None = None
        if path is not None:
            self._reloader = Reloader(
                "the file of keys", path, _read, self._take, known=file_state(path)
            )
        self._ring = KeyRing() if path is None else read_keys(path).ring()
        self._failures = Failures(failures_per_minute)
        self.accounts = Accounts(lambda: self._ring)
        if self.is_on and not self.key_count:
            log.warning("no key is valid: all requests that need one are refused")

    @property
    def is_current(self) -> bool:
        """Whether the last read of the file succeeded."""
        return self._reloader is None or self._reloader.is_current

    @property
    def key_count(self) -> int:
        """Number of keys that are valid now."""
        return sum(key.is_valid(time.time()) for key in self._ring.keys.values())

    def admit(self, secret: str | None, needed: Scope | None, address: str) -> Caller:
        """Return the caller with the key or token ``secret``, which must have the scope ``needed``.

        Raises RequestError (``unauthorized``, ``forbidden``), CapacityError (``rate_limited``).
        """
        if not self.is_on:
            return replace(ANYBODY, network=network_of(address))
        if not secret:
            raise RequestError(ErrorCode.UNAUTHORIZED, "An API key is needed.")
        now = time.time()
        token_of = self._ring.keys.get(self._tokens.key_of(secret, now) or "")
        if token_of is None and (signer := signing_key(secret, now)) is not None:
            token_of = self._ring.find(signer)
        key = token_of or self._ring.find(secret)
        if key is None or not key.is_valid(now):
            if wait_s := self._failures.add(network_of(address), time.monotonic()):
                raise CapacityError(
                    ErrorCode.RATE_LIMITED,
                    "Too many API keys were wrong.",
                    retry_after_ms=max(1000, round(1000 * wait_s)),
                )
            told = {"key": key.id if key else "unknown", "address": address}
            log.info("key refused", extra=told)
            message = "This API key is not valid."
            if looks_signed(secret):
                message = (
                    "This JSON Web Token is not valid: iss must be an API key, which also signs it "
                    "(HS256), and exp must lie ahead."
                )
            raise RequestError(ErrorCode.UNAUTHORIZED, message)
        if needed is not None and needed not in key.scopes:
            raise RequestError(ErrorCode.FORBIDDEN, f"This API key has not the scope {needed}.")
        if token_of is None:
            return Caller(key.id, key.tenant, frozenset(key.scopes))
        if needed not in (None, Scope.SPEAK):
            raise RequestError(ErrorCode.FORBIDDEN, f"A token has not the scope {needed}.")
        return Caller(key.id, key.tenant, frozenset((Scope.SPEAK,)), by_token=True)

    def issue_token(self, caller: Caller, ttl_s: int) -> str:
        """Issue a token of the caller's key. Raises RequestError (``forbidden``) for a token's."""
        if caller.by_token:
            raise RequestError(ErrorCode.FORBIDDEN, "A token cannot make tokens.")
        return self._tokens.issue(caller.key_id, ttl_s, time.time())

    def is_welcome(self, caller: Caller, needed: Scope) -> bool:
        """Whether a caller has the scope ``needed``, and its key, if any, is still valid."""
        if caller.key_id is None:
            return needed in caller.scopes
        key = self._ring.keys.get(caller.key_id)
        if key is None or key.tenant != caller.tenant or needed not in key.scopes:
            return False
        return key.is_valid(time.time())

    def reload_soon(self) -> None:
        """Request that the file is read again, even if unchanged."""
        if self._reloader is not None:
            self._reloader.reload_soon()

    async def watch(self) -> None:
        """Read the file again whenever it changes, and until it can be read. Never returns if there
        is a file.
        """
        if self._reloader is not None:
            await self._reloader.watch()

    def _take(self, content: KeyFile) -> None:
        self._ring = content.ring()
        self.accounts.forget_unknown()
        log.info("keys read", extra={"keys": self.key_count, "tenants": len(self._ring.tenants)})


def _read(path: Path) -> KeyFile:
    return read_keys(path)

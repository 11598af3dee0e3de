"""Short-lived tokens that stand in for an API key, for browsers.

A token names its key, so that it has that key's tenant and limits, and ends with it. It is signed,
not stored: every process with the same secret knows it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from service.auth.keys import KeyFileError

PREFIX = "talkwire-token"
#: The longest that a token may be valid, in seconds.
MAX_TTL_S = 3600
_SECRET_BYTES = 32
_PARTS = 5


class TokenSigner:
    """Issues and reads tokens.

    Args:
        secret: What signs them; None for one that only this process knows.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(_SECRET_BYTES)

    @classmethod
    def of_file(cls, path: Path | None) -> TokenSigner:
        """Signs with what is in a file, for processes that share it. Raises KeyFileError."""
        if path is None:
            return cls()
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
        if len(secret) < _SECRET_BYTES:
            raise KeyFileError(f"{path} has fewer than {_SECRET_BYTES} bytes")
        return cls(secret)

    def issue(self, key_id: str | None, ttl_s: int, now: float) -> str:
        """A token of the key that is valid for ``ttl_s`` from ``now``, in seconds since 1970."""
        expires_at = int(now) + max(1, min(ttl_s, MAX_TTL_S))
        signed = f"{expires_at}.{secrets.token_hex(8)}.{key_id or ''}"
        expiry, nonce, owner = signed.split(".", 2)
        return f"{PREFIX}.{expiry}.{nonce}.{self._signature(signed)}.{owner}"

    def key_of(self, token: str, now: float) -> str | None:
        """The id of the key that a valid token stands for; None for any other text."""
        parts = token.split(".", _PARTS - 1)
        if len(parts) != _PARTS or parts[0] != PREFIX:
            return None
        _, expiry, nonce, signature, owner = parts
        expected = self._signature(f"{expiry}.{nonce}.{owner}")
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        return owner if now < int(expiry) else None

    def _signature(self, signed: str) -> str:
        return hmac.new(self._secret, signed.encode(), hashlib.sha256).hexdigest()

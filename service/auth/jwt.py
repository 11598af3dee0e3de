"""JSON Web Tokens (RFC 7519) that a client signs with its API key, as LiveKit's clients do.

Keys are stored only as digests, with which no signature can be checked. So the claim ``iss`` must
be the key itself, and the token be signed with it. Such a token reveals the key as a header with
the bare key does; the signature keeps its times from being changed.
"""

from __future__ import annotations

import base64
import hmac
import json
import math
from typing import Any

#: Tolerated difference between the clocks of client and server, in seconds.
LEEWAY_S = 60.0
_ALGORITHM = "HS256"
_PARTS = 3


def looks_signed(secret: str) -> bool:
    """Whether a secret has the form of a JSON Web Token, which no API key has."""
    return secret.count(".") == _PARTS - 1 and secret.startswith("ey")


def signing_key(token: str, now: float) -> str | None:
    """Return the API key that has signed a token, known or not; None for any other text.

    Args:
        token: What the client sent.
        now: Seconds since 1970. The claim ``exp`` must be later and ``nbf``, if any, not.
    """
    if not looks_signed(token):
        return None
    signed, _, signature = token.rpartition(".")
    head, _, body = signed.partition(".")
    try:
        header, claims, given = _object(head), _object(body), _decoded(signature)
        key = claims.get("iss")
        # the algorithm is ours to choose: "none" and public keys are no signatures of this key
        if header.get("alg") != _ALGORITHM or not isinstance(key, str) or not key:
            return None
        begins, ends = _time(claims.get("nbf", 0)), _time(claims.get("exp"))
        expected = hmac.digest(key.encode(), signed.encode(), "sha256")
    except (ValueError, RecursionError):
        return None
    is_timely = begins - LEEWAY_S <= now < ends + LEEWAY_S
    return key if hmac.compare_digest(given, expected) and is_timely else None


def _decoded(part: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _object(part: str) -> dict[str, Any]:
    """Return a part's JSON object. Raises ValueError, RecursionError."""
    value = json.loads(_decoded(part))
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _time(value: object) -> float:
    """Return a claim's seconds since 1970. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    try:
        seconds = float(value)
    except OverflowError as error:
        raise ValueError("out of range") from error
    if not math.isfinite(seconds):
        raise ValueError("not finite")
    return seconds

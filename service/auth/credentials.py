"""Where a request has its key: wherever the clients of some vendor put it. No I/O.

| | |
|---|---|
| ``Authorization: Bearer KEY`` | OpenAI's clients, Cartesia's, ours |
| ``Authorization: Token KEY`` | Deepgram's |
| ``xi-api-key: KEY`` | ElevenLabs' |
| ``X-API-Key: KEY`` | Cartesia's |
| subprotocols ``token, KEY`` or ``bearer, KEY`` | Deepgram's in a browser |
| subprotocol ``talkwire.key.KEY`` | ours in a browser |
| ``?api_key=KEY``, ``?access_token=KEY`` | Cartesia's sockets in a browser; at that address alone |

Browsers let pages set no headers of a WebSocket. Headers count in every dialect. An address is
written to logs by whatever stands in between, so keys in it are taken only where a client knows
no other way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from urllib.parse import parse_qsl

#: What a browser offers beside the native subprotocol.
KEY_SUBPROTOCOL = "talkwire.key."
_SCHEMES = ("bearer", "token")
_HEADERS = (b"xi-api-key", b"x-api-key")
_MOST_CHARS = 512


def presented_key(
    headers: Iterable[tuple[bytes, bytes]],
    subprotocols: Sequence[str] = (),
    query: bytes = b"",
    query_names: Collection[str] = (),
) -> str | None:
    """The key that a request brings, if it brings one; the first, if several."""
    pairs = [(name.lower(), value.decode("latin-1")) for name, value in headers]
    found = [key for name, value in pairs if (key := _in_header(name, value))]
    found += [key for key in (_in_subprotocols(subprotocols),) if key]
    if not found and query_names:
        asked = parse_qsl(query.decode("latin-1"))
        found = [value for name, value in asked if name in query_names and value]
    return found[0][:_MOST_CHARS] if found else None


def answered_subprotocol(offered: Sequence[str]) -> str | None:
    """What to answer to an offer that holds a key: browsers drop a socket that answers none."""
    return offered[0] if len(offered) > 1 and offered[0].lower() in _SCHEMES else None


def _in_header(name: bytes, value: str) -> str | None:
    if name in _HEADERS:
        return value.strip()
    if name != b"authorization":
        return None
    scheme, _, key = value.strip().partition(" ")
    return key.strip() if scheme.lower() in _SCHEMES else None


def _in_subprotocols(offered: Sequence[str]) -> str | None:
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL):
            return name.removeprefix(KEY_SUBPROTOCOL)
    return offered[1] if answered_subprotocol(offered) else None

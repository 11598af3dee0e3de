"""Which web pages may open a socket here. CORS does not cover WebSockets: this does.

A browser says in ``Origin`` which page opens the socket; other programs send none, and are not
held up. A page of this very service is always let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from fastapi import WebSocket
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from streaming.errors import ErrorCode

ANY = "*"
_PORTS = {"http": 80, "https": 443}
#: A name or an address, and a port: what urlsplit takes besides is nobody's.
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[^][@:/\s\x00-\x1f\x7f-\x9f]+)(:\d*)?")


def parse_origin(text: str) -> str:
    """An entry of the allow-list in the form that browsers send. Raises ValueError."""
    origin = text.strip().lower()
    if origin in (ANY, "null"):
        return origin
    parts = urlsplit(origin)
    # urlsplit passes over tabs and line ends: what is not in the text is not in the origin
    place = _PLACE.fullmatch(parts.netloc) if origin.isprintable() else None
    if parts.scheme not in _PORTS or not parts.hostname or place is None:
        raise ValueError(f"not an origin like https://example.org: {text!r}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"an origin has no path: {text!r}")
    if ANY in origin:
        raise ValueError(f"each origin is named whole, or {ANY} for all: {text!r}")
    return _joined(parts.scheme, parts.hostname, parts.port)


def parse_origins(value: object) -> object:
    """The allow-list as it comes from a file (a list) or the environment (commas between them).

    Raises ValueError; what is no list of texts is left to whoever checks the types.
    """
    entries = (
        [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    )
    if not isinstance(entries, list | tuple):
        return entries
    return tuple(parse_origin(entry) if isinstance(entry, str) else entry for entry in entries)


def is_allowed(origins: Sequence[str], host: str | None, allowed: Collection[str]) -> bool:
    """Whether a handshake with these ``Origin`` headers and this ``Host`` may go on.

    The scheme is not compared with the service's own: TLS may end before it.
    """
    return all(_is_one_allowed(origin, host, allowed) for origin in origins)


def _is_one_allowed(origin: str, host: str | None, allowed: Collection[str]) -> bool:
    if ANY in allowed:
        return True
    try:
        origin = parse_origin(origin)
        if origin in allowed:
            return True
        scheme = urlsplit(origin).scheme
        own = parse_origin(f"{scheme}://{host}")
    except ValueError:
        return False
    return bool(host) and origin == own


def _joined(scheme: str, hostname: str, port: int | None) -> str:
    name = f"[{hostname}]" if ":" in hostname else hostname
    return f"{scheme}://{name}" + (f":{port}" if port not in (None, _PORTS[scheme]) else "")


class OriginGuard:
    """Refuses WebSocket handshakes from foreign pages with 403, whatever their route.

    ``on_refused`` is called for each.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed: Collection[str],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._app, self._allowed = app, frozenset(allowed)
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            headers = websocket.headers
            if not is_allowed(headers.getlist("origin"), headers.get("host"), self._allowed):
                self._on_refused()
                await websocket.send_denial_response(_refusal())
                return
        await self._app(scope, receive, send)


def _refusal() -> JSONResponse:
    message = "Pages of this origin may not connect; see the setting allowed_origins."
    error = {"code": ErrorCode.FORBIDDEN_ORIGIN.value, "message": message, "retryable": False}
    return JSONResponse({"error": error}, 403)

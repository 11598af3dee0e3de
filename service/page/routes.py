"""The demo page: a closed list of static files, read once at the start."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import Request
from fastapi.responses import JSONResponse, Response

import service
from service.access.rules import Access, GuardedRouter, Rule, declare
from service.errors import NATIVE_TABLE
from service.runtime import Runtime

_HTML, _JS = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
_CSS, _SVG = "text/css; charset=utf-8", "image/svg+xml"

#: The source tree, which also contains the JavaScript client.
_TREE = Path(service.__file__).resolve().parents[1]

#: By path: (folder, file in it, media type). Nothing else is served.
PAGES: dict[str, tuple[str, str, str]] = {
    "/": ("service", "page/index.html", _HTML),
    "/static/style.css": ("service", "page/style.css", _CSS),
    "/static/icon.svg": ("service", "page/icon.svg", _SVG),
    "/static/talkwire.js": ("clients", "js/talkwire.js", _JS),
} | {
    f"/static/{name}.js": ("service", f"page/{name}.js", _JS)
    for name in (
        "clip",
        "clip-worklet",
        "clone",
        "link",
        "page",
        "player",
        "player-worklet",
        "record",
        "speech",
        "view",
        "waterfall",
        "waveform",
    )
}

#: Only scripts, styles and connections of this origin, and no markup from text.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # File names do not change with their content, so each use is revalidated, mostly with 304.
    "cache-control": "no-cache",
}


def page_router(runtime: Runtime) -> GuardedRouter:
    """Create the routes of ``/`` and its files. Raises FileNotFoundError if one is missing."""
    rule = Rule(Access.OPEN, NATIVE_TABLE)
    router = GuardedRouter(rule)
    for path, source in PAGES.items():
        answer = declare(rule)(_answer(*source))
        router.add_route(path, answer, methods=["GET"], include_in_schema=False)  # and HEAD
    return router


def _answer(folder: str, name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    body = _TREE.joinpath(folder, name).read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {**_HEADERS, "etag": etag, "content-type": media_type}

    is_root = name == "page/index.html"

    async def answer(request: Request) -> Response:
        if is_root and "cartesia-version" in request.headers:  # its client's ``get_status``
            return JSONResponse({"ok": True, "version": service.__version__})
        asked = request.headers.get("if-none-match", "").split(",")
        has_it = etag in (tag.strip().removeprefix("W/") for tag in asked)
        return Response(None, 304, headers) if has_it else Response(body, 200, headers)

    return answer

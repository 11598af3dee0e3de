"""ASGI middleware that enforces access rules, and checks the origins of WebSocket handshakes.

The application's own router finds the route of a request, and the route has the rule that its
router declared (service.access.rules). So paths are not parsed a second time, with a possibly
different result. A route without a rule is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from fastapi import FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.rules import Access, Rule, rule_of
from service.auth.authenticator import presented_key
from service.auth.caller import NOBODY, Caller, serve_caller
from service.auth.keys import Scope as KeyScope
from service.errors import NATIVE_TABLE, ErrorLog
from service.hosts import called_by_address, is_allowed, is_known
from service.protocols import KEY_HEADERS
from service.runtime import Runtime
from service.settings import Settings
from streaming.errors import ErrorCode, RequestError, TalkwireError

log = logging.getLogger(__name__)
#: An address may be a name that a proxy has set, and is kept and logged.
_MOST_ADDRESS_CHARS = 64
#: The rule for paths without a route.
_ELSEWHERE = Rule(Access.ANY_KEY, NATIVE_TABLE)


class Gate:
    """Admits requests as their routes' rules say, and sets the caller (``service.auth.caller``).
    Clients without a key cannot learn which routes ``router`` has. ``bound``: the listener's host.
    """

    def __init__(self, app: ASGIApp, runtime: Runtime, router: Router, bound: str) -> None:
        self._app, self._runtime, self._router, self._bound = app, runtime, router, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        matches = (one for one in self._router.routes if one.matches(scope)[0] is Match.FULL)
        route = next(matches, None)
        rule = _ELSEWHERE if route is None else rule_of(route)
        try:
            serve_caller(self._admit(rule, scope))
        except TalkwireError as error:
            response = self._runtime.errors.refusal(error, (rule or _ELSEWHERE).errors)
            if error.code is ErrorCode.UNAUTHORIZED:
                response.headers["www-authenticate"] = 'Bearer realm="talkwire"'
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(response)
            else:
                await response(scope, receive, send)
            return
        if route is not None and rule is not None and rule.access is KeyScope.SPEAK:
            # a handshake or a request that does work
            is_handshake = scope["type"] == "websocket"
            if is_handshake or scope["method"] == "POST" or rule.speaks:
                await self._runtime.lifecycle.hold_until_ready()
        await self._app(scope, receive, send)

    def _admit(self, rule: Rule | None, scope: Scope) -> Caller:
        """Return the caller of an allowed request. Raises RequestError, CapacityError."""
        if rule is None:
            log.error("a route has no access rule and stays closed")
            raise RequestError(ErrorCode.FORBIDDEN, "Nobody may use this address.")
        access, settings, authority = rule.access, self._runtime.settings, self._runtime.authority
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if access is Access.PROBE or (access is Access.SCRAPE and called_by_address(hosts)):
            return NOBODY
        if not is_known(hosts, self._bound, settings.allowed_hosts):
            message = "This server does not go by that name; see the setting allowed_hosts."
            raise RequestError(ErrorCode.FORBIDDEN, message)
        needed = _needed(rule, settings)
        if needed in (Access.OPEN, Access.SCRAPE):
            return NOBODY
        if access is Access.METRICS and not authority.is_on:
            raise RequestError(ErrorCode.FORBIDDEN, "Metrics are not public here.")
        subprotocols, query = scope.get("subprotocols", ()), scope.get("query_string", b"")
        key = presented_key(scope["headers"], subprotocols, query, rule.query)
        is_late = rule.late_key and authority.is_on
        if key is None and (is_late or (rule.lists and settings.public_lists)):
            return NOBODY
        scopes = needed if isinstance(needed, KeyScope) else None
        return authority.admit(key, scopes, client_address(scope))


def client_address(scope: Scope) -> str:
    """Return the address of a request's client, to count its wrong keys."""
    return str((scope.get("client") or ("unknown",))[0])[:_MOST_ADDRESS_CHARS]


def _needed(rule: Rule, settings: Settings) -> Access | KeyScope:
    """Return the access of a rule. That of metrics depends on the settings."""
    if rule.access is not Access.METRICS:
        return rule.access
    return Access.OPEN if settings.metrics_are_public else KeyScope.ADMIN


class OriginGuard:
    """Refuses WebSocket handshakes of foreign pages (403), which CORS does not cover."""

    def __init__(self, app: ASGIApp, allowed: Collection[str], errors: ErrorLog) -> None:
        self._app, self._allowed, self._errors = app, allowed, errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            headers = websocket.headers
            if not is_allowed(headers.getlist("origin"), headers.get("host"), self._allowed):
                message = "Pages of this origin may not connect; see the setting allowed_origins."
                error = RequestError(ErrorCode.FORBIDDEN_ORIGIN, message)
                await websocket.send_denial_response(self._errors.refusal(error, NATIVE_TABLE))
                return
        await self._app(scope, receive, send)


_BEARER = "bearer"
#: OpenAPI 3.1's security schemes.
SCHEMES: dict[str, dict[str, str]] = {
    _BEARER: {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    **{
        scheme: {"type": "apiKey", "in": "header", "name": header}
        for scheme, header in KEY_HEADERS.items()
    },
    "deepgram_token": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "The header's whole value: Token KEY",
    },
}


def describe_keys(app: FastAPI, settings: Settings) -> None:
    """Add the security requirements of the app's current routes to ``app.openapi()``."""
    plain = app.openapi
    described = {
        (method.lower(), route.path_format): _security(rule_of(route), settings)
        for route in app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }

    def openapi() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {})["securitySchemes"] = SCHEMES
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                operation["security"] = described[method, path]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _security(rule: Rule | None, settings: Settings) -> list[dict[str, list[str]]]:
    """Return OpenAPI's alternative security requirements; without keys, none is also allowed."""
    rule = rule or _ELSEWHERE
    needed = _needed(rule, settings)
    if needed in (Access.PROBE, Access.OPEN):
        return []
    scopes = [needed.value] if isinstance(needed, KeyScope) else []
    own = [] if rule.scheme is None else [rule.scheme]
    is_open = settings.api_keys_file is None or (rule.lists and settings.public_lists)
    anyone: list[dict[str, list[str]]] = [{}] if is_open else []
    # OpenAPI 3.1 allows scopes as roles for an apiKey too.
    return [{scheme: list(scopes)} for scheme in (*own, _BEARER)] + anyone

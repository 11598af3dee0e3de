"""The gate before every route, HTTP and WebSocket: it lets in those whom the route's rule lets in.

The gate asks the application's own router which route a request is for, and the route for the rule
that its router declared (service.access.rules); so there is no second reading of addresses that
could come to another result. A route without a rule is closed to everybody.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.hosts import called_by_address, is_known
from service.access.rules import Access, Rule, rule_of
from service.auth.authenticator import presented_key
from service.auth.caller import NOBODY, Caller, serve_caller
from service.auth.keys import Scope as KeyScope
from service.dialects.errors import count_error
from service.dialects.native import TABLE
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError, TalkwireError

log = logging.getLogger(__name__)
#: Where there is no route.
_ELSEWHERE = Rule(Access.ANY_KEY, TABLE)


class Gate:
    """Lets in those whom the rules let in, and says who they are (``service.auth.caller``).
    Without a key one does not learn even where there is no route.

    Args:
        app: What is behind it.
        runtime: Its settings and keys.
        router: Chooses the routes.
        bound: The host that the listener is bound to.
    """

    def __init__(self, app: ASGIApp, runtime: Runtime, router: Router, bound: str) -> None:
        self._app, self._runtime, self._router, self._bound = app, runtime, router, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        route = _matched(self._router.routes, scope)
        rule = _ELSEWHERE if route is None else rule_of(route)
        try:
            serve_caller(self._admit(rule, scope))
        except TalkwireError as error:
            await self._refuse(rule or _ELSEWHERE, error, scope, receive, send)
            return
        if rule is not None and rule.access is KeyScope.SPEAK and _begins_speech(scope):
            await self._runtime.hold_until_ready()
        await self._app(scope, receive, send)

    def _admit(self, rule: Rule | None, scope: Scope) -> Caller:
        """Raises RequestError, CapacityError."""
        if rule is None:
            log.error("a route has no access rule and stays closed")
            raise RequestError(ErrorCode.FORBIDDEN, "Nobody may use this address.")
        access = rule.access
        if access is Access.PROBE:
            return NOBODY
        if access is Access.SCRAPE and called_by_address(_hosts(scope)):
            return NOBODY
        self._require_known_host(scope)
        settings, authority = self._runtime.settings, self._runtime.authority
        if access in (Access.OPEN, Access.SCRAPE):
            return NOBODY
        if access is Access.METRICS and settings.metrics_are_public:
            return NOBODY
        if access is Access.METRICS and not authority.is_on:
            raise RequestError(ErrorCode.FORBIDDEN, "Metrics are not public here.")
        needed = access if isinstance(access, KeyScope) else None
        if access is Access.METRICS:
            needed = KeyScope.ADMIN
        key = presented_key(
            scope["headers"],
            scope.get("subprotocols", ()),
            scope.get("query_string", b""),
            rule.query,
        )
        return authority.admit(key, needed, (scope.get("client") or ("unknown",))[0])

    def _require_known_host(self, scope: Scope) -> None:
        if not is_known(_hosts(scope), self._bound, self._runtime.settings.allowed_hosts):
            raise RequestError(
                ErrorCode.FORBIDDEN,
                "This server does not go by that name; see the setting allowed_hosts.",
            )

    async def _refuse(
        self, rule: Rule, error: TalkwireError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request_id = uuid.uuid4().hex
        count_error(self._runtime, error, request_id, rule.errors.dialect)
        response = rule.errors.refuse(error, request_id)
        if error.code is ErrorCode.UNAUTHORIZED:
            response.headers["www-authenticate"] = 'Bearer realm="talkwire"'
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)


def _begins_speech(scope: Scope) -> bool:
    """Whether it is a handshake, or a request that asks for more than a list."""
    return bool(scope["type"] == "websocket" or scope["method"] == "POST")


def _hosts(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


def _matched(routes: Sequence[BaseRoute], scope: Scope) -> BaseRoute | None:
    """The route that the router will choose; None if it will choose none."""
    return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)


_BEARER = "bearer"
#: OpenAPI 3.1's security schemes.
SCHEMES: dict[str, dict[str, str]] = {
    _BEARER: {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "xi_api_key": {"type": "apiKey", "in": "header", "name": "xi-api-key"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "deepgram_token": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "The header's whole value: Token KEY",
    },
}


def describe_keys(app: FastAPI, runtime: Runtime) -> None:
    """Have ``app.openapi()`` tell which key each of the routes that the app has by now takes."""
    plain = app.openapi
    routes = [one for one in app.routes if isinstance(one, APIRoute) and one.include_in_schema]
    described = {
        (method.lower(), route.path_format): _security(rule_of(route), runtime)
        for route in routes
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


def _security(rule: Rule | None, runtime: Runtime) -> list[dict[str, list[str]]]:
    """OpenAPI's security requirements: any of them will do, and none is needed if there are none.
    Without keys a client may send what it likes.
    """
    access = Access.ANY_KEY if rule is None else rule.access
    if access in (Access.PROBE, Access.OPEN):
        return []
    if access is Access.METRICS and runtime.settings.metrics_are_public:
        return []
    needed = KeyScope.ADMIN if access is Access.METRICS else access
    scopes = [needed.value] if isinstance(needed, KeyScope) else []
    own = [rule.scheme] if rule is not None and rule.scheme is not None else []
    anyone: list[dict[str, list[str]]] = [] if runtime.authority.is_on else [{}]
    # Of an apiKey, OpenAPI 3.1 lets scopes be told as roles too.
    return [{scheme: list(scopes)} for scheme in (*own, _BEARER)] + anyone

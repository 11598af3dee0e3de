"""What the OpenAPI document says of keys, made from the gate's own table.

So that clients that are generated from it send one: OpenAI's as a bearer token, the vendors'
dialects in their own header, which stands first. Every door takes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.auth.keys import Scope
from service.gate import Access, Decision, Decisions
from service.protocols.cartesia_errors import refusal as cartesia
from service.protocols.deepgram_errors import refusal as deepgram
from service.protocols.elevenlabs_errors import refusal as elevenlabs
from service.runtime import Runtime

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
#: A route that the table lacks is closed to everybody.
_CLOSED = Decision(Access.ANY_KEY)
_OWN: dict[Callable[..., Any], str] = {
    elevenlabs: "xi_api_key",
    cartesia: "x_api_key",
    deepgram: "deepgram_token",
}


def describe_keys(app: FastAPI, runtime: Runtime, decisions: Decisions) -> None:
    """Have ``app.openapi()`` tell which key each of the routes that the app has by now takes."""
    plain = app.openapi
    routes = [one for one in app.routes if isinstance(one, APIRoute) and one.include_in_schema]
    described = {
        (method.lower(), route.path_format): _security(
            decisions.get((method, route.path), _CLOSED), runtime
        )
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


def _security(decision: Decision, runtime: Runtime) -> list[dict[str, list[str]]]:
    """OpenAPI's security requirements: any of them will do, and none is needed if there are none.
    Without keys a client may send what it likes.
    """
    access = decision.access
    if access in (Access.PROBE, Access.OPEN):
        return []
    if access is Access.METRICS and runtime.settings.metrics_are_public:
        return []
    needed = Scope.ADMIN if access is Access.METRICS else access
    scopes = [needed.value] if isinstance(needed, Scope) else []
    own = [_OWN[decision.refusal]] if decision.refusal in _OWN else []
    anyone: list[dict[str, list[str]]] = [] if runtime.authority.is_on else [{}]
    # Of an apiKey, OpenAPI 3.1 lets scopes be told as roles too.
    return [{scheme: list(scopes)} for scheme in (*own, _BEARER)] + anyone

"""Access rules of routes, declared by their routers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from service.auth.keys import Scope
from service.errors import ErrorTable

_RULE = "__access_rule__"
#: Query parameters for keys, since browsers cannot set headers of handshakes or links.
BROWSER_QUERY = ("api_key", "access_token")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Access(Enum):
    """Access that depends on no scope of a key."""

    #: Any client and any Host header, since it reveals only the service's health.
    PROBE = "probe"
    #: Any client, by an address (scrapers use a pod's) or a known name of the server.
    SCRAPE = "scrape"
    #: Any client.
    OPEN = "open"
    #: Holders of a valid key, whatever its scopes.
    ANY_KEY = "any key"
    #: Any client if the metrics are public, else keys with the scope ``admin``.
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Rule:
    """The access rule of a route, and the rendering of its refusals."""

    access: Access | Scope
    errors: ErrorTable
    #: Query parameters that may hold the key, for clients that cannot set headers.
    query: tuple[str, ...] = ()
    #: OpenAPI security scheme of the key's header besides ``Authorization: Bearer``.
    scheme: str | None = None
    #: Whether the route speaks: it is held while engines start, and without a free slot it is
    #: refused before its body is parsed.
    speaks: bool = False
    #: Whether the route lists names, which the setting ``public_lists`` opens to clients without a
    #: key.
    lists: bool = False
    #: Whether the key may come in a socket's first message, which the dialect then checks.
    late_key: bool = False


class GuardedRouter(APIRouter):
    """A router whose rule all its routes have that declare no other."""

    def __init__(self, rule: Rule, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """See APIRouter. What is read by GET is also asked for by HEAD, as monitors do."""
        super().add_api_route(path, declare(self._rule)(endpoint), **options)
        route, rule = self.routes[-1], rule_of(self.routes[-1])
        if isinstance(route, APIRoute) and route.methods == {"GET"} and not (rule and rule.speaks):
            head = copy(route)
            head.methods, head.include_in_schema = {"HEAD"}, False
            self.routes.append(head)

    def add_api_websocket_route(
        self, path: str, endpoint: Callable[..., Any], name: str | None = None, **options: Any
    ) -> None:
        """See APIRouter."""
        super().add_api_websocket_route(path, declare(self._rule)(endpoint), name, **options)


def declare(rule: Rule) -> Callable[[Endpoint], Endpoint]:
    """Give the decorated endpoint a rule, unless it has one. Routes are added after that."""

    def declared(endpoint: Endpoint) -> Endpoint:
        if not hasattr(endpoint, _RULE):
            setattr(endpoint, _RULE, rule)
        return endpoint

    return declared


def rule_of(route: BaseRoute) -> Rule | None:
    """Return the rule of a route; None if it has none."""
    rule = getattr(getattr(route, "endpoint", None), _RULE, None)
    return rule if isinstance(rule, Rule) else None

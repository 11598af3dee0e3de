"""Access rules: what a route asks of its callers, declared by the router that the route is on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.routing import BaseRoute

from service.auth.keys import Scope
from service.dialects.errors import ErrorTable

_RULE = "__access_rule__"
#: Where browsers put a key that they cannot put into a header: of a handshake, of an address.
BROWSER_QUERY = ("api_key", "access_token")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Access(Enum):
    """Access where no scope of a key decides."""

    #: Anybody, by whatever name of the host: it tells nothing but whether the service is well.
    PROBE = "probe"
    #: Anybody, by an address or a name that the server goes by: scrapers ask by a pod's address.
    SCRAPE = "scrape"
    #: Anybody.
    OPEN = "open"
    #: Holders of a valid key, whatever its scopes.
    ANY_KEY = "any key"
    #: Anybody if the setting ``metrics_public`` says so, else keys with the scope ``admin``.
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Rule:
    """The access rule of a route: who may come in, and how others are refused."""

    access: Access | Scope
    errors: ErrorTable
    #: Parameters of the query that may hold the key, for clients without headers.
    query: tuple[str, ...] = ()
    #: OpenAPI's name of the header that clients may send it in beside ``Authorization: Bearer``.
    scheme: str | None = None


class GuardedRouter(APIRouter):
    """Routes that share one rule; routes taken from another router keep theirs."""

    def __init__(self, rule: Rule, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """See APIRouter."""
        super().add_api_route(path, declare(endpoint, self._rule), **options)

    def add_api_websocket_route(
        self, path: str, endpoint: Callable[..., Any], name: str | None = None, **options: Any
    ) -> None:
        """See APIRouter."""
        super().add_api_websocket_route(path, declare(endpoint, self._rule), name, **options)

    def take_routes(self, other: APIRouter) -> None:
        """Serve the routes of ``other`` as they are: ``include_router`` would build them anew, most
        of what making the application costs.
        """
        self.routes += other.routes


def declare(endpoint: Endpoint, rule: Rule) -> Endpoint:
    """Give an endpoint its rule, unless it has one."""
    if not hasattr(endpoint, _RULE):
        setattr(endpoint, _RULE, rule)
    return endpoint


def rule_of(route: BaseRoute) -> Rule | None:
    """The rule of a route; None where nobody declared one."""
    rule = getattr(getattr(route, "endpoint", None), _RULE, None)
    return rule if isinstance(rule, Rule) else None

"""The one place that decides who gets in: every route, HTTP and WebSocket, is in a table here.

The gate asks the application's own router which route a request is for, and the table what that
takes; so there is no second reading of addresses that could come to another result. A route that
is not in the table is closed to everybody, which its first test notices, and the matrix in
tests/service/test_auth_matrix.py too.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fastapi import Response, WebSocket
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.caller import NOBODY, Caller, serve_caller
from service.auth.credentials import presented_key
from service.auth.keys import Scope as KeyScope
from service.hosts import called_by_address, is_known
from service.http_speech import count_error
from service.native_refusal import refusal as native
from service.page import PAGES
from service.protocols.cartesia_errors import refusal as cartesia
from service.protocols.deepgram_errors import refusal as deepgram
from service.protocols.elevenlabs_errors import refusal as elevenlabs
from service.protocols.openai_errors import error_response as openai
from service.protocols.vllm_omni import refusal as vllm_omni
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError, TalkwireError

log = logging.getLogger(__name__)
Refusal = Callable[[TalkwireError, str], Response]


class Access(Enum):
    """Who may come in where no scope of a key decides."""

    #: Anybody, by whatever name of the host: it tells nothing but whether the service is well.
    PROBE = "probe"
    #: Anybody, by an address or a name that the server goes by: scrapers ask by a pod's address.
    SCRAPE = "scrape"
    #: Anybody.
    OPEN = "open"
    #: Whoever has a key, whatever it is for.
    ANY_KEY = "any key"
    #: Anybody if the setting ``metrics_public`` says so, else keys with the scope ``admin``.
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a route takes, how a refusal is worded, and in which of its query's parameters a key
    may be.
    """

    access: Access | KeyScope
    refusal: Refusal = native
    query: tuple[str, ...] = ()


#: By method (``WS`` for WebSockets) and the route's path.
Decisions = Mapping[tuple[str, str], Decision]

_BROWSER_QUERY = ("api_key", "access_token")
_EL, _VOICES = "/v1/text-to-speech/{voice_id}", "/v1/audio/voices"


def _speech() -> dict[tuple[str, str], Decision]:
    routes: Sequence[tuple[Refusal, str, Iterable[str]]] = (
        (native, "WS", ("/v1/tts/stream",)),
        (vllm_omni, "WS", ("/v1/audio/speech/stream",)),
        (openai, "POST", ("/v1/audio/speech", "/v1/audio/speech/batch")),
        (openai, "GET", ("/v1/models", "/v1/models/{name:path}", _VOICES, _VOICES + "/{id}")),
        (elevenlabs, "WS", (_EL + "/multi-stream-input", _EL + "/stream-input")),
        (elevenlabs, "POST", (_EL, _EL + "/stream")),
        (elevenlabs, "POST", (_EL + "/with-timestamps", _EL + "/stream/with-timestamps")),
        (elevenlabs, "GET", ("/v1/voices", "/v1/voices/{voice_id}")),
        (deepgram, "WS", ("/v1/speak",)),
        (deepgram, "POST", ("/v1/speak",)),
        (cartesia, "POST", ("/tts/bytes", "/tts/sse")),
        (cartesia, "GET", ("/voices", "/voices/{voice_id}")),
    )
    decided = {
        (method, path): Decision(KeyScope.SPEAK, wording)
        for wording, method, paths in routes
        for path in paths
    }
    decided["WS", "/tts/websocket"] = Decision(KeyScope.SPEAK, cartesia, _BROWSER_QUERY)
    return decided


def _with_head(decided: dict[tuple[str, str], Decision]) -> dict[tuple[str, str], Decision]:
    """HEAD is let in where GET is; most routes do not know it."""
    heads = {("HEAD", path): made for (method, path), made in decided.items() if method == "GET"}
    return decided | heads


_HEALTH = {
    ("GET", f"/health/{name}"): Decision(Access.PROBE) for name in ("live", "ready", "startup")
}
_DOCS = ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")

#: The public listener.
PUBLIC: Decisions = _with_head(
    {
        **_HEALTH,
        **{("GET", path): Decision(Access.OPEN) for path in PAGES},
        **{("GET", path): Decision(Access.ANY_KEY) for path in _DOCS},
        ("GET", "/metrics"): Decision(Access.METRICS),
        **_speech(),
        ("POST", _VOICES): Decision(KeyScope.VOICES_WRITE, openai),
        ("DELETE", _VOICES + "/{id}"): Decision(KeyScope.VOICES_WRITE, openai),
    }
)
#: The admin listener, which is for those who run the service: a network of its own guards it.
ADMIN: Decisions = _with_head(
    {
        **_HEALTH,
        ("GET", "/metrics"): Decision(Access.SCRAPE),
        **{
            (method, "/admin/drain"): Decision(KeyScope.ADMIN)
            for method in ("GET", "POST", "DELETE")
        },
    }
)
#: Addresses that do not exist: who has no key does not learn even that.
_NOWHERE = Decision(Access.ANY_KEY)


class Gate:
    """Lets in whom the table lets in, and says whom they are (``service.auth.caller``)."""

    def __init__(
        self, app: ASGIApp, runtime: Runtime, router: Router, decisions: Decisions, bound: str
    ) -> None:
        self._app, self._runtime, self._router = app, runtime, router
        self._decisions, self._bound = decisions, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        method = "WS" if scope["type"] == "websocket" else scope["method"]
        decision = self._decision(method, scope)
        try:
            serve_caller(self._admit(decision, scope))
        except TalkwireError as error:
            await self._refuse(decision or _NOWHERE, error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _decision(self, method: str, scope: Scope) -> Decision | None:
        """None for a route that is in no table."""
        path = _matched(self._router.routes, scope)
        return _NOWHERE if path is None else self._decisions.get((method, path))

    def _admit(self, decision: Decision | None, scope: Scope) -> Caller:
        """Raises RequestError, CapacityError."""
        if decision is None:
            log.error("a route is in no table of service/gate.py and stays closed")
            raise RequestError(ErrorCode.FORBIDDEN, "Nobody may use this address.")
        access = decision.access
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
            decision.query,
        )
        return authority.admit(key, needed, (scope.get("client") or ("unknown",))[0])

    def _require_known_host(self, scope: Scope) -> None:
        if not is_known(_hosts(scope), self._bound, self._runtime.settings.allowed_hosts):
            raise RequestError(
                ErrorCode.FORBIDDEN,
                "This server does not go by that name; see the setting allowed_hosts.",
            )

    async def _refuse(
        self, decision: Decision, error: TalkwireError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request_id = uuid.uuid4().hex
        count_error(self._runtime, error, request_id)
        response = decision.refusal(error, request_id)
        if error.code is ErrorCode.UNAUTHORIZED:
            response.headers["www-authenticate"] = 'Bearer realm="talkwire"'
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)


def _hosts(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


def _matched(routes: Sequence[BaseRoute], scope: Scope) -> str | None:
    """The path of the route that the router will choose; None if it will choose none."""
    for route in routes:
        if route.matches(scope)[0] is Match.FULL:
            return str(getattr(route, "path", ""))
    return None

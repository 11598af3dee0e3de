"""Every route with every kind of key, over real connections.

The required scopes are stated here independently of the gate's table, so a new route fails until
both agree.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from service.access.rules import rule_of
from service.admin import create_admin_app
from service.app import create_app
from service.page.routes import PAGES
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import Gateway, gateway

HEALTH = {"/health", *(f"/health/{name}" for name in ("live", "ready", "free", "startup"))}
OPEN = {*HEALTH, *PAGES}
DICTIONARIES = "/v1/pronunciation-dictionaries"
OTHER_SCOPES = {
    ("GET", "/metrics"): "admin",
    ("POST", "/v1/audio/voices"): "voices:write",
    ("DELETE", "/v1/audio/voices/{id}"): "voices:write",
    ("POST", "/v1/voices/add"): "voices:write",
    ("DELETE", "/v1/voices/{voice_id}"): "voices:write",
    ("POST", "/voices/clone"): "voices:write",
    ("DELETE", "/voices/{voice_id}"): "voices:write",
    ("POST", f"{DICTIONARIES}/add-from-rules"): "voices:write",
    ("POST", f"{DICTIONARIES}/add-from-file"): "voices:write",
    ("PATCH", DICTIONARIES + "/{id}"): "voices:write",
    ("POST", DICTIONARIES + "/{id}/add-rules"): "voices:write",
    ("POST", DICTIONARIES + "/{id}/set-rules"): "voices:write",
    ("POST", DICTIONARIES + "/{id}/remove-rules"): "voices:write",
    ("POST", "/pronunciation-dicts"): "voices:write",
    ("POST", "/pronunciation-dicts/"): "voices:write",
    ("PATCH", "/pronunciation-dicts/{id}"): "voices:write",
    ("DELETE", "/pronunciation-dicts/{id}"): "voices:write",
}
ANY_KEY = {"/openapi.json"}
ELEVENLABS = (
    "/v1/text-to-speech", "/v1/text-to-dialogue", "/v1/voices", "/v2/voices", "/v1/user",
    "/v1/single-use-token", DICTIONARIES,
)  # fmt: skip
ALL_SCOPES = ("speak", "voices:write", "admin")
REFUSED = {
    "none": 401,
    "wrong": 401,
    "revoked": 401,
    "expired": 401,
    "scopeless": 403,
    "right": None,
    "other": None,
}


class Route(NamedTuple):
    method: str
    path: str

    @property
    def address(self) -> str:
        """Return an address that matches the route."""
        name, _, rest = self.path.partition("{")
        return f"{name}x{rest.partition('}')[2]}" if rest else name


def routes_of(app: FastAPI) -> list[Route]:
    found: list[Route] = []
    for route in app.routes:
        path = str(getattr(route, "path", route))
        if isinstance(route, WebSocketRoute):
            found.append(Route("WS", path))
        else:
            found += [Route(m, path) for m in sorted(getattr(route, "methods", None) or {"?"})]
    return found


def scope_of(route: Route) -> str:
    method = "GET" if route.method == "HEAD" else route.method
    return OTHER_SCOPES.get((method, route.path), "speak")


def all_but(scope: str) -> str:
    """Name the key that lacks only this scope."""
    return f"all-but-{scope.replace(':', '-')}"


def keys(path: Path) -> Path:
    scoped = [
        entry(all_but(left_out), "acme", *(s for s in ALL_SCOPES if s != left_out))
        for left_out in ALL_SCOPES
    ]
    return write_keys(
        path,
        entry("right", "acme", *ALL_SCOPES),
        entry("other", "globex", *ALL_SCOPES),
        entry("revoked", "acme", *ALL_SCOPES, revoked_at="2026-01-01T00:00:00+00:00"),
        entry("expired", "acme", *ALL_SCOPES, expires_s=-1),
        *scoped,
    )


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(
        api_keys_file=keys(tmp_path / "keys.json"), max_failed_keys_per_minute=100_000
    ) as server:
        yield server


@pytest.fixture(scope="module")
def http() -> httpx.AsyncClient:
    """One client for all tests: making the TLS context of a client is slow."""
    return httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


async def ask(
    server: Gateway, http: httpx.AsyncClient, route: Route, key: str | None
) -> tuple[int, Any]:
    """Return the answer's status (101 for an accepted handshake) and its body."""
    headers = {} if key is None else bearer(key)
    address = server.http + route.address
    if route.method == "WS":
        try:
            async with connect(address.replace("http", "ws", 1), additional_headers=headers):
                return 101, None
        except InvalidStatus as refused:
            return refused.response.status_code, json.loads(refused.response.body or b"null")
    body: dict[str, Any] = {"json": {}} if route.method == "POST" else {}
    answer = await http.request(route.method, address, headers=headers, **body)
    is_json = answer.content and "json" in answer.headers.get("content-type", "")
    return answer.status_code, answer.json() if is_json else None


def told(route: Route, body: Any) -> str:
    """Return the error's code; fail if its shape is not the one of the route's dialect."""
    if route.path == "/v1/audio/speech/stream":
        assert body["type"] == "error"
        return str(body["code"])
    if route.path.startswith(ELEVENLABS):
        assert body["detail"]["status"] == body["detail"]["code"]
        return str(body["detail"]["code"])
    if route.path.startswith(("/v1/speak", "/v2/speak", "/v1/auth")):
        assert {"err_code", "err_msg", "request_id"} <= set(body)
        return str(body["err_code"]).lower()
    if route.path == "/tts":
        assert set(body) == {"error"}
        assert set(body["error"]) == {"code", "message"}
        return str(body["error"]["code"])
    if route.path.startswith(("/tts", "/voices", "/access-token", "/pronunciation-dicts")):
        assert {"title", "message", "status_code", "request_id"} <= set(body)
        return str(body["error_code"])
    if route.path in ("/v1/tts", "/v1/tts/live"):
        assert set(body) == {"status", "message", "code"}
        return str(body["code"])
    if route.path.startswith(("/v1/audio", "/v1/models")):
        assert {"message", "type", "param", "code"} == set(body["error"])
    return str(body["error"]["code"])


@pytest.mark.parametrize("kind", REFUSED)
async def test_every_route_answers_every_kind_of_key_as_expected(
    guarded: Gateway, http: httpx.AsyncClient, kind: str
) -> None:
    routes = routes_of(create_app(guarded.runtime))
    assert len(routes) > 60  # the list is not empty by mistake
    for route in routes:
        if kind == "scopeless" and route.path in ANY_KEY:
            continue  # needs a key, but no scope
        key = {"none": None, "scopeless": all_but(scope_of(route))}.get(kind, kind)
        status, body = await ask(guarded, http, route, key)
        wanted = None if route.path in OPEN else REFUSED[kind]
        if kind == "none" and route.method == "WS" and route.path.startswith(ELEVENLABS):
            wanted = None  # the key may come in the first message
        if wanted is None:
            assert status not in (401, 403), (kind, route, body)
            continue
        assert status == wanted, (kind, route, status, body)
        if body is not None:  # HEAD has none
            code = "unauthorized" if wanted == 401 else "forbidden"
            assert told(route, body) == code, (kind, route)


async def test_sockets_that_accept_without_key_serve_nothing(guarded: Gateway) -> None:
    routes = [route for route in routes_of(create_app(guarded.runtime)) if route.method == "WS"]
    accepted = [route for route in routes if route.path.startswith(ELEVENLABS)]
    assert len(accepted) > 3  # the list is not empty by mistake
    for route in accepted:
        async with connect(guarded.http.replace("http", "ws", 1) + route.address) as socket:
            await socket.send('{"context_id": "a", "voices": ["default"], "text": "Hello. "}')
            assert json.loads(await socket.recv())["error"] == "unauthorized", route
            await socket.wait_closed()
            assert socket.close_code == 1008, route


async def test_unknown_route_without_key_gets_401(
    guarded: Gateway, http: httpx.AsyncClient
) -> None:
    for address in ("/v1/nothing", "/admin/drain", "/health/../metrics", "//metrics", "/static/x"):
        for method in ("GET", "POST", "OPTIONS"):
            assert (await ask(guarded, http, Route(method, address), None))[0] == 401, (
                method,
                address,
            )
        assert (await ask(guarded, http, Route("WS", address), None))[0] == 401, address
    assert (await ask(guarded, http, Route("GET", "/v1/nothing"), "right"))[0] == 404


async def test_route_without_rule_is_forbidden(guarded: Gateway) -> None:
    app = create_app(guarded.runtime)

    @app.get("/new")
    async def new() -> str:
        return "new"

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        timeout=60, transport=transport, base_url="http://127.0.0.1"
    ) as straight:
        assert (await straight.get("/new", headers=bearer("right"))).status_code == 403


@pytest.mark.parametrize("make", ["public", "admin"])
async def test_every_route_declares_rule(guarded: Gateway, make: str) -> None:
    runtime = guarded.runtime
    app = create_app(runtime) if make == "public" else create_admin_app(runtime, lambda: None)
    assert app.routes
    assert [route for route in app.routes if rule_of(route) is None] == []


async def test_routes_need_no_key_if_none_is_configured(http: httpx.AsyncClient) -> None:
    async with gateway() as server:
        for route in routes_of(create_app(server.runtime)):
            status, body = await ask(server, http, route, None)
            assert status not in (401, 403), (route, body)

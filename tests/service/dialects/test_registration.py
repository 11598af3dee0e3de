"""Every dialect is entered wherever it has to be (docs/guides/add_a_dialect.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import Match

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.access.gate import SCHEMES
from service.access.rules import Rule, rule_of
from service.app import create_app
from service.auth.authenticator import presented_key
from service.auth.keys import Scope
from service.build import assemble
from service.dialects.wyoming.connection import TABLE as WYOMING
from service.engines.contracts import Engines
from service.protocols import KEY_HEADERS, PROTOCOLS
from service.settings import Settings
from tests.service.dialects.contract import adapters
from tests.service.live import SPEC

DOCS = Path(__file__).parents[3] / "docs"
Speaking = APIRoute | APIWebSocketRoute


@pytest.fixture(scope="module")
def routes() -> list[tuple[Speaking, Rule]]:
    """The routes that speak, with their rules."""
    app = create_app(assemble(Settings(), Engines(FakeTalker(), FakeCodecEngine(SPEC))))
    found = []
    for route in app.routes:
        rule = rule_of(route)
        if rule is None or rule.access is not Scope.SPEAK or not isinstance(route, Speaking):
            continue
        if rule.speaks or isinstance(route, APIWebSocketRoute):
            found.append((route, rule))
    assert found
    return found


def test_every_dialect_has_its_own_label_in_metrics(routes: list[tuple[Speaking, Rule]]) -> None:
    # Wyoming has a listener of its own, and so no route
    assert {rule.errors.dialect for _, rule in routes} | {WYOMING.dialect} == set(PROTOCOLS)


def test_every_dialect_is_in_contract_suite_under_its_label(
    routes: list[tuple[Speaking, Rule]],
) -> None:
    tested: set[tuple[type[Speaking], str]] = set()
    for protocol in adapters.PROTOCOLS.values():
        if isinstance(protocol, adapters.TcpProtocol):
            continue
        is_socket = isinstance(protocol, adapters.SocketProtocol)
        scope: dict[str, Any] = {
            "type": "websocket" if is_socket else "http",
            "method": "POST",
            "path": protocol.address.partition("?")[0],
        }
        ((route, rule),) = [one for one in routes if one[0].matches(scope)[0] is Match.FULL]
        assert rule.errors.dialect == protocol.name, protocol.address
        tested.add((type(route), route.path))
    assert {one.name for one in adapters.PROTOCOLS.values()} == set(PROTOCOLS)
    sockets = [route for route, _ in routes if isinstance(route, APIWebSocketRoute)]
    assert {(type(route), route.path) for route in sockets} <= tested


def test_every_speaking_path_is_documented(routes: list[tuple[Speaking, Rule]]) -> None:
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    for route, _ in routes:
        begin = route.path.partition("{")[0]
        assert re.search(rf"`[^`\n]*{re.escape(begin)}", pages), route.path


def test_key_header_of_every_dialect_is_read_and_described(
    routes: list[tuple[Speaking, Rule]],
) -> None:
    assert {rule.scheme for _, rule in routes} - {None} <= set(SCHEMES)
    for scheme, header in KEY_HEADERS.items():
        assert SCHEMES[scheme]["name"] == header
        assert presented_key([(header.lower().encode(), b"secret")]) == "secret"
    assert {rule.scheme for _, rule in routes} >= set(KEY_HEADERS)

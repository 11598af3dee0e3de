"""Origins of the web pages that may open a socket."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext

import pytest
from fastapi import Request
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from service.hosts import is_allowed, parse_origin, require_own_page
from service.settings import SettingsError, load_settings
from streaming.errors import ErrorCode, RequestError
from tests.service.live import gateway


@pytest.mark.parametrize(
    ("origins", "host", "allowed", "fine"),
    [
        ([], "a.org", [], True),  # not a browser
        (["http://a.org"], "a.org", [], True),
        (["https://a.org"], "a.org", [], True),  # TLS ends at a proxy
        (["https://a.org"], "a.org:443", [], True),
        (["http://a.org:80"], "a.org", [], True),
        (["http://A.org"], "a.ORG", [], True),
        (["http://[::1]:8000"], "[::1]:8000", [], True),
        (["http://a.org:8000"], "a.org:8001", [], False),
        (["http://a.org"], "a.org:8000", [], False),
        (["http://b.org"], "a.org", [], False),
        (["http://a.org.b.org"], "a.org", [], False),
        (["http://b.org/a.org"], "a.org", [], False),
        (["http://a.org@b.org"], "a.org", [], False),
        (["null"], "a.org", [], False),
        ([""], "a.org", [], False),
        (["file://"], "a.org", [], False),
        (["http://"], "", [], False),
        (["http://"], None, [], False),
        (["http://a.org:x"], "a.org:x", [], False),
        (["http://[a"], "[a", [], False),
        (["http://a.org", "http://b.org"], "a.org", [], False),
        (["http://b.org"], "a.org", ["http://b.org"], True),
        (["https://b.org"], "a.org", ["http://b.org"], False),
        (["http://b.org:8000"], "a.org", ["http://b.org"], False),
        (["null"], "a.org", ["null"], True),
        (["chrome-extension://x"], "a.org", ["*"], True),
    ],
)
def test_is_allowed_compares_origins_with_host_and_list(
    origins: list[str], host: str | None, allowed: list[str], fine: bool
) -> None:
    assert is_allowed(origins, host, allowed) is fine


def test_allowed_origins_setting_accepts_list_or_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    want = ("https://a.org", "http://b.org:81")
    assert load_settings().allowed_origins == ()
    assert load_settings(allowed_origins=["https://A.org:443/", want[1]]).allowed_origins == want
    monkeypatch.setenv("TALKWIRE_ALLOWED_ORIGINS", "https://a.org, http://b.org:81,")
    assert load_settings().allowed_origins == want


@pytest.mark.parametrize(
    ("entry", "origin"),
    [
        ("http://A.org:443", "http://a.org:443"),
        ("https://a.org:80/", "https://a.org:80"),
        ("http://[2001:DB8::1]:8000", "http://[2001:db8::1]:8000"),
        ("https://[::1]:443", "https://[::1]"),
    ],
)
def test_parse_origin_gives_form_of_browsers(entry: str, origin: str) -> None:
    assert parse_origin(entry) == origin


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://a.org"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "same-site", "referer": "http://b.org/x"}, False),
        ({"sec-fetch-site": "same-site", "referer": "http://friend.org?x"}, True),
        ({"origin": "http://b.org"}, False),
    ],
)
def test_own_page_is_known_by_origin_or_referer(headers: dict[str, str], fine: bool) -> None:
    sent = {"host": "a.org", **headers}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    request = Request({"type": "http", "headers": raw})
    with nullcontext() if fine else pytest.raises(RequestError) as refused:
        require_own_page(request, ["http://friend.org"])
    if not fine:
        assert refused is not None
        assert refused.value.code is ErrorCode.FORBIDDEN_ORIGIN


@pytest.mark.parametrize(
    "entry",
    [
        "a.org", "https://a.org/x", "ftp://a.org", "https://", "x:y:z", "https://a.org?x",
        "https://a.org#x", "https://a\t.org", "https://b.org@a.org", "https://*.a.org",
    ],
)  # fmt: skip
def test_allowed_origins_setting_refuses_invalid_origin(entry: str) -> None:
    with pytest.raises(SettingsError, match="allowed_origins"):
        load_settings(allowed_origins=[entry])
    with pytest.raises(ValueError):
        parse_origin(entry)


@pytest.mark.parametrize("entry", ["https://[::1", "https://a.org:99999", "https://a.org:x"])
def test_refusal_of_allowed_origin_shows_it_with_an_example(entry: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(allowed_origins=[entry])
    for part in ("allowed_origins", entry, "https://example.org"):
        assert part in str(refused.value)


async def test_handshake_from_foreign_origin_gets_403_with_code() -> None:
    async with gateway(allowed_origins=["https://friend.org"]) as server:
        for origin in (None, server.http, "https://friend.org"):
            async with connect(server.url, origin=Origin(origin) if origin else None) as socket:
                assert json.loads(await socket.recv())["type"] == "session.created"
        for origin in ("https://foe.org", "null", "https://friend.org.foe.org"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(server.url, origin=Origin(origin))
            response = refused.value.response
            assert response.status_code == 403
            error = json.loads(response.body or b"")["error"]
            assert (error["code"], error["retryable"]) == ("forbidden_origin", False)
            assert origin not in (response.body or b"").decode()


async def test_foreign_origin_is_refused_and_logged_on_every_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as server:
        for path in ("/v1/tts/stream", "/v1/audio/speech/stream", "/nowhere"):
            url = server.http.replace("http", "ws") + path
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, origin=Origin("https://foe.org"))
            response = refused.value.response
            assert response.status_code == 403
            request_id = response.headers["x-request-id"]
            told = [r for r in caplog.records if getattr(r, "request_id", None) == request_id]
            assert [getattr(r, "code", None) for r in told] == ["forbidden_origin"]

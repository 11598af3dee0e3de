"""HTTP errors that precede the handling of a complete request by a dialect."""

from __future__ import annotations

import asyncio
import gzip
import json

import httpx
import pytest

from service.transport import http_routes as http_route
from tests.service.live import gateway
from tests.service.transport.raw_connection import raw, rest

PATH = "/v1/audio/speech"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/page.js", 404),
        ("PUT", PATH, 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_unknown_route_or_method_gets_error_object(
    method: str, path: str, status: int
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        answer = await http.request(method, path)
        assert answer.status_code == status
        assert ("allow" in answer.headers) == (status == 405)
        assert len(answer.headers["x-request-id"]) == 32
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("unsupported", "invalid_request_error")
        assert error["message"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (PATH, "GET, HEAD, POST"),
        ("/v1/audio/voices", "GET, HEAD, POST"),
        ("/health/ready", "GET, HEAD"),
    ],
)
async def test_405_names_methods_of_all_routes_of_path(path: str, methods: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        answer = await http.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/v1/models?x=1", b"evil.example", 200),
        (b"HTTPS://localhost/v1/models", b"localhost", 200),
        (b"http://evil.example/v1/models", b"localhost", 403),
        (b"http://localhost", b"localhost", 200),
    ],
)
async def test_target_may_be_a_whole_url_which_replaces_host(
    target: bytes, host: bytes, status: int
) -> None:
    head = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(head % (target, host))
        assert int((await rest(reader)).split(b" ", 2)[1]) == status


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tts-1", "/v1/audio/voices"])
async def test_head_gets_status_and_headers_of_get(path: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        whole, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize(("length", "answers"), [(b"", 2), (b"Content-Length: 4\r\n", 1)])
async def test_request_with_two_lengths_is_the_last_of_its_connection(
    length: bytes, answers: int
) -> None:
    first = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    then = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(first % (PATH.encode(), length) + then)
        assert (await rest(reader)).count(b"HTTP/1.1 ") == answers


@pytest.mark.parametrize("path", [PATH, "/v1/audio/voices", "/tts/bytes", "/v1/speak", "/v1/tts"])
async def test_compressed_body_gets_415_that_names_the_header(path: str) -> None:
    kind = {"content-type": "application/json"}
    body = json.dumps({"input": "Hello.", "text": "Hello."}).encode()
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        packed = {**kind, "content-encoding": "gzip"}
        answer = await http.post(path, content=gzip.compress(body), headers=packed)
        assert answer.status_code == 415
        assert "Content-Encoding" in answer.text
        told = answer.json()  # Cartesia's and Fish Audio's bodies repeat the status
        assert told.get("status_code", told.get("status", 415)) == 415
        plain = {**kind, "content-encoding": "identity"}
        assert (await http.post(path, content=body, headers=plain)).status_code != 415


async def test_incomplete_body_gets_408_with_idle_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_route, "_BODY_S", 0.05)
    async with gateway() as server:
        host, port = server.http.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"input": ')
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"}}")
        writer.close()
        head_lines, _, told = answer.decode().partition("\r\n\r\n")
        assert head_lines.startswith("HTTP/1.1 408 ")
        assert "x-request-id: " in head_lines
        assert '"code":"idle_timeout"' in told
        assert server.runtime.admission.active == 0


_MANY = ",".join(["1"] * 10_000)
_EXTRA = ",".join(f'"{number}": 1' for number in range(10_000))
_MANY_VALUES = [
    ("/v1/audio/speech/batch", f'{{"items": [{_MANY}]}}'),
    ("/v1/audio/speech/batch", f' {{"items": [{{"input": "a", {_EXTRA}}}]}}'),
    (PATH, f"[{_MANY}]"),
    (PATH, f'{{"input": "a", "references": [{_MANY}]}}'),
    (PATH, f'{{"input": "a", "voice": {{{_EXTRA}}}}}'),
    ("/v1/audio/voices", f'{{"consent": {{{_EXTRA}}}}}'),
    ("/tts/bytes", f'{{"voice": {{{_EXTRA}}}}}'),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
async def test_body_with_many_values_is_refused_before_validation(encoding: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        for path, body in _MANY_VALUES:
            kind = {"content-type": "application/json"}
            answer = await http.post(path, content=body.encode(encoding), headers=kind)
            assert answer.status_code == 400, (path, answer.text)
            assert "The body has too many values." in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"x-api-key": "any"}, 200), ({"authorization": "Basic YTpi"}, 400), ({}, 400)],
)
async def test_body_without_content_type_needs_header_of_key(
    headers: dict[str, str], status: int
) -> None:
    """A page of another origin can send such a body, and cached credentials, but no key."""
    format_ = {"container": "raw", "sample_rate": 24_000}
    body = json.dumps({"transcript": "Hi.", "voice": "default", "output_format": format_})
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        answer = await http.post("/tts/bytes", content=body, headers=headers)
        assert answer.status_code == status, answer.text


def test_commas_in_strings_are_no_values() -> None:
    text = 'Then, "now", and a \\, too: ' * 800
    fields = {"voice": "default", "seed": 1, "speed": 1.0, "temperature": 0.5, "scene": text}
    body = {"items": [{"input": text, **fields} for _ in range(32)], "ref_audio": "A" * 100_000}
    for ascii_only in (True, False):
        data = json.dumps(body, ensure_ascii=ascii_only).encode()
        assert data.count(b",") > 32 * 2400
        assert not http_route.has_too_many_values(data, 1000)
        assert http_route.has_too_many_values(data, 400)


def test_scan_for_values_is_linear_in_the_body() -> None:
    """Each of these would take hours if the scan began again after a string without an end."""
    size = 2_000_000
    for body in (b'["' + b'\\"' * size, b"[" + b"," * 5000 + b"1" * size, b'[",' + b"\\" * size):
        assert not http_route.has_too_many_values(body, 6000)


async def test_bug_in_handler_is_answered_counted_and_logged_with_request_id(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:

        def broken() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(server.runtime.lifecycle, "require_ready", broken)
        answer = await http.post("/v1/audio/voices", json={})
        text = server.runtime.metrics.render().decode()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert 'tts_errors_total{code="internal"} 1.0' in text
    (told,) = [one for one in caplog.records if one.exc_info]
    assert isinstance(told.exc_info and told.exc_info[1], ZeroDivisionError)
    assert vars(told)["request_id"] == answer.headers["x-request-id"]

"""HTTP errors that precede the handling of a complete request by a dialect."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from service.transport import http_routes as http_route
from tests.service.live import gateway

PATH = "/v1/audio/speech"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/page.js", 404),
        ("PUT", PATH, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/speak", 405),
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

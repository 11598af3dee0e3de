"""Responses to handshakes that are refused, in every dialect and where there is none."""

from __future__ import annotations

import json
import logging

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from talkwire_client import Client, RefusedError
from tests.service.live import gateway
from tests.service.transport.raw_connection import raw, rest

SOCKETS = [
    "/v1/tts/stream",
    "/v1/speak",
    "/v2/speak",
    "/tts/websocket?cartesia_version=2025-04-16",
    "/v1/text-to-speech/default/stream-input",
    "/v1/text-to-speech/default/multi-stream-input",
    "/v1/text-to-dialogue/stream-input",
    "/v1/text-to-dialogue/multi-stream-input",
    "/v1/audio/speech/stream",
]


@pytest.mark.parametrize("path", SOCKETS)
async def test_refused_handshake_has_request_id_of_log_record(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as server:
        server.runtime.lifecycle.begin_drain()
        with pytest.raises(InvalidStatus) as refused:
            async with connect(server.url.removesuffix(SOCKETS[0]) + path):
                pass
        assert refused.value.response.status_code == 503
        found = refused.value.response.headers["x-request-id"]
    told = [r for r in caplog.records if getattr(r, "request_id", None) == found]
    assert [getattr(r, "code", None) for r in told] == ["draining"]


@pytest.mark.parametrize(
    ("request_line", "header", "status"),
    [
        ("GET /v1/tts/stream HTTP/1.1", "Cookie: " + "a" * 9000, 431),
        (f"GET /v1/speak?tag={'a' * 9000} HTTP/1.1", "Cookie: a", 414),
        ("POST /v1/audio/speech HTTP/1.1", "Content-Length: 2", 400),
        ("GET /v1/tts/stream HTTP/1.1", "Content-Length: 2", 400),
    ],
)
async def test_handshake_that_cannot_be_read_is_answered_and_closed(
    request_line: str, header: str, status: int
) -> None:
    head = f"{request_line}\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(f"{head}{header}\r\n\r\n".encode())
        answer = await rest(reader)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("path", "like"),
    [
        ("/v1/nothing", "/v1/nothing"),
        ("/v1/models", "/v1/nothing"),
        ("/v1/tts/stream/", "/v1/tts/nothing"),
    ],
)
async def test_handshake_on_path_without_socket_gets_404_like_http(
    path: str, like: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as server, httpx.AsyncClient() as http:
        wanted = (await http.get(f"{server.http}{like}")).json()
        url = server.url.removesuffix(SOCKETS[0]) + path
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url):
                pass
        response = refused.value.response
        assert (response.status_code, json.loads(response.body or b"")) == (404, wanted)
        told = [getattr(record, "request_id", None) for record in caplog.records]
        assert response.headers["x-request-id"] in told
        with pytest.raises(RefusedError, match=r"HTTP 404.*There is nothing at this address"):
            async with Client(url):
                pass

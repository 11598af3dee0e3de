"""Requests without a free slot are refused before their bodies are read and parsed."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from service.transport import server_config
from tests.service.live import gateway
from tests.service.transport.raw_connection import raw, rest

PATHS = [
    "/v1/audio/speech",
    "/openai/deployments/tts-1/audio/speech",
    "/v1/text-to-speech/default",
    "/v1/text-to-speech/default/stream",
    "/v1/text-to-speech/default/with-timestamps",
    "/v1/text-to-speech/default/stream/with-timestamps",
    "/tts/bytes",
    "/tts/sse",
    "/v1/speak",
]
PATIENCE_S = 120.0


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the next answer; return its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


def head_for(path: str, length: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("path", PATHS)
async def test_full_server_refuses_before_body_arrives(path: str) -> None:
    async with gateway(max_contexts=1) as server, raw(server) as (reader, writer):
        server.runtime.admission.acquire()
        async with asyncio.timeout(PATIENCE_S):
            writer.write(head_for(path, 100))
            status, body = await answer(reader)
            assert status in (429, 503)
            assert b"at its capacity" in body
            # the body is discarded, and the connection stays usable
            writer.write(100 * b"x" + b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("path", PATHS)
async def test_draining_server_refuses_before_body_arrives(path: str) -> None:
    async with gateway() as server, raw(server) as (reader, writer):
        server.runtime.lifecycle.begin_drain()
        async with asyncio.timeout(PATIENCE_S):
            writer.write(head_for(path, 100))
            status, body = await answer(reader)
        assert status == 503
        assert b"shutting down" in body
        assert 'tts_errors_total{code="draining"} 1.0' in server.runtime.metrics.render().decode()


async def test_refusal_of_long_body_is_sent_after_reading() -> None:
    """Otherwise the client could see a connection reset while it is still sending."""
    async with gateway() as server, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        server.runtime.lifecycle.begin_drain()
        body = {"input": "Hello.", "ref_audio": "data:audio/wav;base64," + "A" * 4_000_000}
        url = server.http + "/v1/audio/speech"
        refused = await http.post(url, json=body, headers={"connection": "close"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert server.runtime.uploads.active == 0


def bodies_parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the bodies that FastAPI's JSON parser gets from now on."""
    parsed: list[bytes] = []
    loads = json.loads

    def note(text: bytes, *args: object, **options: object) -> object:
        if isinstance(text, bytes):
            parsed.append(text)
        return loads(text, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(json, "loads", note)
    return parsed


async def test_refused_body_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        body = json.dumps({"input": "Hello.", "response_format": "pcm"}).encode()
        url, kind = server.http + "/v1/audio/speech", {"content-type": "application/json"}
        parsed = bodies_parsed(monkeypatch)
        assert (await http.post(url, content=body, headers=kind)).status_code == 200
        assert body in parsed
        parsed.clear()
        server.runtime.lifecycle.begin_drain()
        assert (await http.post(url, content=body, headers=kind)).status_code == 503
        assert body not in parsed


async def test_requests_without_speech_need_no_slot() -> None:
    async with gateway(max_contexts=1) as server, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        server.runtime.admission.acquire()
        for path in ("/v1/models", "/v1/audio/voices", "/voices"):
            assert (await http.get(server.http + path)).status_code == 200, path


async def test_refused_request_with_long_body_leaves_connection_usable() -> None:
    async with gateway() as server, raw(server) as (reader, writer):
        async with asyncio.timeout(PATIENCE_S):
            writer.write(head_for("/nowhere", 3_000_000))
            assert (await answer(reader))[0] == 404
            writer.write(3_000_000 * b"x" + b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await answer(reader))[0] == 200


async def test_chunks_of_refused_request_are_dropped_and_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_config, "_KEEP_ALIVE_S", 0.3)
    async with gateway() as server, raw(server) as (reader, writer):
        async with asyncio.timeout(PATIENCE_S):
            head = (
                b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            writer.write(head + b"1\r\n \r\n" * 50_000)
            assert (await answer(reader))[0] == 404
            assert await rest(reader) == b""


@pytest.mark.parametrize("path", [*PATHS, "/v1/audio/voices"])
async def test_length_over_limit_is_refused_before_body_arrives(path: str) -> None:
    async with gateway() as server, raw(server) as (reader, writer):
        writer.write(head_for(path, 99_999_999_999_999))
        async with asyncio.timeout(PATIENCE_S):
            status, body = await answer(reader)
        assert status == 413
        assert b"bytes at most" in body


async def test_head_that_is_too_long_gets_431_while_client_sends() -> None:
    async with gateway(handshake_s=0.5) as server, raw(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 200_000)
        assert (await rest(reader)).startswith(b"HTTP/1.1 431 ")


async def test_request_after_one_in_chunks_may_have_chunks_that_come_later() -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with gateway() as server, raw(server) as (reader, writer):
        async with asyncio.timeout(PATIENCE_S):
            writer.write(head % b"/nowhere" + b"0\r\n\r\n" + head % b"/v1/audio/speech")
            assert (await answer(reader))[0] == 404
            writer.write(b"2\r\n{}\r\n0\r\n\r\n")
            assert (await answer(reader))[0] == 400

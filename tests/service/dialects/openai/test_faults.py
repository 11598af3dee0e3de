"""Invalid requests, failures, disconnects and draining in OpenAI's API."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.lifecycle import Phase
from streaming.errors import BackendError, ErrorCode
from tests.service.dialects.openai.talk import EXACT, SPEAK, TEXT, official, parsed, whole
from tests.service.dialects.vendor_talk import s16
from tests.service.live import Gateway, gateway
from tests.waiting import until

PATH = "/v1/audio/speech"
PCM: dict[str, Any] = {"input": TEXT, "response_format": "pcm"}

REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"input": ""}, 400, "invalid_text", "input"),
    ({"input": "...?!"}, 400, "invalid_text", "input"),
    ({"input": 5}, 400, "invalid_message", "input"),
    ({"input": None}, 400, "invalid_message", "input"),
    ({"input": "x" * 101}, 413, "text_too_long", "input"),
    ({"model": "other"}, 404, "unknown_model", "model"),
    ({"voice": "nobody"}, 400, "unknown_voice", "voice"),
    ({"voice": {"id": "nobody"}}, 400, "unknown_voice", "voice"),
    ({"voice": {"id": "default", "x": 1}}, 400, "invalid_message", "voice.x"),
    ({"response_format": "midi"}, 400, "invalid_message", "response_format"),
    ({"stream_format": "ws"}, 400, "invalid_message", "stream_format"),
    ({"bitrate": 12_345}, 400, "unsupported", "bitrate"),  # pcm has no bit rate
    ({"bitrate": 0}, 400, "invalid_message", "bitrate"),
    ({"response_format": "mp3", "bitrate": 12_345}, 400, "unsupported", "bitrate"),
    ({"speed": 5}, 400, "invalid_message", "speed"),
    ({"speed": "1.0"}, 400, "invalid_message", "speed"),
    ({"instructions": "Whisper."}, 400, "unsupported", "instructions"),
    ({"ref_audio": "data:,"}, 400, "invalid_audio", "ref_audio"),
    ({"ref_audio": "data:"}, 400, "invalid_audio", "ref_audio"),
    ({"ref_audio": "å"}, 400, "invalid_audio", "ref_audio"),
    ({"ref_audio": "https://example.org/a.wav"}, 400, "unsupported", "ref_audio"),
    ({"ref_audio": "file:///etc/passwd"}, 400, "unsupported", "ref_audio"),
    ({"ref_audio": 5}, 400, "invalid_message", "ref_audio"),
    ({"ref_audio": "AAAA", "voice": "default"}, 400, "invalid_parameter", "ref_audio"),
    ({"ref_text": "Hello."}, 400, "invalid_parameter", "ref_text"),
    ({"temperature": 3}, 400, "invalid_message", "temperature"),
    ({"top_p": 0}, 400, "invalid_message", "top_p"),
    ({"top_k": 1.5}, 400, "invalid_message", "top_k"),
    ({"seed": True}, 400, "invalid_message", "seed"),
    ({"max_frames": 0}, 400, "invalid_message", "max_frames"),
    ({"max_new_tokens": 0}, 400, "invalid_message", "max_new_tokens"),
    ({"max_new_tokens": 9, "max_frames": 9}, 400, "invalid_parameter", "max_new_tokens"),
    ({"task_type": "VoiceDesign"}, 400, "unsupported", "task_type"),
    ({"task_type": "Base"}, 400, "invalid_parameter", "task_type"),
    ({"task_type": "CustomVoice", "ref_audio": "AAAA"}, 400, "invalid_parameter", "task_type"),
    ({"mode": "half"}, 400, "invalid_message", "mode"),
    ({"stream": "yes"}, 400, "invalid_message", "stream"),
    ({"colour": "red"}, 400, "invalid_message", "colour"),
]


@pytest.mark.parametrize(("fields", "status", "code", "param"), REFUSED)
async def test_error_names_invalid_field(
    fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    strict: dict[str, Any] = {"unspeakable_text": "error", "unknown_fields": "refuse"}
    async with (
        gateway(max_text_chars=100, **strict) as server,
        httpx.AsyncClient(timeout=60) as http,
    ):
        answer = await http.post(server.http + PATH, json=PCM | fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert len(answer.headers["x-request-id"]) == 32
        await server.until_free()
        counted = (await http.get(server.http + "/metrics")).text
        assert f'tts_errors_total{{code="{code}"}} 1.0' in counted
        assert (await http.post(server.http + PATH, json=PCM)).status_code == 200


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"", "application/json", 400, "invalid_message"),
        (b"[]", "application/json", 400, "invalid_message"),
        (b'{"input":"Hello."}', "text/plain", 400, "invalid_message"),
        (b'{"input":"Hello.","top_p":NaN}', "application/json", 400, "invalid_message"),
        (b'{"input":"' + b"x" * 15_000_000, "application/json", 413, "text_too_long"),
    ],
)
async def test_invalid_body_is_refused(
    content: bytes, media_type: str, status: int, code: str
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        headers = {"content-type": media_type}
        answer = await http.post(server.http + PATH, content=content, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_body_limit_allows_longest_text() -> None:
    async with gateway(max_text_chars=60, max_message_bytes=1024) as server:
        body = json.dumps(PCM | {"input": "Clapping: " + "\N{PARTY POPPER}" * 50})
        assert len(body) > 12 * 50
        async with httpx.AsyncClient(timeout=60) as http:
            headers = {"content-type": "application/json"}
            answer = await http.post(server.http + PATH, content=body, headers=headers)
            assert answer.status_code == 200


async def test_official_client_raises_typed_errors() -> None:
    async with gateway(FakeTalker(row_s=0.01), max_contexts=1) as server, official(server) as api:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.audio.speech.create(**{**SPEAK, "voice": "nobody"})
        assert (bad.value.code, bad.value.param) == ("unknown_voice", "voice")
        assert "there is default" in bad.value.message
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError):
            await api.audio.speech.create(**{**SPEAK, "model": "other"})
        async with open_stream(server):
            with pytest.raises(openai.RateLimitError) as full:
                await api.audio.speech.create(**SPEAK)
            assert full.value.code == "overloaded"
            assert int(full.value.response.headers["retry-after"]) >= 1
            assert int(full.value.response.headers["retry-after-ms"]) >= 50
        await server.until_free()
        server.codec.is_ready = False
        with pytest.raises(openai.InternalServerError) as loading:
            await api.audio.speech.create(**SPEAK)
        assert (loading.value.status_code, loading.value.code) == (503, "not_ready")
        assert loading.value.response.headers["retry-after"] == "1"


async def test_official_client_retries_until_slot_is_free() -> None:
    async with gateway(FakeTalker(row_s=0.001), max_contexts=8, **EXACT) as server:
        patient = official(server).with_options(max_retries=10)
        async with patient as api:
            speaking = [api.audio.speech.create(**SPEAK, response_format="pcm") for _ in range(10)]
            for spoken in await asyncio.gather(*speaking):
                assert spoken.content == s16(whole(server))


@asynccontextmanager
async def open_stream(server: Gateway, **fields: Any) -> AsyncIterator[httpx.Response]:
    """Open a streamed response whose headers have arrived."""
    async with (
        httpx.AsyncClient(timeout=60) as http,
        http.stream("POST", server.http + PATH, json=PCM | fields) as answer,
    ):
        assert answer.status_code == 200
        yield answer


async def test_disconnect_stops_generation() -> None:
    talker = FakeTalker(row_s=0.002, frames_per_character=50)
    async with gateway(talker) as server:
        async with open_stream(server) as answer:
            await anext(answer.aiter_raw())
            assert server.talker.outstanding == 1
        await server.until_free()
        text = await metrics(server)
        assert 'tts_contexts_total{outcome="cancelled",protocol="openai"} 1.0' in text
        assert server.runtime.lifecycle.connections == 0


async def test_disconnect_before_first_byte_cancels_codec() -> None:
    async with gateway() as server:
        server.codec.delay_s = 3600
        async with httpx.AsyncClient(timeout=60) as http:
            asking = asyncio.create_task(http.post(server.http + PATH, json=PCM))
            await until(lambda: server.codec.outstanding)
            assert asking.cancel()
            await asyncio.wait([asking])
        await server.until_free()
        assert server.codec.cancelled == 1


async def metrics(server: Gateway) -> str:
    async with httpx.AsyncClient(timeout=60) as http:
        return (await http.get(server.http + "/metrics")).text


FAILS = TEXT + " This will !fail now."
LATE: dict[str, Any] = {"frames_per_character": 4, "row_s": 0.001, "fail_after": 60}


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_failure_before_first_byte_has_status(stream_format: str) -> None:
    body = {"input": "This will !fail now.", "stream_format": stream_format}
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + PATH, json=body)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_failed"
        assert answer.json()["error"]["type"] == "server_error"


async def test_failure_after_first_byte_aborts_body() -> None:
    async with gateway(FakeTalker(**LATE)) as server, official(server) as api:
        async with open_stream(server, input=FAILS) as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces)
            with pytest.raises(httpx.RemoteProtocolError):
                _ = [piece async for piece in pieces]
        with pytest.raises(openai.APIConnectionError):
            await api.audio.speech.create(**{**SPEAK, "input": FAILS})
        await server.until_free()
        assert 'tts_errors_total{code="engine_failed"} 2.0' in await metrics(server)


async def test_failure_after_first_event_is_error_event() -> None:
    async with gateway(FakeTalker(**LATE)) as server:
        async with open_stream(server, input=FAILS, stream_format="sse") as answer:
            events = parsed((await answer.aread()).decode())
        assert len(events) > 1
        assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
        assert (events[-1]["type"], events[-1]["error"]["code"]) == ("error", "engine_failed")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BackendError(ErrorCode.CODEC_FAILED, "Told."), 500, "codec_failed"),
        (BackendError(ErrorCode.ENGINE_RESTARTING, "Told."), 503, "engine_restarting"),
        (RuntimeError("secret at 0xdeadbeef"), 500, "internal"),
    ],
)
async def test_speech_reports_codec_failure(failure: Exception, status: int, code: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        server.codec.fail_with = failure
        answer = await http.post(server.http + PATH, json=PCM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert "secret" not in answer.text
        await server.until_free()


#: Settings and a talker for more audio than the kernel's buffers hold.
FAR_AHEAD = {"default_lead_ms": 10**7, "max_lead_ms": 10**7}
LONG = FakeTalker(frames_per_character=70, spec=replace(FAKE_SPEC, max_frames=10_000))


@asynccontextmanager
async def unread(server: Gateway) -> AsyncIterator[socket.socket]:
    """Send a request without reading the response, with the smallest receive buffer."""
    body = json.dumps(PCM).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(wire, ("127.0.0.1", httpx.URL(server.http).port))
        await loop.sock_sendall(wire, head.encode() + body)
        yield wire


async def test_unread_response_pauses_codec() -> None:
    settings: dict[str, Any] = {**FAR_AHEAD, "slow_consumer_s": 60}
    async with gateway(LONG, **settings, **EXACT) as server, unread(server) as wire:
        async with asyncio.timeout(30):
            held, same = -1, 0
            while same < 25:
                await asyncio.sleep(0.02)
                same = same + 1 if server.codec.decoded == held > 0 else 0
                held = server.codec.decoded
        assert server.runtime.admission.active == 1
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        answer = bytearray()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while piece := await loop.sock_recv(wire, 1 << 20):
                answer += piece
        assert server.codec.decoded > held
        assert unchunked(bytes(answer)) == s16(whole(server))


def unchunked(answer: bytes) -> bytes:
    data, at = bytearray(), answer.index(b"\r\n\r\n") + 4
    while True:
        line = answer.index(b"\r\n", at)
        size, at = int(answer[at:line], 16), line + 2
        if not size:
            return bytes(data)
        data += answer[at : at + size]
        at += size + 2


async def test_unread_response_loses_slot_after_slow_consumer_s() -> None:
    # the client has audio left to play, for which it would get more time without drain_s
    settings: dict[str, Any] = {**FAR_AHEAD, "slow_consumer_s": 0.3, "drain_s": 0.1}
    async with gateway(LONG, **settings) as server, unread(server):
        await until(lambda: server.runtime.admission.active)
        await until(lambda: not server.runtime.admission.active, timeout_s=30)
        await server.until_free()
        text = await metrics(server)
        assert 'tts_errors_total{code="slow_consumer"} 1.0' in text
        assert 'tts_contexts_total{outcome="cancelled",protocol="openai"} 1.0' in text


async def test_drain_finishes_open_response_and_refuses_new() -> None:
    async with gateway(FakeTalker(row_s=0.002), **EXACT) as server:
        async with open_stream(server) as answer:
            draining = asyncio.create_task(server.runtime.lifecycle.drain())
            await server.runtime.lifecycle.draining.wait()
            async with httpx.AsyncClient(timeout=60) as http:
                refused = await http.post(server.http + PATH, json=PCM)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert await answer.aread() == s16(whole(server))
        await draining
        assert server.runtime.lifecycle.phase is Phase.DRAINING


async def test_drain_ends_open_response_after_drain_s() -> None:
    talker = FakeTalker(row_s=0.005, frames_per_character=50)
    async with gateway(talker, drain_s=0.2) as server:
        async with open_stream(server, stream_format="sse") as answer:
            draining = asyncio.create_task(server.runtime.lifecycle.drain())
            events = parsed((await answer.aread()).decode())
        await draining
        assert events[-1]["error"]["code"] == "draining"
        await server.until_free()

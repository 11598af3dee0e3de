"""Deepgram's socket: refused handshakes and messages, failures, timeouts, draining."""

from __future__ import annotations

import asyncio
import json

import pytest
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FakeTalker
from streaming.errors import BackendError, ErrorCode
from tests.service.dialects.deepgram.talk import EXACT, SLOW, TEXTS, speaking
from tests.service.dialects.vendor_talk import s16
from tests.service.live import gateway


@pytest.mark.parametrize(
    ("message", "code", "close"),
    [
        ("{", "INVALID_JSON", 1008),
        ("[" * 9999, "INVALID_JSON", 1008),
        ("[]", "UNKNOWN_MESSAGE", 1008),
        ('{"type":"Sing"}', "UNKNOWN_MESSAGE", 1008),
        ('{"type":"Speak"}', "INVALID_MESSAGE", 1008),
        ('{"type":"Speak","text":5}', "INVALID_MESSAGE", 1008),
        (b"\0", "INVALID_MESSAGE", 1003),
    ],
)
async def test_invalid_message_closes_socket(message: str | bytes, code: str, close: int) -> None:
    async with gateway() as server, speaking(server) as talk:
        await talk.socket.send(message)
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", code)
        assert error["description"]
        assert error["request_id"]
        assert await talk.closed() == close


async def test_too_long_text_gets_warning() -> None:
    async with gateway(max_text_chars=60, **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Speak", text="x" * 50)
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "TEXT_TOO_LONG")
        assert warning["description"]
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"
        assert talk.audio == s16(server.whole(TEXTS[0]))


@pytest.mark.parametrize(
    ("failure", "code", "close"),
    [
        (BackendError(ErrorCode.CODEC_FAILED, "Told."), "CODEC_FAILED", 1011),
        (RuntimeError("secret at 0xdeadbeef"), "INTERNAL", 1011),
    ],
)
async def test_failed_turn_closes_socket(failure: Exception, code: str, close: int) -> None:
    async with gateway() as server, speaking(server) as talk:
        server.codec.fail_with = failure
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", code)
        assert "secret" not in error["description"]
        assert await talk.closed() == close
        await server.until_free()


async def test_full_server_closes_socket_with_1013() -> None:
    async with (
        gateway(FakeTalker(**SLOW), max_contexts=1) as server,
        speaking(server) as first,
        speaking(server) as second,
    ):
        await first.send("Speak", text=TEXTS[1] * 3)
        await first.hear()
        await second.send("Speak", text=TEXTS[0])
        error = await second.next()
        assert (error["type"], error["code"]) == ("Error", "OVERLOADED")
        assert await second.closed() == 1013
        await first.hear()


async def test_idle_text_is_dropped_and_idle_socket_closes() -> None:
    async with gateway(context_idle_s=0.1, session_idle_s=0.7) as server, speaking(server) as talk:
        await talk.send("Speak", text="Nobody ever flushes this")
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "IDLE_TIMEOUT")
        await server.until_free()
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", "IDLE_TIMEOUT")
        assert await talk.closed() == 1001


async def test_idle_turn_ends_without_warning_if_all_was_spoken() -> None:
    async with gateway(context_idle_s=0.1, **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[0])
        while len(talk.audio) < len(s16(server.whole(TEXTS[0]))):
            await talk.hear()
        await server.until_free()
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 0}
        assert talk.audio == s16(server.whole(TEXTS[0]))


async def test_drain_lets_turn_finish() -> None:
    async with gateway(FakeTalker(row_s=0.002), **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.hear()
        draining = asyncio.create_task(server.runtime.lifecycle.drain())
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "DRAINING")
        assert (await talk.next())["type"] == "Flushed"
        assert talk.audio == s16(server.whole(TEXTS[1]))
        assert await talk.closed() == 1001
        await draining
        told = server.runtime.metrics.render().decode()
        assert 'tts_errors_total{code="draining"} 0.0' in told


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("model=nobody", 400, "UNKNOWN_VOICE"),
        ("encoding=mp3", 400, "UNSUPPORTED"),
        ("container=wav", 400, "UNSUPPORTED"),
        ("sample_rate=11025", 400, "UNSUPPORTED"),
        ("sample_rate=fast", 400, "INVALID_PARAMETER"),
        ("sample_rate=8000.5", 400, "INVALID_PARAMETER"),
        ("speed=9", 400, "INVALID_PARAMETER"),
        ("speed=nan", 400, "INVALID_PARAMETER"),
        ("bit_rate=48000", 400, "UNSUPPORTED"),
        ("callback=http%3A%2F%2Fx", 400, "UNSUPPORTED"),
    ],
)
async def test_handshake_with_invalid_query_is_refused(query: str, status: int, code: str) -> None:
    async with gateway() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with speaking(server, query):
                pytest.fail("it was accepted")
        response = refused.value.response
        body = json.loads(response.body)
        assert (response.status_code, body["err_code"]) == (status, code)
        assert response.headers["dg-error"] == body["err_msg"]
        assert response.headers["dg-request-id"] == body["request_id"]


async def test_handshake_ignores_mip_opt_out_and_tag() -> None:
    query = "mip_opt_out=true&tag=a&tag=b&model=default"
    async with gateway() as server, speaking(server, query) as talk:
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"

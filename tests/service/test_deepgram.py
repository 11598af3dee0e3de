"""Deepgram's version 1 against a live gateway: every message, every error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from service.audio.resample import Resampler
from service.protocols.deepgram_text import joined
from streaming.errors import BackendError, ErrorCode
from talker.fake import FakeTalker
from tests.service.audio_signal import decoded_file
from tests.service.listening import PADDING, decoded, likeness
from tests.service.live import SPEC, Gateway, gateway
from tests.service.test_openai import s16
from tests.service.test_speed import stretched

TEXTS = ["The first one is short.", "The second one is somewhat longer than that."]
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}


class Talk:
    """A bare client: bytes are audio, text is JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.audio = socket, b""

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def next(self) -> dict[str, Any]:
        """The next message, after the audio before it."""
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, str):
                return dict(json.loads(data))
            self.audio += data

    async def hear(self) -> bytes:
        """The next audio."""
        async with asyncio.timeout(60):
            data = await self.socket.recv()
        assert isinstance(data, bytes), data
        self.audio += data
        return data

    async def closed(self) -> int | None:
        """Read on until the socket closes; its code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def speaking(server: Gateway, query: str = "", greet: bool = True) -> AsyncIterator[Talk]:
    url = server.http.replace("http", "ws") + "/v1/speak" + (f"?{query}" if query else "")
    headers = {"Authorization": "Token any"}
    async with connect(url, additional_headers=headers, compression=None) as socket:
        talk = Talk(socket)
        if greet:
            assert (await talk.next())["type"] == "Metadata"
        yield talk


async def test_a_turn_after_another_on_one_socket() -> None:
    query = "model=default&encoding=linear16&sample_rate=24000"
    async with gateway(**EXACT) as server, speaking(server, query) as talk:
        for number, text in enumerate(TEXTS):
            talk.audio = b""
            for word in text.split():
                await talk.send("Speak", text=word + " ")
            await talk.send("Flush")
            assert await talk.next() == {"type": "Flushed", "sequence_id": number}
            assert talk.audio == s16(server.whole(text))
            await server.until_free()  # between turns it holds no place
        await talk.send("Close")
        assert await talk.closed() == 1000


async def test_the_first_message_says_who_speaks() -> None:
    async with gateway() as server, speaking(server, "model=default", greet=False) as talk:
        metadata = await talk.next()
        assert metadata["type"] == "Metadata"
        assert metadata["model_name"] == "default"
        assert {"request_id", "model_version", "model_uuid"} <= set(metadata)


@pytest.mark.parametrize(
    ("query", "rate"),
    [("", 24_000), ("sample_rate=8000", 8_000), ("sample_rate=48000&encoding=linear16", 48_000)],
)
async def test_linear_audio_at_any_rate(query: str, rate: int) -> None:
    async with gateway(**EXACT) as server, speaking(server, query) as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        await talk.next()
        wanted = server.whole(TEXTS[0])
        if rate != SPEC.sample_rate:
            resampler = Resampler(SPEC.sample_rate, rate)
            wanted = np.concatenate([resampler.push(wanted), resampler.finish()])
        assert talk.audio == s16(wanted)


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
async def test_telephony_is_8000_hz_unless_told(encoding: str) -> None:
    async with gateway(**EXACT) as server, speaking(server, f"encoding={encoding}") as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        await talk.next()
        assert len(talk.audio) == len(server.whole(TEXTS[0])) // 3


async def test_speed() -> None:
    async with gateway(**EXACT) as server, speaking(server, "speed=1.5") as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"
        assert talk.audio == s16(stretched(server.whole(TEXTS[0]), 1.5))
        talk.audio = b""
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.next()
        assert talk.audio == s16(stretched(server.whole(TEXTS[1]), 1.5))


async def test_sentences_without_spaces_between_them_are_two() -> None:
    """As Pipecat sends them; the first is spoken before the second has come."""
    async with gateway(**EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.hear()
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.next()
        assert talk.audio == b"".join(s16(server.whole(text)) for text in TEXTS)


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["Hello there.", "How are you?"], "Hello there. How are you? "),
        (["Hel", "lo", ".", " How"], "Hello. How"),
        (["Pi is 3", ".", "14"], "Pi is 3.14"),
        (["It costs 3.", "50 dollars."], "It costs 3.50 dollars. "),
        (["See example", ".", "com"], "See example.com"),
        (["Yes.", "It is."], "Yes. It is. "),
        (["He said “go.”", "Then"], "He said “go.” Then"),
        (["He went.", "3 came."], "He went. 3 came. "),
        (["a ", "b"], "a b"),
        (["Wait…", "“What”"], "Wait… “What”"),
    ],
)
def test_what_is_missing_between_pieces(pieces: list[str], whole: str) -> None:
    text, tail = "", ""
    for piece in pieces:
        added, tail = joined(tail, piece)
        text += added
    assert text == whole


async def test_several_flushes_of_one_turn_are_told_in_order() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, speaking(server) as talk:
        for text in TEXTS:
            await talk.send("Speak", text=text)
            await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 0}
        assert talk.audio == s16(server.whole(TEXTS[0]))
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        assert talk.audio == b"".join(s16(server.whole(text)) for text in TEXTS)
        await server.until_free()


@pytest.mark.parametrize("text", ["", "   ", "🙂", "..."])
async def test_a_flush_without_anything_to_speak(text: str) -> None:
    async with gateway() as server, speaking(server) as talk:
        await talk.send("Speak", text=text)
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 0}
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        assert talk.audio == b""
        await server.until_free()
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert (await talk.next())["sequence_id"] == 2
        assert talk.audio


SLOW: dict[str, Any] = {"row_s": 0.001, "frames_per_character": 20}


async def test_after_cleared_not_a_sample_of_the_old_turn_comes() -> None:
    """As Pipecat interrupts. The flush that was waiting is never told."""
    async with gateway(FakeTalker(**SLOW), **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1] * 3)
        await talk.send("Flush")
        await talk.hear()
        await talk.send("Clear")
        assert await talk.next() == {"type": "Cleared", "sequence_id": 0}
        await server.until_free()
        talk.audio = b""
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        assert talk.audio == s16(server.whole(TEXTS[0]))
        await talk.send("Clear")
        assert await talk.next() == {"type": "Cleared", "sequence_id": 2}


async def test_flush_and_close_abort() -> None:
    """As LiveKit interrupts: it has no other way."""
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1] * 5)
        await talk.hear()
        await talk.send("Flush")
        await talk.send("Close")
        assert await talk.closed() == 1000
        assert len(talk.audio) < len(s16(server.whole(TEXTS[1] * 5))) / 2
        await server.until_free()
        made = server.talker.rows_made
        await asyncio.sleep(0.05)
        assert server.talker.rows_made == made


async def test_a_client_that_goes_ends_the_work() -> None:
    async with gateway(FakeTalker(**SLOW)) as server:
        async with speaking(server) as talk:
            await talk.send("Speak", text=TEXTS[1] * 5)
            await talk.send("Flush")
            await talk.hear()
        async with asyncio.timeout(60):
            while server.runtime.connections:
                await asyncio.sleep(0.005)


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
async def test_what_is_no_message(message: str | bytes, code: str, close: int) -> None:
    async with gateway() as server, speaking(server) as talk:
        await talk.socket.send(message)
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", code)
        assert error["description"]
        assert error["request_id"]
        assert await talk.closed() == close


async def test_a_text_too_long_is_a_warning() -> None:
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
async def test_a_turn_that_fails_closes_the_socket(
    failure: Exception, code: str, close: int
) -> None:
    async with gateway() as server, speaking(server) as talk:
        server.codec.fail_with = failure
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", code)
        assert "secret" not in error["description"]
        assert await talk.closed() == close
        await server.until_free()


async def test_a_full_server_says_come_again() -> None:
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


async def test_idle_text_is_dropped_and_idle_sockets_close() -> None:
    async with gateway(context_idle_s=0.1, session_idle_s=0.7) as server, speaking(server) as talk:
        await talk.send("Speak", text="Nobody ever flushes this")
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "IDLE_TIMEOUT")
        await server.until_free()
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", "IDLE_TIMEOUT")
        assert await talk.closed() == 1001


async def test_a_server_that_goes_lets_a_turn_finish() -> None:
    async with gateway(FakeTalker(row_s=0.002), **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.hear()
        draining = asyncio.create_task(server.runtime.drain())
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "DRAINING")
        assert (await talk.next())["type"] == "Flushed"
        assert talk.audio == s16(server.whole(TEXTS[1]))
        assert await talk.closed() == 1001
        await draining


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
async def test_a_handshake_that_cannot_be_served(query: str, status: int, code: str) -> None:
    async with gateway() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with speaking(server, query):
                pytest.fail("it was accepted")
        response = refused.value.response
        body = json.loads(response.body)
        assert (response.status_code, body["err_code"]) == (status, code)
        assert response.headers["dg-error"] == body["err_msg"]
        assert response.headers["dg-request-id"] == body["request_id"]


async def test_handshakes_before_readiness_and_beyond_the_limit() -> None:
    async with gateway(max_connections=1) as server:
        async with speaking(server):
            with pytest.raises(InvalidStatus) as refused:
                async with speaking(server):
                    pytest.fail("it was accepted")
        assert refused.value.response.status_code == 429
        server.codec.is_ready = False
        with pytest.raises(InvalidStatus) as refused:
            async with speaking(server):
                pytest.fail("it was accepted")
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"


async def test_what_is_about_deepgrams_books_is_ignored() -> None:
    query = "mip_opt_out=true&tag=a&tag=b&model=default"
    async with gateway() as server, speaking(server, query) as talk:
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"


async def test_other_vendors_voices_by_alias_or_by_default() -> None:
    aliases = {"aura-2-thalia-en": "default"}
    async with gateway(voice_aliases=aliases) as server:
        async with speaking(server, "model=aura-2-thalia-en"):
            pass
        with pytest.raises(InvalidStatus):
            async with speaking(server, "model=aura-2-zeus-en"):
                pytest.fail("it was accepted")
    zeus = "model=aura-2-zeus-en"
    async with gateway(unknown_voice="default") as server, speaking(server, zeus) as talk:
        await talk.send("Flush")


# -- over HTTP


async def post(server: Gateway, query: str = "", **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{server.http}/v1/speak?{query}",
            json=body or {"text": TEXTS[0]},
            headers={"Authorization": "Token any"},
        )


async def test_mp3_is_the_default() -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server)
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.headers["dg-char-count"] == str(len(TEXTS[0]))
        assert len(answer.headers["dg-request-id"]) == 32
        assert answer.headers["dg-model-name"] == "default"
        got, rate = decoded(answer.content)
        want = server.whole(TEXTS[0])
        assert rate == 22_050
        assert 0 <= len(got) - len(want) <= PADDING
        assert likeness(got, want) > likeness(got, server.whole(TEXTS[0], seed=9)) + 0.05
        await server.until_free()


@pytest.mark.parametrize(
    ("query", "media_type", "rate"),
    [
        ("encoding=linear16", "audio/wav", 24_000),
        ("encoding=linear16&container=wav&sample_rate=16000.0", "audio/wav", 16_000),
        ("encoding=flac", "audio/flac", 24_000),
        ("encoding=aac", "audio/aac", 22_050),
        ("encoding=opus", "audio/ogg;codecs=opus", 48_000),
        ("encoding=opus&container=ogg&bit_rate=12000", "audio/ogg;codecs=opus", 48_000),
        ("encoding=mp3&bit_rate=32000", "audio/mpeg", 22_050),
        ("encoding=mulaw", "audio/wav", 8_000),
        ("encoding=alaw&container=wav&sample_rate=16000", "audio/wav", 16_000),
    ],
)
async def test_files(query: str, media_type: str, rate: int) -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server, query)
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        samples, told = decoded_file(answer.content)
        assert told == rate
        seconds = len(server.whole(TEXTS[0])) / SPEC.sample_rate
        assert seconds - 0.001 <= len(samples) / rate <= seconds + 0.15


async def test_bare_samples() -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server, "encoding=linear16&container=none&model=default&speed=2")
        assert answer.headers["content-type"] == "audio/l16;rate=24000;channels=1"
        assert answer.content == s16(stretched(server.whole(TEXTS[0]), 2.0))
        answer = await post(server, "encoding=mulaw&container=none")
        assert answer.headers["content-type"] == "audio/mulaw;rate=8000;channels=1"
        assert len(answer.content) == len(server.whole(TEXTS[0])) // 3


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("", {"text": ""}, 400, "INVALID_TEXT"),
        ("", {"words": "x"}, 400, "INVALID_MESSAGE"),
        ("", {"text": "x" * 101}, 413, "TEXT_TOO_LONG"),
        ("encoding=midi", {}, 400, "UNSUPPORTED"),
        ("encoding=mp3&container=wav", {}, 400, "UNSUPPORTED"),
        ("encoding=mp3&bit_rate=31000", {}, 400, "UNSUPPORTED"),
        ("model=nobody", {}, 400, "UNKNOWN_VOICE"),
        ("callback=x", {}, 400, "UNSUPPORTED"),
        ("speed=0.1", {}, 400, "INVALID_PARAMETER"),
    ],
)
async def test_requests_that_cannot_be_served(
    query: str, body: dict[str, Any], status: int, code: str
) -> None:
    async with gateway(max_text_chars=100) as server:
        answer = await post(server, query, **body)
        error = answer.json()
        assert (answer.status_code, error["err_code"]) == (status, code)
        assert error["err_msg"] == answer.headers["dg-error"]
        assert error["request_id"] == answer.headers["x-request-id"]
        await server.until_free()


async def test_a_full_server_over_http() -> None:
    async with gateway(max_contexts=1) as server:
        server.runtime.admission.enter()
        answer = await post(server)
        assert (answer.status_code, answer.json()["err_code"]) == (429, "OVERLOADED")
        assert int(answer.headers["retry-after"]) >= 1
        server.runtime.admission.leave(0.1)

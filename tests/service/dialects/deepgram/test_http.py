"""Deepgram's `POST /v1/speak` against a live gateway."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

import pytest

from loadtest.fakes.talker import FakeTalker
from tests.service.audio.audio_signal import decoded_file, stretched
from tests.service.audio.listening import PADDING, decoded, likeness
from tests.service.dialects.deepgram.talk import EXACT, TEXTS, post
from tests.service.dialects.vendor_talk import s16
from tests.service.live import SPEC, gateway


async def test_speech_is_mp3_by_default() -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server)
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.headers["dg-char-count"] == str(len(TEXTS[0]))
        assert len(answer.headers["dg-request-id"]) == 32
        assert answer.headers["dg-model-name"] == "default"
        assert uuid.UUID(answer.headers["dg-model-uuid"]).version == 5
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
async def test_speech_has_requested_format(query: str, media_type: str, rate: int) -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server, query)
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        samples, told = decoded_file(answer.content)
        assert told == rate
        seconds = len(server.whole(TEXTS[0])) / SPEC.sample_rate
        assert seconds - 0.001 <= len(samples) / rate <= seconds + 0.15


async def test_speech_without_container_is_raw_samples() -> None:
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
        ("", {"text": "x", "model": "nobody"}, 400, "UNKNOWN_VOICE"),
        ("", {"text": "x", "voice": "nobody"}, 400, "UNKNOWN_VOICE"),
        ("model=nobody", {"text": "x", "voice": "default"}, 400, "UNKNOWN_VOICE"),
        ("", {"text": "x", "voice": 1}, 400, "INVALID_MESSAGE"),
        ("callback=x", {}, 400, "UNSUPPORTED"),
        ("speed=0.1", {}, 400, "INVALID_PARAMETER"),
    ],
)
async def test_invalid_request_is_refused(
    query: str, body: dict[str, Any], status: int, code: str
) -> None:
    async with gateway(max_text_chars=100) as server:
        answer = await post(server, query, **body)
        error = answer.json()
        assert (answer.status_code, error["err_code"]) == (status, code)
        assert error["err_msg"] == answer.headers["dg-error"]
        assert error["request_id"] == answer.headers["x-request-id"]
        await server.until_free()


@pytest.mark.parametrize("body", [{"voice": "anna"}, {"model": "anna"}, {"model": None}])
async def test_voice_in_body_counts_if_query_names_none(body: dict[str, Any]) -> None:
    """Piper's HTTP server takes it there, and so do its clients."""
    talker = FakeTalker()
    talker.voices = ("default", "anna")
    async with gateway(talker, **EXACT) as server:
        answer = await post(server, "encoding=linear16", text="Hello.", **body)
        voice = next(filter(None, body.values()), "default")
        assert (answer.status_code, answer.headers["dg-model-name"]) == (200, voice)
        answer = await post(server, "encoding=linear16&model=default", text="Hello.", **body)
        assert answer.headers["dg-model-name"] == "default"


async def test_model_name_header_replaces_unsafe_characters() -> None:
    async with gateway(unknown_voice="default", **EXACT) as server:
        for name, told in (("\u58f0", "?"), ("a\r\nx: 1", "a??x: 1")):
            answer = await post(server, urlencode({"model": name}))
            assert (answer.status_code, answer.headers["dg-model-name"]) == (200, told)

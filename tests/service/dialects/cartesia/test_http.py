"""Cartesia's speech and voices over HTTP; the official client is in tests/official."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import av
import httpx
import numpy as np
import pytest

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from streaming.spec import Samples
from tests.service.audio.listening import PADDING, decoded
from tests.service.dialects.cartesia.talk import REFUSED as REFUSED_ON_THE_SOCKET
from tests.service.dialects.vendor_talk import s16
from tests.service.live import Gateway, gateway

TEXT = "A sentence to say. And a second one, which is longer than the first."
SENTENCES = ("A sentence to say.", "And a second one, which is longer than the first.")
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


async def post(server: Gateway, path: str = "/tts/bytes", **body: Any) -> httpx.Response:
    asked = {
        "model_id": "sonic-3",
        "transcript": TEXT,
        "voice": {"mode": "id", "id": "default"},
        "output_format": RAW,
        **body,
    }
    headers = {"X-API-Key": "any", "Cartesia-Version": "2025-04-16"}
    async with httpx.AsyncClient(timeout=60, headers=headers) as http:
        return await http.post(server.http + path, json=asked)


def whole(server: Gateway) -> Samples:
    return np.concatenate([server.whole(sentence) for sentence in SENTENCES])


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        events.append(event)
    return events


async def test_raw_body_is_audio() -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server)
        assert answer.content == s16(whole(server))
        assert answer.headers["content-type"] == "audio/pcm"
        assert answer.headers["transfer-encoding"] == "chunked"
        await server.until_free()


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [
        ("pcm_s16le", "pcm_s16le"),
        ("pcm_f32le", "pcm_f32le"),
        ("pcm_mulaw", "pcm_mulaw"),
        ("pcm_alaw", "pcm_alaw"),
    ],
)
async def test_wav_supports_each_encoding(encoding: str, codec: str) -> None:
    format_ = {"container": "wav", "encoding": encoding, "sample_rate": 44100}
    async with gateway(**EXACT) as server:
        answer = await post(server, output_format=format_)
        assert answer.headers["content-type"] == "audio/wav"
        with av.open(io.BytesIO(answer.content)) as file:
            assert file.streams.audio[0].codec_context.name == codec
        got, rate = decoded(answer.content)
        assert rate == 44100
        assert abs(len(got) - len(whole(server))) <= 32


@pytest.mark.parametrize(("rate", "bit_rate"), [(44100, 128_000), (22050, 32_000), (8000, 64_000)])
async def test_mp3_has_requested_sample_rate_and_bit_rate(rate: int, bit_rate: int) -> None:
    format_ = {"container": "mp3", "sample_rate": rate, "bit_rate": bit_rate}
    async with gateway(**EXACT) as server:
        answer = await post(server, output_format=format_)
        assert answer.headers["content-type"] == "audio/mpeg"
        with av.open(io.BytesIO(answer.content)) as file:
            assert file.streams.audio[0].codec_context.bit_rate == bit_rate
        got, its_rate = decoded(answer.content)
        assert its_rate == rate
        assert abs(len(got) - len(whole(server))) <= 3 * PADDING


async def test_events_have_audio_word_timings_and_done() -> None:
    talker = FakeTalker(frames_per_character=2.0, spec=TIMED_SPEC, row_s=0.001)
    async with gateway(talker, **EXACT) as server:
        answer = await post(server, "/tts/sse", add_timestamps=True, context_id="a")
        *events, done = events_of(answer)
        assert done == {"type": "done", "done": True, "status_code": 200, "context_id": "a"}
        assert {event["context_id"] for event in events} == {"a"}
        chunks = [event["data"] for event in events if event["type"] == "chunk"]
        assert len(chunks) > 1
        assert b"".join(map(base64.b64decode, chunks)) == s16(whole(server))
        words = [event["word_timestamps"] for event in events if event["type"] == "timestamps"]
        assert [word for some in words for word in some["words"]] == TEXT.split()
        starts = [start for some in words for start in some["start"]]
        assert starts == sorted(starts)
        assert words[-1]["end"][-1] <= len(whole(server)) / 24_000


async def test_events_have_no_word_timings_unless_requested() -> None:
    async with gateway(FakeTalker(spec=TIMED_SPEC)) as server:
        events = events_of(await post(server, "/tts/sse"))
        assert {event["type"] for event in events} == {"chunk", "done"}
        assert not any("context_id" in event for event in events)


OTHERWISE = {"max_buffer_delay_ms", "transcript"}
REFUSED = [
    case
    for case in REFUSED_ON_THE_SOCKET
    if not OTHERWISE & set(case[0])
    and case[0].get("output_format", {}) != {**RAW, "container": "wav"}
] + [
    ({"transcript": ""}, 400, "invalid_text"),
    ({"transcript": "...?!"}, 400, "invalid_text"),
    ({"transcript": "x" * 101}, 413, "text_too_long"),
    ({"save": True}, 400, "unsupported"),
    (
        {"output_format": {"container": "mp3", "sample_rate": 8000, "bit_rate": 192_000}},
        400,
        "unsupported",
    ),
]


@pytest.mark.parametrize(("fields", "status", "code"), REFUSED)
async def test_invalid_request_is_refused(fields: dict[str, Any], status: int, code: str) -> None:
    async with gateway(max_text_chars=100, unspeakable_text="error") as server:
        answer = await post(server, **fields)
        body = answer.json()
        assert (answer.status_code, body["error_code"], body["status_code"]) == (
            status,
            code,
            status,
        )
        assert body["title"]
        assert body["message"]
        assert body["request_id"] == answer.headers["x-request-id"]


async def test_events_refuse_wav_container() -> None:
    format_ = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 44100}
    async with gateway() as server:
        answer = await post(server, "/tts/sse", output_format=format_)
        assert (answer.status_code, answer.json()["error_code"]) == (400, "unsupported")


async def test_late_engine_failure_ends_events_and_aborts_bytes() -> None:
    talker = FakeTalker(fail_after=40, row_s=0.005)  # long after the first chunk
    async with gateway(talker, first_chunk_frames=1) as server:
        text = "This will !fail, but only after a while."
        *chunks, last = events_of(await post(server, "/tts/sse", transcript=text))
        assert chunks
        assert (last["type"], last["error_code"], last["done"]) == ("error", "engine_failed", True)
        with pytest.raises(httpx.RemoteProtocolError):
            await post(server, transcript=text)


async def test_voices_are_paginated_and_searchable() -> None:
    talker = FakeTalker()
    talker.voices = ("default", "anna", "bert")
    async with (
        gateway(talker) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        first = (await http.get("/voices", params={"limit": 2})).json()
        assert [voice["id"] for voice in first["data"]] == ["default", "anna"]
        assert (first["has_more"], first["next_page"]) == (True, "anna")
        second = (await http.get("/voices", params={"limit": 2, "starting_after": "anna"})).json()
        assert [voice["id"] for voice in second["data"]] == ["bert"]
        assert not second["has_more"]
        none = (await http.get("/voices", params={"starting_after": "bert"})).json()
        assert none["data"] == []
        before = (await http.get("/voices", params={"ending_before": "bert", "limit": 1})).json()
        assert [voice["id"] for voice in before["data"]] == ["anna"]
        assert (before["has_more"], before["next_page"]) == (True, "anna")
        top = (await http.get("/voices", params={"ending_before": "anna", "limit": 1})).json()
        assert [voice["id"] for voice in top["data"]] == ["default"]
        assert not top["has_more"]
        for cursor in ("starting_after", "ending_before"):  # such as a voice deleted meanwhile
            gone = await http.get("/voices", params={cursor: "gone"})
            assert (gone.status_code, gone.json()["error_code"]) == (400, "invalid_parameter")
            assert cursor in gone.json()["message"]
        found = (await http.get("/voices", params={"q": "BER"})).json()
        assert [voice["id"] for voice in found["data"]] == ["bert"]
        assert (await http.get("/voices/bert")).json() == found["data"][0]
        missing = await http.get("/voices/nobody")
        assert (missing.status_code, missing.json()["error_code"]) == (404, "unknown_voice")

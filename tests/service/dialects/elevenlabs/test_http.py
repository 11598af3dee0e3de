"""ElevenLabs' speech and voices over HTTP; the official client is in tests/official."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from contextlib import aclosing
from typing import Any

import av
import httpx
import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from streaming.ports import RowDemand, RowGenerator, SpeechRequest
from streaming.spec import Samples
from tests.service.audio.listening import PADDING, decoded
from tests.service.dialects.elevenlabs.talk import MP3_DELAY_MS, check_words
from tests.service.dialects.vendor_talk import s16, speaking
from tests.service.live import Gateway, gateway

TEXT = "A sentence to say. And a second one, which is longer than the first."
SENTENCES = ("A sentence to say.", "And a second one, which is longer than the first.")
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
PLAIN = ("", "/stream")
TIMED = ("/with-timestamps", "/stream/with-timestamps")
ALL = (*PLAIN, *TIMED)


async def post(
    server: Gateway,
    path: str = "",
    voice: str = "default",
    name: str | None = "pcm_24000",
    **body: Any,
) -> httpx.Response:
    params = {} if name is None else {"output_format": name}
    async with httpx.AsyncClient(timeout=60, headers={"xi-api-key": "any"}) as http:
        address = f"{server.http}/v1/text-to-speech/{voice}{path}"
        return await http.post(address, params=params, json={"text": TEXT, **body})


def whole(server: Gateway, seed: int = 0) -> Samples:
    return np.concatenate([server.whole(sentence, seed) for sentence in SENTENCES])


@pytest.mark.parametrize("path", PLAIN)
async def test_speech_body_is_audio(path: str) -> None:
    async with gateway(**EXACT) as server:
        answer = await post(
            server,
            path,
            model_id="eleven_flash_v2_5",
            voice_settings={"stability": 0.5, "speed": 1.0},
            seed=7,
            previous_text="Before.",
            apply_text_normalization="auto",
        )
        assert answer.content == s16(whole(server, 7))
        assert answer.headers["content-type"] == "audio/pcm"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
        await server.until_free()


@pytest.mark.parametrize(
    ("name", "format_", "rate", "bit_rate"),
    [
        (None, "mp3", 44_100, 128_000),
        ("mp3_22050_32", "mp3", 22_050, 32_000),
        ("mp3_44100_192", "mp3", 44_100, 192_000),
        ("opus_48000_64", "ogg", 48_000, None),
        ("wav_44100", "wav", 44_100, None),
    ],
)
async def test_speech_has_requested_format(
    name: str | None, format_: str, rate: int, bit_rate: int | None
) -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server, name=name)
        assert answer.headers["content-type"].startswith("audio/")
        with av.open(io.BytesIO(answer.content)) as file:
            assert file.format.name == format_
            if bit_rate is not None:
                assert file.streams.audio[0].codec_context.bit_rate == bit_rate
        got, its_rate = decoded(answer.content)
        assert its_rate == rate
        assert abs(len(got) - len(whole(server))) <= PADDING


async def test_with_timestamps_returns_one_object() -> None:
    async with gateway(speaking(), **EXACT) as server:
        answer = await post(server, "/with-timestamps")
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert base64.b64decode(body["audio_base64"]) == s16(whole(server))
        assert body["normalized_alignment"] == body["alignment"]
        check_words(words_of([body]), TEXT)


async def test_with_timestamps_wav_header_has_length() -> None:
    async with gateway(speaking(), **EXACT) as server:
        answer = await post(server, "/with-timestamps", name="wav_24000")
        with wave.open(io.BytesIO(base64.b64decode(answer.json()["audio_base64"]))) as file:
            assert file.getnframes() == len(whole(server))
            assert file.readframes(file.getnframes()) == s16(whole(server))


@pytest.mark.parametrize("name", ["pcm_24000", "mp3_22050_32"])
async def test_streamed_timestamps_are_lines_with_continuous_times(name: str) -> None:
    async with gateway(speaking(row_s=0.001), **EXACT) as server:
        answer = await post(server, "/stream/with-timestamps", name=name)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert len(lines) > 1
        check_words(words_of(lines), TEXT, late_ms=MP3_DELAY_MS.get(name, 0.0))
        audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
        if name == "pcm_24000":
            assert audio == s16(whole(server))
        else:
            assert abs(len(decoded(audio)[0]) - len(whole(server))) <= PADDING


def words_of(bodies: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return words and their start times in ms."""
    chars: list[str] = []
    begins: list[float] = []
    ends: list[float] = []
    for body in bodies:
        if (alignment := body["alignment"]) is not None:
            chars += alignment["characters"]
            begins += alignment["character_start_times_seconds"]
            ends += alignment["character_end_times_seconds"]
    assert begins == sorted(begins)
    assert all(begin <= end for begin, end in zip(begins, ends, strict=True))
    words, spoken = [], "".join(chars)
    at = 0
    for word in spoken.split():
        at = spoken.index(word, at)
        words.append((word, round(1000 * begins[at])))
        at += len(word)
    return words


@pytest.mark.parametrize("path", TIMED)
async def test_alignment_is_null_without_word_timings(path: str) -> None:
    async with gateway(**EXACT) as server:
        answer = await post(server, path)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert {line["alignment"] for line in lines} == {None}
        audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
        assert audio == s16(whole(server))


async def test_speech_has_speed_of_voice_settings() -> None:
    async with gateway(speaking(), **EXACT) as server:
        answer = await post(server, "/with-timestamps", voice_settings={"speed": 1.25})
        body = answer.json()
        samples = len(base64.b64decode(body["audio_base64"])) // 2
        assert samples == pytest.approx(len(whole(server)) / 1.25, abs=4)
        check_words(words_of([body]), TEXT, frame_ms=40 / 1.25)


REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"text": 5}, 422, "invalid_message", "text"),
    ({"text": ""}, 400, "invalid_text", None),
    ({"text": "...?!"}, 400, "invalid_text", None),
    ({"text": "x" * 101}, 413, "text_too_long", "text"),
    ({"voice": "nobody"}, 404, "unknown_voice", "voice_id"),
    ({"name": "midi"}, 400, "unsupported", "output_format"),
    ({"name": "opus_24000_32"}, 400, "unsupported", "output_format"),
    ({"voice_settings": {"speed": 9}}, 422, "invalid_message", "voice_settings.speed"),
    ({"seed": -1}, 422, "invalid_message", "seed"),
    (
        {"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "x"}]},
        404,
        "unknown_pronunciations",
        "pronunciation_dictionary_locators",
    ),
    ({"audio_effects": {"x": 1}}, 400, "unsupported", "audio_effects"),
]


@pytest.mark.parametrize(("fields", "status", "code", "param"), REFUSED)
async def test_error_names_invalid_field(
    fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with gateway(max_text_chars=100, unspeakable_text="error") as server:
        for path in ALL:
            answer = await post(server, path, **fields)
            detail = answer.json()["detail"]
            assert (answer.status_code, detail["status"]) == (status, code)
            assert detail.get("param") == param
            assert detail["message"]
            assert detail["request_id"] == answer.headers["x-request-id"]
        await server.until_free()


async def test_unavailable_server_answers_429_or_503() -> None:
    async with gateway(FakeTalker(row_s=0.01), max_contexts=1) as server:
        lease = server.runtime.admission.acquire()
        answer = await post(server)
        assert (answer.status_code, answer.json()["detail"]["code"]) == (429, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        lease.release()
        server.codec.is_ready = False
        answer = await post(server)
        assert (answer.status_code, answer.json()["detail"]["code"]) == (503, "not_ready")
        assert int(answer.headers["retry-after"]) >= 1


class FailsOnceHeard(FakeTalker):
    """Fails only after ``is_heard``, with most of its rows before that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_heard = asyncio.Event()
        self.is_heard.set()  # for the warm-up

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        rows = 0
        demand: RowDemand | None = None
        async with aclosing(super().generate(request)) as pieces:
            while True:
                try:
                    piece = await pieces.asend(demand)
                except StopAsyncIteration:
                    return
                rows += len(piece.rows)
                demand = yield piece
                if rows > self.fail_after - 5:
                    await self.is_heard.wait()


async def listen(server: Gateway, path: str, is_heard: asyncio.Event) -> None:
    """Read the body of a speech that fails once ``is_heard`` is set, which the first part does."""
    address = f"{server.http}/v1/text-to-speech/default{path}?output_format=pcm_24000"
    text = "This will !fail, but only once it is heard."
    async with (
        httpx.AsyncClient(timeout=60, headers={"xi-api-key": "any"}) as http,
        http.stream("POST", address, json={"text": text}) as answer,
    ):
        async for _ in answer.aiter_raw():
            is_heard.set()


async def test_early_engine_failure_has_status_and_late_one_aborts_body() -> None:
    async with gateway(FakeTalker(fail_after=0)) as server:
        answer = await post(server, text="This will !fail.")
        assert (answer.status_code, answer.json()["detail"]["code"]) == (500, "engine_failed")
    talker = FailsOnceHeard(fail_after=40)
    async with gateway(talker, first_chunk_frames=1) as server:
        for path in (*PLAIN, "/stream/with-timestamps"):
            talker.is_heard.clear()
            with pytest.raises(httpx.RemoteProtocolError):
                await listen(server, path, talker.is_heard)
        assert talker.is_heard.is_set()
        answer = await post(server, "/with-timestamps", text="This will !fail after a while.")
        assert answer.json()["detail"]["code"] == "engine_failed"


async def test_voices_are_listed_and_found_by_id() -> None:
    talker = FakeTalker()
    talker.voices = ("default", "anna")
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        listed = (await http.get(server.http + "/v1/voices")).json()["voices"]
        assert [voice["voice_id"] for voice in listed] == ["default", "anna"]
        assert all(voice["name"] and voice["category"] for voice in listed)
        found = await http.get(server.http + "/v1/voices/anna")
        assert found.json() == listed[1]
        missing = await http.get(server.http + "/v1/voices/nobody")
        assert (missing.status_code, missing.json()["detail"]["status"]) == (404, "unknown_voice")


async def test_with_timestamps_is_not_limited_by_lead() -> None:
    """The response is sent when complete, so no lead limits it. It is too long for one write."""
    text = "One two three four five six. " * 100
    async with gateway(speaking(), max_lead_ms=500, default_lead_ms=500) as server:
        async with asyncio.timeout(30):
            answer = await post(server, "/with-timestamps", text=text)
        audio = base64.b64decode(answer.json()["audio_base64"])
        assert len(audio) // 2 > 60 * 24_000

"""Speech speed and bit rate through the whole gateway: lengths, lead and cancels."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from math import ceil
from typing import Any

import httpx
import numpy as np
import pytest

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.audio.filters import held_back_s
from streaming.spec import Samples
from tests.service.audio.audio_signal import stretched
from tests.service.dialects.openai.talk import EXACT as SERVER_EXACT
from tests.service.dialects.openai.talk import SENTENCES, TEXT, official, parsed, whole
from tests.service.dialects.vendor_talk import s16
from tests.service.live import SPEC, Gateway, client, gateway

RATE = SPEC.sample_rate
EXACT = {"lookahead_frames": SPEC.right_frames}
SPEEDS = [0.5, 1.3, 2.0, 4]


@pytest.mark.parametrize("speed", SPEEDS)
async def test_speed_stretches_each_utterance_whole(speed: float) -> None:
    async with gateway() as server, client(server.url) as talk:
        audio = {"encoding": "pcm_f32le", "speed": speed}
        handle = await talk.create(chunking=EXACT, audio=audio)
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        metrics = await talk.until("metrics")
        await talk.until("context.done")
        want = [stretched(server.whole(sentence), speed) for sentence in SENTENCES]
        assert np.array_equal(talk.samples(handle), np.concatenate(want))
        heard_ms = sum(map(len, want)) * 1000 / RATE
        assert metrics["audio_ms"] == pytest.approx(heard_ms, abs=0.2)


#: The client's speed, and the one that the audio has, with a talker whose default speed is 0.9.
OF_DEFAULT = [(1.0, 0.9), (2.0, 1.8), (0.25, 0.25), (1.11, 1.0)]


@pytest.mark.parametrize(("speed", "played"), OF_DEFAULT)
async def test_speed_is_a_factor_of_the_talkers_default_speed(speed: float, played: float) -> None:
    talker = FakeTalker(spec=replace(FAKE_SPEC, default_speed=0.9))
    async with gateway(talker) as server, client(server.url) as talk:
        audio = {"encoding": "pcm_f32le", "speed": speed}
        handle = await talk.create(chunking=EXACT, audio=audio)
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        want = by_sentence(server, played)
        assert np.array_equal(talk.samples(handle), np.concatenate(want))


@pytest.mark.parametrize("speed", [0.2, 4.5, "2", None])
async def test_invalid_speed_is_refused(speed: Any) -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.send("context.create", context_id="c", audio={"speed": speed})
        error = await talk.error()
        assert (error["code"], error["param"]) == ("invalid_message", "audio.speed")


@pytest.mark.parametrize(
    "audio",
    [
        {"encoding": "pcm_s16le", "bitrate": 64_000},
        {"encoding": "opus", "bitrate": 5_000},
        {"encoding": "opus", "bitrate": 300_000},
    ],
)
async def test_unsupported_bit_rate_is_refused(audio: dict[str, Any]) -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.send("context.create", context_id="c", audio=audio)
        error = await talk.error()
        assert (error["code"], error["param"]) == ("unsupported", "audio.bitrate")


async def test_opus_has_requested_bit_rate() -> None:
    size: dict[int, int] = {}
    async with gateway() as server, client(server.url) as talk:
        for bitrate in (12_000, 96_000):
            audio = {"encoding": "opus", "bitrate": bitrate}
            handle = await talk.create(str(bitrate), audio=audio)
            await talk.send("text.append", context_id=str(bitrate), text=TEXT)
            await talk.send("context.end", context_id=str(bitrate))
            await talk.until("context.done")
            packets = [data for _, data in talk.audio[handle]]
            size[bitrate] = sum(map(len, packets)) * 8 // len(packets) * 50
    assert size[12_000] < 18_000
    assert size[96_000] > 60_000


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_playback_reports_count_stretched_audio(speed: float) -> None:
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(audio={"encoding": "pcm_f32le", "speed": speed})
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.flush", context_id="c", flush_id="f")
        await talk.until("flush.done")
        sent = len(talk.samples(handle))
        first = ceil(len(server.whole(SENTENCES[0])) / speed)
        await talk.send("playback", context_id="c", played_samples=first)
        await talk.send("context.cancel", context_id="c", played_ms=first * 1000 / RATE)
        cancelled = await talk.until("context.cancelled")
        assert cancelled["sent_ms"] == pytest.approx(sent * 1000 / RATE, abs=0.2)
        assert cancelled["played_ms"] == pytest.approx(first * 1000 / RATE, abs=0.2)
        assert cancelled["text_spoken"].strip() == SENTENCES[0]
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == TEXT

        handle = await talk.create("d", audio={"encoding": "pcm_f32le", "speed": speed})
        await talk.send("text.append", context_id="d", text=TEXT)
        await talk.send("context.flush", context_id="d", flush_id="f")
        await talk.until("flush.done", "d")
        almost_all = len(talk.samples(handle)) - 1
        await talk.send("playback", context_id="d", played_samples=almost_all)
        await talk.send("context.cancel", context_id="d")  # the report tells what was played
        cancelled = await talk.until("context.cancelled", "d")
        assert cancelled["played_ms"] == pytest.approx(cancelled["sent_ms"], abs=0.2)


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_cancel_is_followed_by_no_audio(speed: float) -> None:
    talker = FakeTalker(row_s=0.0005, frames_per_character=20)
    async with gateway(talker) as server, client(server.url) as talk:
        for number in range(4):
            name = f"c{number}"
            audio = {"encoding": "pcm_f32le", "frame_ms": 10, "speed": speed}
            handle = await talk.create(name, audio=audio)
            await talk.send("text.append", context_id=name, text=TEXT * 3)
            await talk.send("context.end", context_id=name)
            while len(talk.audio.get(handle, [])) < 5 * number + 1:
                await talk.next()
            await talk.send("context.cancel", context_id=name)
            cancelled = await talk.until("context.cancelled", name)
            got_ms = len(talk.samples(handle)) * 1000 / RATE
            assert cancelled["sent_ms"] == pytest.approx(got_ms, abs=0.2)
            report = await talk.next()
            assert isinstance(report, dict), "audio after context.cancelled"
            assert (report["type"], report["context_id"]) == ("metrics", name)
            await asyncio.sleep(0.05)
            await talk.send("ping", id=name)
            pong = await talk.next()
            assert isinstance(pong, dict), "audio after context.cancelled"
        await server.until_free()


async def lead_s(server: Gateway, speed: float) -> tuple[float, float]:
    """Return the seconds of audio that a client without reports receives, and the elapsed time."""
    async with client(server.url) as talk:
        audio = {"encoding": "pcm_f32le", "speed": speed}
        handle = await talk.create(audio=audio, max_lead_ms=2000)
        await talk.send("text.append", context_id="c", text=TEXT * 5)
        await talk.send("context.end", context_id="c")
        asked_at = time.monotonic()
        while len(talk.samples(handle)) / RATE <= 1.9 - held_back_s(speed, RATE):
            await talk.next()
        await asyncio.sleep(0.4)  # time in which too much could come
        await talk.send("ping", id="now")
        await talk.until("pong")
        got, played = len(talk.samples(handle)) / RATE, time.monotonic() - asked_at
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")
        return got, played


async def test_lead_is_measured_in_stretched_seconds() -> None:
    talker = FakeTalker(frames_per_character=10)
    async with gateway(talker) as server:
        for speed in (0.5, 2.0):
            got, played = await lead_s(server, speed)
            largest_chunk_s = 1.5 * 50 * SPEC.frame_s / speed
            assert 1.9 - held_back_s(speed, RATE) < got
            assert got < 2.0 + largest_chunk_s + played


def by_sentence(server: Gateway, speed: float) -> list[Samples]:
    """The audio of each sentence of TEXT at a speed."""
    spoken = [server.whole(sentence) for sentence in SENTENCES]
    return spoken if speed == 1.0 else [stretched(one, speed) for one in spoken]


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("default_speed", [1.0, 0.9])
async def test_openai_client_sets_speed(speed: float, default_speed: float) -> None:
    talker = FakeTalker(spec=replace(FAKE_SPEC, default_speed=default_speed))
    async with gateway(talker, **SERVER_EXACT) as server, official(server) as api:
        request: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": TEXT}
        spoken = await api.audio.speech.create(**request, response_format="pcm", speed=speed)
        played = min(4.0, speed * default_speed)
        assert spoken.content == s16(np.concatenate(by_sentence(server, played)))
        body = request | {"response_format": "pcm", "speed": speed, "stream_format": "sse"}
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(server.http + "/v1/audio/speech", json=body)
        usage = parsed(answer.text)[-1]["usage"]
        assert usage["output_tokens"] == len(whole(server)) // SPEC.hop_length
        await server.until_free()


@pytest.mark.parametrize("speed", [0.9, 1.3])
async def test_pause_in_a_file_is_exact_at_any_speed(speed: float) -> None:
    """An encoder that is flushed at the end alone does not stretch a pause with its sentences."""
    async with gateway(**SERVER_EXACT) as server, official(server) as api:
        text = "One sentence. [pause:1s] Another one."
        body: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
        spoken = await api.audio.speech.create(**body, input=text, speed=speed)
        silent = np.frombuffer(spoken.content, "<i2") == 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]])))
        longest = int(max(edges[1::2] - edges[::2]))
        assert longest == pytest.approx(RATE, abs=5)


async def test_speech_endpoint_accepts_bitrate() -> None:
    body = {"input": TEXT, "response_format": "mp3", "bitrate": 160_000}
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        large = await http.post(server.http + "/v1/audio/speech", json=body)
        small = await http.post(server.http + "/v1/audio/speech", json=body | {"bitrate": 16_000})
    assert len(large.content) > 8 * len(small.content)

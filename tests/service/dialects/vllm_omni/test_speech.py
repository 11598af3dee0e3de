"""vLLM-Omni's socket against a live gateway, used as by its public example client."""

from __future__ import annotations

import asyncio
import io
import wave
from typing import Any

import av
import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.audio.filters import Resampler
from streaming.errors import BackendError, ErrorCode
from tests.service.audio.audio_signal import decoded_file, stretched
from tests.service.dialects.vendor_talk import s16
from tests.service.dialects.vllm_omni.talk import BOTH, EXACT, SLOW, STREAM, TEXTS, speaking
from tests.service.live import SPEC, Gateway, gateway


def spoken(server: Gateway, *texts: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.concatenate([server.whole(text, seed) for text in texts])


async def test_example_client_receives_one_wav_file() -> None:
    """With the client's default config: a WAV file for the whole text."""
    config = {
        "voice": "default",
        "task_type": "CustomVoice",
        "response_format": "wav",
        "speed": 1.0,
        "split_granularity": "none",
    }
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        words = [word + " " for word in BOTH.split()]
        await talk.say(*words)
        start, data = await talk.sentence(0, 0, BOTH)
        assert (start["format"], start["sample_rate"], start["channels"]) == ("wav", 24_000, 1)
        samples, rate = decoded_file(data)
        assert rate == SPEC.sample_rate
        with wave.open(io.BytesIO(data)) as file:
            assert file.getnframes() == len(samples)
        assert s16(spoken(server, *TEXTS)) == np.rint(samples * 32768).astype("<i2").tobytes()
        await talk.done(0, 1)
        await server.until_free()  # no slot is held between flushes
        await talk.send("session.close")
        assert await talk.closed() == 1000


@pytest.mark.parametrize("split", ["none", "sentence"])
async def test_sentence_text_has_surrogates_as_they_are_spoken(split: str) -> None:
    async with gateway(**EXACT) as server, speaking(server, split_granularity=split) as talk:
        await talk.say("One \ud83d", "\ude00 and a half: \ud83d or so.")
        await talk.sentence(0, 0, "One 😀 and a half: \ufffd or so.")
        await talk.done(0, 1)


async def test_audio_is_streamed_while_generated() -> None:
    talker = FakeTalker(row_s=0.001, frames_per_character=6)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM, seed=5) as talk:
        await talk.say(BOTH)
        start = await talk.next()
        assert (start["type"], start["format"]) == ("audio.start", "pcm")
        await talk.hear()
        assert server.talker.outstanding == 1
        done = await talk.next()
        assert len(talk.frames) > 2
        assert b"".join(talk.frames) == s16(spoken(server, *TEXTS, seed=5))
        assert done["total_bytes"] == sum(map(len, talk.frames))
        await talk.done(0, 1)


@pytest.mark.parametrize("streams", [True, False])
async def test_sentences_are_spoken_as_they_arrive(streams: bool) -> None:
    config = {**STREAM, "stream_audio": streams, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.send("input.text", text=TEXTS[0] + " The")
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0]))
        await talk.say(TEXTS[1][3:])
        _, data = await talk.sentence(0, 1, TEXTS[1])
        assert data == s16(server.whole(TEXTS[1]))
        await talk.done(0, 2)
        await talk.say(TEXTS[0])
        await talk.sentence(1, 0, TEXTS[0])
        await talk.done(1, 1)


async def test_mark_is_not_cut_where_a_sentence_is_too_long() -> None:
    """Without marks it would be cut between the words of the pause."""
    before = "A sentence of more words than one can speak is cut"
    pause, after = '<break time="0.25s"/>', "the pause within it although nobody may ever cut it."
    config = {**STREAM, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        limit = server.runtime.engines.talker.spec.segment_chars
        assert limit is not None
        assert len(before) < 2 / 3 * limit < len(f"{before} {pause}")
        text = f"{before} {pause} near {after}"
        for flush, step in enumerate((1, len(text))):
            await talk.say(*(text[at : at + step] for at in range(0, len(text), step)))
            _, first = await talk.sentence(flush, 0, f"{before} {pause} near")
            silence = bytes(2 * 6000)
            assert first == s16(server.whole(before)) + silence + s16(server.whole("near"))
            _, second = await talk.sentence(flush, 1, after)
            assert second == s16(server.whole(after))
            await talk.done(flush, 2)


async def test_flushes_are_spoken_in_order() -> None:
    talker = FakeTalker(row_s=0.0005)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM) as talk:
        for text in TEXTS:
            await talk.say(text)
        await talk.say("   ")
        await talk.say(TEXTS[0])
        for flush, text in enumerate(TEXTS):
            _, data = await talk.sentence(flush, 0, text)
            assert data == s16(server.whole(text))
            await talk.done(flush, 1)
        await talk.done(2, 0)
        await talk.sentence(3, 0, TEXTS[0])
        await talk.done(3, 1)
        await server.until_free()


@pytest.mark.parametrize("config", [STREAM, {"response_format": "pcm"}])
async def test_queued_flushes_may_exceed_text_limit_of_context(config: dict[str, Any]) -> None:
    """Each flush is within the limit. A new config applies to the text after all of them."""
    texts = [f"This is number {number} of several." for number in range(4)]
    talker = FakeTalker(row_s=0.0005)
    async with (
        gateway(talker, max_text_chars=80, **EXACT) as server,
        speaking(server, **config) as talk,
    ):
        for text in texts:
            await talk.say(text)
        await talk.send("session.config", **config, seed=7)
        await talk.say(texts[0])
        for flush, text in enumerate(texts):
            _, data = await talk.sentence(flush, 0, text)
            assert data == s16(server.whole(text))
            await talk.done(flush, 1)
        _, data = await talk.sentence(4, 0, texts[0])
        assert data == s16(server.whole(texts[0], 7))
        await talk.done(4, 1)
        await server.until_free()


async def test_flushes_sent_one_ahead_are_all_spoken() -> None:
    config = {**STREAM, "split_granularity": "sentence"}
    talker = FakeTalker(row_s=0.0005)
    async with (
        gateway(talker, max_text_chars=100, **EXACT) as server,
        speaking(server, **config) as talk,
    ):
        texts = [f"This is number {number} of many." for number in range(12)]
        await talk.say(texts[0])
        for flush, text in enumerate(texts):
            if flush + 1 < len(texts):
                await talk.say(texts[flush + 1])
            _, data = await talk.sentence(flush, 0, text)
            assert data == s16(server.whole(text))
            await talk.done(flush, 1)


async def test_failure_also_fails_text_waiting_for_next_context() -> None:
    async with gateway(max_text_chars=80, **EXACT) as server, speaking(server, **STREAM) as talk:
        server.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "Told.")
        texts = [f"This is number {number} of several." for number in range(4)]
        for text in texts:
            await talk.send("input.text", text=text)
            await talk.send("input.done")
        codes = []
        while len(codes) < len(texts):
            if (message := await talk.next())["type"] == "error":
                codes.append(message["code"])
        assert codes == ["codec_failed"] * 4
        await server.until_free()
        server.codec.fail_with = None
        await talk.send("input.text", text=TEXTS[0])
        await talk.send("input.done")
        while (message := await talk.next())["type"] != "audio.done" or message["error"]:
            pass
        assert b"".join(talk.frames) == s16(server.whole(TEXTS[0]))


async def test_new_config_applies_only_to_later_text() -> None:
    talker = FakeTalker(row_s=0.0005)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.say(TEXTS[0])
        await talk.send("session.config", **STREAM, sample_rate=8000, seed=7)
        await talk.say(TEXTS[1])
        await talk.send("session.config", **STREAM, speed=2.0)
        await talk.say(TEXTS[0])
        start, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0]))
        await talk.done(0, 1)
        start, data = await talk.sentence(1, 0, TEXTS[1])
        resampler = Resampler(SPEC.sample_rate, 8000)
        whole = server.whole(TEXTS[1], 7)
        assert start["sample_rate"] == 8000
        assert data == s16(np.concatenate([resampler.push(whole), resampler.finish()]))
        await talk.done(1, 1)
        _, data = await talk.sentence(2, 0, TEXTS[0])
        assert data == s16(stretched(server.whole(TEXTS[0]), 2.0))
        await talk.done(2, 1)


@pytest.mark.parametrize(
    ("name", "rate"), [("mp3", 24_000), ("flac", 24_000), ("opus", 48_000), ("aac", 24_000)]
)
async def test_each_sentence_is_one_file(name: str, rate: int) -> None:
    config = {"response_format": name, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.say(BOTH)
        for index, text in enumerate(TEXTS):
            start, data = await talk.sentence(0, index, text)
            assert start["format"] == name
            samples, told = decoded_file(data)
            if name == "flac":  # sent when complete, so its header has the length
                with av.open(io.BytesIO(data)) as file:
                    assert file.streams.audio[0].duration == len(samples)
            assert told == rate
            seconds = len(server.whole(text)) / SPEC.sample_rate
            assert seconds - 0.001 <= len(samples) / rate <= seconds + 0.12
        await talk.done(0, 2)


@pytest.mark.parametrize("text", ["🙂", "...?!"])
async def test_unspeakable_text_has_no_audio(text: str) -> None:
    async with gateway(**EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.say(text)
        _, data = await talk.sentence(0, 0, text)
        assert data == b""
        await talk.done(0, 1)
        await server.until_free()
        await talk.say(TEXTS[0])
        assert (await talk.sentence(1, 0, TEXTS[0]))[1]


async def test_session_close_stops_generation() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server, **STREAM) as talk:
        await talk.say(BOTH * 3)
        await talk.hear()
        await talk.send("session.config", **STREAM)
        await talk.send("session.close")
        assert await talk.closed() == 1000
        await server.until_free()
        made = server.talker.rows_made
        await asyncio.sleep(0.05)
        assert server.talker.rows_made == made


async def test_disconnect_stops_generation() -> None:
    async with gateway(FakeTalker(**SLOW)) as server:
        async with speaking(server, **STREAM) as talk:
            await talk.say(BOTH * 3)
            await talk.hear()
        await server.until_free()

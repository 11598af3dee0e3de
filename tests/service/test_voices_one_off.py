"""Voices for one request or context: the clip comes with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from codec.fake import FakeDecoder
from streaming.ports import Reference
from streaming.spec import Codes, Samples
from tests.service import clips
from tests.service.live import SPEC, client
from tests.service.test_metrics import scrape, value
from tests.service.voice_server import (
    CLIP,
    OTHER,
    PATH,
    SEED,
    SPEAK,
    error,
    pcm,
    samples_of,
    server,
)


async def test_a_clone_as_vllm_omnis_benchmark_asks_for_it() -> None:
    async with server() as s:
        clip = {"ref_audio": f"data:audio/wav;base64,{clips.as_base64(CLIP)}", "ref_text": "Hello."}
        theirs = {"task_type": "Base", "language": "English", "max_new_tokens": 2048}
        plain = await s.speak(**clip)
        same = await s.speak(**clip, **theirs)
        assert plain.status_code == same.status_code == 200
        assert same.content == plain.content
        assert len(plain.content) > 0


async def test_the_wait_for_a_clone_is_queueing_and_not_the_talkers_pace() -> None:
    async with server() as s:
        begun, encode = asyncio.Event(), s.live.codec.encode

        async def slowly(samples: Samples) -> Codes:
            begun.set()
            await asyncio.sleep(1.0)
            return await encode(samples)

        s.live.codec.encode = slowly  # type: ignore[method-assign]
        reference = {"ref_audio": clips.as_base64(CLIP), "ref_text": "A tone."}
        assert (await s.speak(**reference)).status_code == 200
        assert begun.is_set()
        scraped = await scrape(s.live)
    openai = {"protocol": "openai"}
    queued_s = value(scraped, "tts_queue_seconds_sum", **openai)
    audio_s = value(scraped, "tts_audio_seconds_total", **openai)
    assert queued_s >= 1.0
    assert value(scraped, "tts_real_time_factor_sum", **openai) * audio_s < queued_s


async def test_one_off_voices() -> None:
    async with server() as s:
        codes = FakeDecoder(SPEC).encode(await samples_of(OTHER))
        given = {"ref_audio": clips.as_base64(OTHER), "ref_text": "A tone."}
        expected = s.expected(reference=Reference(codes, "A tone."))
        for _ in range(2):
            assert (await s.speak(**given)).content == expected
        assert s.live.codec.encoded == 1  # the same clip again
        address = f"data:audio/flac;base64,{given['ref_audio']}"
        bare = await s.speak(ref_audio=address)
        assert bare.content == s.expected(reference=Reference(codes)) != expected
        assert (await s.http.get(PATH)).json()["voices"] == ["default"]
        bad = await s.speak(ref_audio=clips.as_base64(OTHER[:3000]))
        assert error(bad) == (400, "invalid_audio", None)
        events = await s.speak(**given, stream_format="sse")
        assert b"speech.audio.done" in events.content


async def test_one_off_voices_in_the_native_protocol() -> None:
    clip = clips.encoded("ogg_opus", clips.tone(1.5))
    codes = FakeDecoder(SPEC).encode(await samples_of(clip))
    given = {"audio": clips.as_base64(clip), "text": "A tone."}
    async with server() as s, client(s.live.url) as native:
        spoken = await native.say(SPEAK["input"], reference=given, mode="whole", sampling=SEED)
        assert pcm(spoken) == s.expected(reference=Reference(codes, "A tone."))
        plain = await native.say(SPEAK["input"], "d", mode="whole", sampling=SEED)
        assert pcm(plain) == s.expected() != pcm(spoken)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"reference": {"audio": ""}}, "invalid_message", "reference.audio"),
        ({"reference": {"text": "A tone."}}, "invalid_message", "reference.audio"),
        ({"reference": {"audio": "?"}}, "invalid_audio", "reference.audio"),
        ({"reference": {"audio": "https://example.org/a"}}, "unsupported", "reference.audio"),
        ({"reference": {"audio": "AAAA"}, "voice": "default"}, "invalid_parameter", "reference"),
    ],
)
async def test_references_that_open_no_context(
    fields: dict[str, Any], code: str, param: str
) -> None:
    async with server() as s, client(s.live.url) as native:
        await native.send("context.create", context_id="c", **fields)
        error = await native.error()
        assert (error["code"], error["param"]) == (code, param)
        assert not s.live.runtime.admission.active


async def test_a_clip_that_cannot_be_used_ends_the_context() -> None:
    async with server() as s, client(s.live.url) as native:
        await native.create(reference={"audio": clips.as_base64(b"RIFF....WAVE")})
        await native.send("text.append", context_id="c", text="Hello there.")
        await native.send("context.end", context_id="c")
        assert (await native.error())["code"] == "invalid_audio"
        assert (await native.until("context.done"))["reason"] == "error"


async def test_a_clip_that_nobody_speaks_with_any_more_is_given_up_with_its_context() -> None:
    async with server() as s, client(s.live.url) as native:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def never(samples: Samples) -> Codes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            raise AssertionError("nothing is waited for")

        s.live.codec.encode = never  # type: ignore[method-assign]
        opus = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
        await native.create(reference={"audio": opus})
        await native.send("text.append", context_id="c", text="Hello there.")
        async with asyncio.timeout(60):
            await begun.wait()
        await native.send("context.cancel", context_id="c")
        await native.until("context.cancelled")
        await s.live.until_free()
        async with asyncio.timeout(30):
            await given_up.wait()

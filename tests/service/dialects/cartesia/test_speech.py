"""Cartesia's socket against a live gateway: speaking, formats, words.

The official clients are in tests/official.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from talker.families.higgs_v3.prompts import DELIVERY_TAGS, RENDERING
from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.dialects.cartesia.talk import (
    EXACT,
    ONE,
    TWO,
    asking,
    cartesia,
    is_,
    say,
    whole,
    words_of,
)
from tests.service.dialects.vendor_talk import s16, speaking
from tests.service.live import gateway

#: The longest delay, so that incomplete text waits for the context's end.
NO_HURRY: dict[str, Any] = {"max_buffer_delay_ms": 5000}


async def test_request_without_continue_is_whole_context() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", f"{ONE} {TWO}"))
        done = await talk.until(is_("done", "a"))
        assert (done["done"], done["status_code"]) == (True, 200)
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))
        chunks = [message for message in talk.messages if message["type"] == "chunk"]
        assert {(m["done"], m["status_code"], m["flush_id"]) for m in chunks} == {(False, 206, 1)}
        assert all(message["step_time"] >= 0 for message in chunks)
        await server.until_free()


async def test_text_in_single_characters_is_split_into_sentences() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", *f"{ONE} {TWO}", **NO_HURRY)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))
        assert not any(message["type"] == "flush_done" for message in talk.messages)


async def test_transcripts_are_spoken_separately_without_buffer_delay() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Half a phrase", TWO, max_buffer_delay_ms=0)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, "Half a phrase", TWO))
        flushes = [m["flush_id"] for m in talk.messages if m["type"] == "flush_done"]
        assert flushes == [1, 2]


async def test_buffered_text_is_spoken_after_max_buffer_delay() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Half a phrase", end=False, max_buffer_delay_ms=100)
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a phrase"))):
            assert (await talk.next())["type"] == "chunk"
        assert talk.sounds["a"] == s16(server.whole("Half a phrase"))


async def test_flush_id_is_counted_and_sent_with_chunks() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Half a sen", end=False, flush=True)
        flushed = await talk.until(is_("flush_done", "a"))
        assert (flushed["flush_id"], flushed["flush_done"], flushed["done"]) == (1, True, False)
        assert talk.sounds["a"] == s16(server.whole("Half a sen"))
        await say(talk, "a", "tence.", "", end=False, **NO_HURRY)
        await talk.send(**asking("a", "", flush=True, **{"continue": True}))
        assert (await talk.until(is_("flush_done", "a")))["flush_id"] == 2
        await say(talk, "a")
        await talk.until(is_("done", "a"))
        ids = [m["flush_id"] for m in talk.messages if m["type"] == "chunk"]
        assert ids == sorted(ids)
        assert set(ids) == {1, 2}
        assert talk.sounds["a"] == s16(whole(server, "Half a sen", "tence."))


@pytest.mark.parametrize("text", [ONE, ""])
async def test_flush_of_last_request_is_answered_before_done(text: str) -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", text, flush=True))
        await talk.until(is_("done", "a"))
        told = [message["type"] for message in talk.messages if message["type"] != "chunk"]
        assert told == ["flush_done", "done"]
        assert talk.sounds["a"] == (s16(server.whole(text)) if text else b"")


async def test_contexts_do_not_mix_and_ids_can_be_reused() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("b", TWO))
        dones = [(await talk.until(lambda m: m["type"] == "done"))["context_id"] for _ in "ab"]
        assert sorted(dones) == ["a", "b"]
        await talk.send(**asking("a", TWO))
        await talk.until(is_("done", "a"))
        assert talk.sounds == {"a": s16(whole(server, ONE, TWO)), "b": s16(server.whole(TWO))}


async def test_later_requests_do_not_change_voice_or_format() -> None:
    """The official client ends a context with a voice and a format other than the first ones."""
    end = {
        "voice": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b",
        "output_format": {"container": "raw", "encoding": "pcm_f32le", "sample_rate": 44100},
        "model_id": "sonic-latest",
    }
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", ONE, end=False, **NO_HURRY)
        await talk.send(**{**asking("a", "", **{"continue": False}), **end})
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize("voice", ["default", {"id": "default"}, {"mode": "id", "id": "default"}])
async def test_voice_is_accepted_as_name_or_object(voice: Any) -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, voice=voice))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize(
    "settings", [{"voice_aliases": {"theirs": "default"}}, {"unknown_voice": "default"}]
)
async def test_voice_of_vendor_is_mapped_by_settings(settings: dict[str, Any]) -> None:
    async with gateway(**settings, **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, voice={"mode": "id", "id": "theirs"}))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize(
    ("encoding", "size"),
    [("pcm_s16le", 2), ("pcm_f32le", 4), ("pcm_mulaw", 1), ("pcm_alaw", 1)],
)
async def test_raw_audio_supports_each_encoding_at_each_rate(
    encoding: str, size: int, rate: int
) -> None:
    format_ = {"container": "raw", "encoding": encoding, "sample_rate": rate}
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", "Yes.", output_format=format_))
        await talk.until(is_("done", "a"))
        samples = -(-len(server.whole("Yes.")) * rate // 24_000)
        assert len(talk.sounds["a"]) == size * samples
        if (encoding, rate) == ("pcm_f32le", 24_000):
            assert np.array_equal(talk.pcm("a", "<f4"), server.whole("Yes."))


async def test_generation_config_speed_changes_duration() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        config = {"speed": 1.25, "volume": 1.0, "emotion": "neutral"}
        await talk.send(**asking("a", ONE, generation_config=config, speed="normal"))
        await talk.until(is_("done", "a"))
        assert len(talk.pcm("a")) == pytest.approx(len(server.whole(ONE)) / 1.25, abs=2)


async def test_generation_config_volume_and_emotion_apply_to_every_turn() -> None:
    talker = RecordingTalker()
    talker.spec = replace(talker.spec, rendering=RENDERING, delivery_tags=DELIVERY_TAGS)
    config = {"volume": 0.5, "emotion": "excited"}
    async with gateway(talker, **EXACT) as server, cartesia(server) as talk:
        talker.spoken.clear()
        for text in (ONE, f"<volume ratio='1.5'>{TWO}</volume> {ONE}"):
            await talk.send(
                **asking("a", text, generation_config=config, flush=True, **{"continue": True})
            )
        await talk.send(**asking("a", "", generation_config=config))
        await talk.until(is_("done", "a"))
        mark = "<|emotion:enthusiasm|>"
        said = " ".join(delivery + text for delivery, text in talker.spoken)
        assert said.split() == f"{mark}{ONE} {mark}{TWO} {mark}{ONE}".split()
        assert np.abs(talk.pcm("a")).max() > 0


@pytest.mark.parametrize(
    ("emotion", "warnings"),
    [
        ("excited", ["The voice has no emotion 'excited'; it is left out."]),
        ("neutral", []),
        ("Neutral", []),
    ],
)
async def test_emotion_that_the_voice_lacks_is_told(emotion: str, warnings: list[str]) -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, generation_config={"emotion": emotion}))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))
        told = [message["warning"] for message in talk.messages if message.get("warning")]
        assert told == warnings


async def test_word_timestamps_match_audio() -> None:
    async with gateway(speaking(), **EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", ONE + " ", TWO, add_timestamps=True, **NO_HURRY)
        await talk.until(is_("done", "a"))
        words = words_of(talk, "a")
        assert [word for word, _, _ in words] == f"{ONE} {TWO}".split()
        assert all(start < end for _, start, end in words)
        edges = [edge for _, start, end in words for edge in (start, end)]
        assert edges == sorted(edges)
        seconds = len(server.whole(ONE)) / 24_000
        assert words[len(ONE.split())][1] == pytest.approx(seconds, abs=0.1)
        assert words[-1][2] <= len(talk.pcm("a")) / 24_000
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


async def test_word_timestamps_need_request_and_model_support() -> None:
    for talker, asked in ((speaking(), False), (FakeTalker(), True)):
        async with gateway(talker) as server, cartesia(server) as talk:
            await talk.send(**asking("a", ONE, add_timestamps=asked))
            await talk.until(is_("done", "a"))
            assert not words_of(talk, "a")

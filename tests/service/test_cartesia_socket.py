"""Cartesia's socket against a live gateway; the official clients are in tests/official."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from streaming.spec import Samples
from talker.fake import FakeTalker
from tests.service.live import Gateway, gateway
from tests.service.vendor_talk import VendorTalk, s16, vendor

EXACT = {"first_lookahead_frames": 3, "lookahead_frames": 3}
ONE, TWO = "A sentence to say.", "And a second one, which is longer than the first."
SLOW: dict[str, Any] = {"row_s": 0.002, "frames_per_character": 20}
#: Until its client says that there is no more, whatever stands in the buffer.
NO_HURRY = {"max_buffer_delay_ms": 5000}


@asynccontextmanager
async def cartesia(server: Gateway) -> AsyncIterator[VendorTalk]:
    address = server.http + "/tts/websocket?cartesia_version=2025-04-16"
    async with vendor(address, audio="data", context="context_id") as talk:
        yield talk


def asking(context: str, transcript: str, **more: Any) -> dict[str, Any]:
    return {
        "context_id": context,
        "model_id": "sonic-3",
        "transcript": transcript,
        "voice": {"mode": "id", "id": "default"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        "language": "en",
        **more,
    }


async def say(talk: VendorTalk, context: str, *texts: str, end: bool = True, **more: Any) -> None:
    for text in texts:
        await talk.send(**asking(context, text, **{"continue": True, **more}))
    if end:
        await talk.send(**asking(context, "", **{"continue": False}))


def whole(server: Gateway, *texts: str) -> Samples:
    return np.concatenate([server.whole(text) for text in texts])


def is_(kind: str, context: str) -> Any:
    return lambda message: (message["type"], message["context_id"]) == (kind, context)


async def until_heard(talk: VendorTalk, context: str) -> None:
    await talk.until(is_("chunk", context))


# -- speaking


async def test_one_request_is_one_context() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", f"{ONE} {TWO}"))
        done = await talk.until(is_("done", "a"))
        assert (done["done"], done["status_code"]) == (True, 200)
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))
        chunks = [message for message in talk.messages if message["type"] == "chunk"]
        assert {(m["done"], m["status_code"], m["flush_id"]) for m in chunks} == {(False, 206, 1)}
        assert all(message["step_time"] >= 0 for message in chunks)
        await server.until_free()


async def test_text_comes_in_any_pieces_and_sentences_are_found() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", *f"{ONE} {TWO}", **NO_HURRY)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))
        assert not any(message["type"] == "flush_done" for message in talk.messages)


async def test_without_a_buffer_each_transcript_is_spoken_for_itself() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Half a phrase", TWO, max_buffer_delay_ms=0)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, "Half a phrase", TWO))
        flushes = [m["flush_id"] for m in talk.messages if m["type"] == "flush_done"]
        assert flushes == [1, 2]


async def test_what_waits_in_the_buffer_is_spoken_after_a_while() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Half a phrase", end=False, max_buffer_delay_ms=100)
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a phrase"))):
            assert (await talk.next())["type"] == "chunk"
        assert talk.sounds["a"] == s16(server.whole("Half a phrase"))


async def test_flushes_are_counted_and_chunks_know_theirs() -> None:
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


async def test_contexts_do_not_mix_and_ids_can_be_used_again() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("b", TWO))
        dones = [(await talk.until(lambda m: m["type"] == "done"))["context_id"] for _ in "ab"]
        assert sorted(dones) == ["a", "b"]
        await talk.send(**asking("a", TWO))
        await talk.until(is_("done", "a"))
        assert talk.sounds == {"a": s16(whole(server, ONE, TWO)), "b": s16(server.whole(TWO))}


async def test_later_requests_are_read_for_their_text_alone() -> None:
    """The official client ends a context with a voice and a format that it never asked for."""
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
async def test_a_voice_is_named_in_any_of_their_ways(voice: Any) -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, voice=voice))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize(
    "settings", [{"voice_aliases": {"theirs": "default"}}, {"unknown_voice": "default"}]
)
async def test_their_voices_can_stand_for_ours(settings: dict[str, Any]) -> None:
    async with gateway(**settings, **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, voice={"mode": "id", "id": "theirs"}))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize(
    ("encoding", "size"),
    [("pcm_s16le", 2), ("pcm_f32le", 4), ("pcm_mulaw", 1), ("pcm_alaw", 1)],
)
async def test_every_encoding_at_every_rate(encoding: str, size: int, rate: int) -> None:
    format_ = {"container": "raw", "encoding": encoding, "sample_rate": rate}
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", "Yes.", output_format=format_))
        await talk.until(is_("done", "a"))
        samples = -(-len(server.whole("Yes.")) * rate // 24_000)
        assert len(talk.sounds["a"]) == size * samples
        if (encoding, rate) == ("pcm_f32le", 24_000):
            assert np.array_equal(talk.pcm("a", "<f4"), server.whole("Yes."))


async def test_speed_is_the_one_knob_that_turns() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        config = {"speed": 1.25, "volume": 1.0, "emotion": "neutral"}
        await talk.send(**asking("a", ONE, generation_config=config, speed="normal"))
        await talk.until(is_("done", "a"))
        assert len(talk.pcm("a")) == pytest.approx(len(server.whole(ONE)) / 1.25, abs=2)


# -- words


def speaking(**more: Any) -> FakeTalker:
    return FakeTalker(frames_per_character=2.0, has_word_timings=True, **more)


def words_of(talk: VendorTalk, context: str) -> list[tuple[str, float, float]]:
    found: list[tuple[str, float, float]] = []
    for message in talk.messages:
        if message["type"] == "timestamps" and message["context_id"] == context:
            times = message["word_timestamps"]
            found += zip(times["words"], times["start"], times["end"], strict=True)
    return found


async def test_words_come_with_their_times() -> None:
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


async def test_no_words_come_unasked_or_where_there_are_none() -> None:
    for talker, asked in ((speaking(), False), (FakeTalker(), True)):
        async with gateway(talker) as server, cartesia(server) as talk:
            await talk.send(**asking("a", ONE, add_timestamps=asked))
            await talk.until(is_("done", "a"))
            assert not words_of(talk, "a")


# -- interrupting and ending


async def test_a_cancelled_context_says_no_more_and_its_slot_is_free() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, cartesia(server) as talk:
        await talk.send(**asking("a", f"{ONE} {TWO}"))
        await until_heard(talk, "a")
        await talk.send(context_id="a", cancel=True)
        await server.until_free()
        await talk.send(context_id="a", cancel=True)  # once more, when all is over
        await talk.send(**asking("b", "Yes."))
        await talk.until(is_("done", "b"))
        said = [message["type"] for message in talk.messages if message["context_id"] == "a"]
        assert set(said) == {"chunk"}
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2
        await talk.send(**asking("a", "Yes."))
        await talk.until(is_("done", "a"))


async def test_a_context_whose_last_request_has_come_can_be_cancelled() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, cartesia(server) as talk:
        await say(talk, "a", ONE, TWO, max_buffer_delay_ms=0)
        await until_heard(talk, "a")
        await talk.send(context_id="a", cancel=True)
        await server.until_free()


async def test_generation_keeps_to_the_lead() -> None:
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, default_lead_ms=500) as server, cartesia(server) as talk:
        made = server.talker.rows_made
        await talk.send(**asking("a", "Twenty characters.."))
        await until_heard(talk, "a")
        await asyncio.sleep(0.5)
        limit = (0.5 + 0.5) * 25 + 75 + 103 + 64 + 8  # see test_native
        assert server.talker.rows_made - made < limit
        assert server.talker.outstanding == 1


async def test_a_client_that_vanishes_frees_everything() -> None:
    async with gateway(FakeTalker(**SLOW)) as server:
        async with cartesia(server) as talk:
            await talk.send(**asking("a", ONE))
            await until_heard(talk, "a")
            talk.socket.transport.abort()
        await server.until_free()


async def test_a_context_expires_in_silence_and_its_words_count_on() -> None:
    async with gateway(speaking(), **EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Yes. ", end=False, add_timestamps=True)
        await until_heard(talk, "a")
        async with asyncio.timeout(60):
            while server.runtime.admission.active:
                await asyncio.sleep(0.05)
        await say(talk, "a", "No.", add_timestamps=True)
        await talk.until(is_("done", "a"))
        assert [message["type"] for message in talk.messages].count("done") == 1
        assert talk.sounds["a"] == s16(whole(server, "Yes.", "No."))
        (_, _, yes_end), (_, no_start, _) = words_of(talk, "a")
        assert yes_end <= len(server.whole("Yes.")) / 24_000 <= no_start + 0.05


async def test_the_end_of_what_has_expired_is_answered() -> None:
    async with gateway() as server, cartesia(server) as talk:
        await say(talk, "a")
        assert await talk.next() == {
            "type": "done",
            "done": True,
            "status_code": 200,
            "context_id": "a",
        }
        assert server.runtime.admission.active == 0


@pytest.mark.parametrize("text", [" ", "\N{PARTY POPPER}", "...", ""])
async def test_a_turn_with_nothing_to_say_is_done(text: str) -> None:
    async with gateway() as server, cartesia(server) as talk:
        await talk.send(**asking("a", text))
        assert (await talk.next())["type"] == "done"
        await server.until_free()


async def test_an_idle_socket_is_closed() -> None:
    async with gateway(session_idle_s=0.1) as server, cartesia(server) as talk:
        assert await talk.rest() == []
        assert talk.socket.close_code == 1001


# -- errors

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"voice": "nobody"}, 404, "unknown_voice"),
    ({"voice": None}, 400, "invalid_message"),
    ({"voice": {"mode": "embedding", "embedding": [0.1]}}, 400, "unsupported"),
    ({"transcript": 5}, 400, "invalid_message"),
    ({"output_format": None}, 400, "invalid_message"),
    ({"output_format": {**RAW, "container": "wav"}}, 400, "unsupported"),
    ({"output_format": {**RAW, "encoding": "mp3"}}, 400, "invalid_message"),
    ({"output_format": {**RAW, "sample_rate": 12345}}, 400, "unsupported"),
    ({"generation_config": {"speed": 9}}, 400, "invalid_message"),
    ({"generation_config": {"volume": 2}}, 400, "unsupported"),
    ({"generation_config": {"emotion": "happy"}}, 400, "unsupported"),
    ({"speed": "fast"}, 400, "unsupported"),
    ({"pronunciation_dict_id": "x"}, 400, "unsupported"),
    ({"add_phoneme_timestamps": True}, 400, "unsupported"),
    ({"max_buffer_delay_ms": 6000}, 400, "invalid_message"),
    ({"transcript": "x" * 101}, 413, "text_too_long"),
]


@pytest.mark.parametrize(("fields", "status", "code"), REFUSED)
async def test_what_cannot_be_served_is_told_with_its_context(
    fields: dict[str, Any], status: int, code: str
) -> None:
    async with gateway(max_text_chars=100, **EXACT) as server, cartesia(server) as talk:
        await talk.send(**{**asking("a", ONE), **fields})
        error = await talk.next()
        assert (error["type"], error["context_id"]) == ("error", "a")
        assert (error["status_code"], error["error_code"]) == (status, code)
        assert error["title"]
        assert error["message"]
        assert len(error["request_id"]) == 32
        await talk.send(**asking("b", ONE))
        await talk.until(is_("done", "b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))


@pytest.mark.parametrize("data", ["{", "[]", '"x"', b"{}", '{"transcript":"x","context_id":""}'])
async def test_what_is_no_message_has_no_context(data: str | bytes) -> None:
    async with gateway() as server, cartesia(server) as talk:
        await talk.socket.send(data)
        error = json.loads(await talk.socket.recv())
        assert error["type"] == "error"
        assert not error["context_id"]
        await talk.send(**asking("b", ONE))
        await talk.until(is_("done", "b"))


async def test_a_failing_engine_ends_its_context_alone() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", "This will !fail soon."))
        await talk.send(**asking("b", ONE))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["status_code"], error["done"]) == (
            "engine_failed",
            500,
            True,
        )
        await talk.until(is_("done", "b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))
        assert not any(is_("done", "a")(message) for message in talk.messages)
        async with httpx.AsyncClient() as http:
            counted = (await http.get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="engine_failed"} 1.0' in counted
        assert 'tts_contexts_total{outcome="error",protocol="cartesia"} 1.0' in counted


async def test_a_full_server_and_a_full_socket_are_told_to_the_context() -> None:
    limits = {"max_contexts": 2, "max_contexts_per_session": 2}
    async with (
        gateway(FakeTalker(**SLOW), **limits) as server,
        cartesia(server) as talk,
        cartesia(server) as other,
    ):
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("b", ONE))
        await talk.send(**asking("c", ONE))
        error = await talk.until(is_("error", "c"))
        assert (error["error_code"], error["status_code"]) == ("too_many_contexts", 429)
        await other.send(**asking("d", ONE))
        error = await other.until(is_("error", "d"))
        assert (error["error_code"], error["status_code"]) == ("overloaded", 429)


async def test_a_context_that_was_ended_takes_no_text() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("a", TWO))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["done"]) == ("context_closed", False)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_a_server_that_is_not_ready_says_so() -> None:
    async with gateway() as server:
        server.codec.is_ready = False
        with pytest.raises(InvalidStatus) as refused:
            async with cartesia(server):
                pass
        assert refused.value.response.status_code == 503

"""Word timings through a live gateway, with a fake talker that knows its place in the text."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from websockets.asyncio.client import connect

from loadtest.fakes.talker import FAKE_SPEC, TIMED_SPEC, FakeTalker
from streaming.protocol.binary import AudioHeader
from tests.service.live import SPEC, Client, client, gateway

TEXT = "Hello there, how are you? I am fine, thank you very much. Goodbye!"
RATE = SPEC.sample_rate
FRAME_MS = 1000 * SPEC.frame_s
PER_CHARACTER = 2.0


def speaking(**more: Any) -> FakeTalker:
    """Make a talker with two frames per character, so that positions in the text give times."""
    return FakeTalker(frames_per_character=PER_CHARACTER, spec=TIMED_SPEC, **more)


async def words_of(peer: Client, text: str, **fields: Any) -> list[dict[str, Any]]:
    """Speak a text and return its words; each must come after the audio that contains it."""
    handle = await peer.create("c", timestamps=True, **fields)
    await peer.send("text.append", context_id="c", text=text)
    await peer.send("context.end", context_id="c")
    words: list[dict[str, Any]] = []
    while True:
        message = await peer.next()
        if isinstance(message, AudioHeader):
            continue
        assert message["type"] != "error", message
        if message["type"] == "timestamps":
            sent_ms = 1000 * len(peer.samples(handle)) / RATE
            assert message["words"]
            assert all(word["end_ms"] <= sent_ms + 0.05 for word in message["words"])
            words += message["words"]
        elif message["type"] == "context.done":
            return words


def check(words: list[dict[str, Any]], text: str, speed: float = 1.0) -> None:
    assert [word["text"] for word in words] == text.split()
    assert [text[word["start"] : word["end"]] for word in words] == text.split()
    assert all(a["end_ms"] <= b["start_ms"] for a, b in pairwise(words))
    # the space between two utterances is not spoken
    spaces = 0
    for before, word in zip([None, *words], words, strict=False):
        spaces += before is not None and before["text"][-1] in ".?!"
        due = (word["start"] - spaces) * PER_CHARACTER * FRAME_MS / speed
        assert word["start_ms"] == pytest.approx(due, abs=25)


@pytest.mark.parametrize("mode", ["chunked", "whole"])
async def test_every_word_timing_comes_once_with_correct_time(mode: str) -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        check(await words_of(peer, TEXT, mode=mode), TEXT)


async def test_word_timings_wait_for_audio_held_back_for_whole_messages() -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        audio = {"encoding": "pcm_f32le", "frame_ms": 1000}
        check(await words_of(peer, TEXT, audio=audio), TEXT)


async def test_word_timings_come_during_speech() -> None:
    async with gateway(speaking(row_s=0.002)) as server, client(server.url) as peer:
        handle = await peer.create("c", timestamps=True)
        await peer.send("text.append", context_id="c", text=TEXT)
        await peer.send("context.end", context_id="c")
        await peer.until("timestamps", "c")
        heard = len(peer.samples(handle))
        await peer.until("context.done", "c")
        assert heard < len(peer.samples(handle)) / 2


async def test_word_timings_follow_speed() -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        fast = {"encoding": "pcm_f32le", "speed": 1.25}
        handle = await peer.create("c", timestamps=True, audio=fast)
        await peer.send("text.append", context_id="c", text="One two three four five six.")
        await peer.send("context.end", context_id="c")
        words = []
        while (message := await peer.next()) is not None:
            if isinstance(message, dict) and message["type"] == "timestamps":
                words += message["words"]
            if isinstance(message, dict) and message["type"] == "context.done":
                break
        check(words, "One two three four five six.", speed=1.25)
        assert words[-1]["end_ms"] <= 1000 * len(peer.samples(handle)) / RATE + 30


async def test_word_timings_are_sent_only_on_request() -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        await peer.create("c")
        await peer.send("text.append", context_id="c", text=TEXT)
        await peer.send("context.end", context_id="c")
        while True:
            message = await peer.next()
            assert not isinstance(message, dict) or message["type"] != "timestamps"
            if isinstance(message, dict) and message["type"] == "context.done":
                return


async def test_cancel_reports_exactly_played_words() -> None:
    async with gateway(speaking(row_s=0.001)) as server, client(server.url) as peer:
        for wanted in (1, 4, 7):
            words: list[dict[str, Any]] = []
            await peer.create("c", timestamps=True)
            await peer.send("text.append", context_id="c", text=TEXT + " And so it goes on.")
            while len(words) <= wanted:
                words += (await peer.until("timestamps", "c"))["words"]
            played = words[wanted]["start_ms"] + 15  # just into the word: not heard
            await peer.send("context.cancel", context_id="c", played_ms=played)
            cancelled = await peer.until("context.cancelled", "c")
            assert cancelled["text_spoken"].split() == TEXT.split()[:wanted]
            assert cancelled["text_spoken"] + cancelled["text_remaining"] == (
                TEXT + " And so it goes on."
            )


async def test_cancel_after_cut_utterance_reports_words_with_timings() -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        await peer.create("c", timestamps=True, sampling={"max_frames": 40})
        await peer.send("text.append", context_id="c", text=TEXT.split(".")[0])
        await peer.send("context.flush", context_id="c", flush_id="f")
        words: list[dict[str, Any]] = []
        while (message := await peer.next()) != {
            "type": "flush.done", "context_id": "c", "flush_id": "f"
        }:  # fmt: skip
            if isinstance(message, dict) and message["type"] == "timestamps":
                words += message["words"]
        await peer.send("context.cancel", context_id="c", played_ms=10_000)
        cancelled = await peer.until("context.cancelled", "c")
        # "you?" was cut off unheard, and counts as passed since later audio was heard
        assert cancelled["text_spoken"] == "Hello there, how are you? I am fine, thank you"
        heard = [word for word in cancelled["text_spoken"].split() if word != "you?"]
        assert [word["text"] for word in words] == heard
        assert all(word["start_ms"] < word["end_ms"] for word in words)


async def test_cancel_is_followed_by_no_word_timings() -> None:
    async with gateway(speaking()) as server, client(server.url) as peer:
        await peer.create("c", timestamps=True)
        await peer.send("text.append", context_id="c", text=TEXT)
        await peer.until("timestamps", "c")
        await peer.send("context.cancel", context_id="c")
        await peer.until("context.cancelled", "c")
        await peer.send("ping", id="p")
        while True:
            message = await peer.next()
            assert isinstance(message, dict)
            assert message["type"] in ("metrics", "pong")
            if message["type"] == "pong":
                return


async def test_word_timings_are_announced_and_refused_if_unsupported() -> None:
    for able in (True, False):
        talker = FakeTalker(spec=replace(FAKE_SPEC, has_word_timings=able))
        async with gateway(talker) as server, connect(server.url) as socket:
            peer = Client(socket)
            greeting = await peer.until("session.created")
            assert greeting["word_timings"] is able
            await peer.send("context.create", context_id="c", timestamps=True)
            message = await peer.next()
            assert isinstance(message, dict)
            if able:
                assert message["type"] == "context.created"
            else:
                assert (message["code"], message["param"]) == ("unsupported", "timestamps")

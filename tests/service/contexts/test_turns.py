"""Generations of a turn: complete text in one, arriving text sentence by sentence."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.live import Client, client, gateway

TEXT = "<|emotion:anger|>No, that is not okay! We cannot ship it.\n\nIt sounds broken."
LONG = " ".join(f"This is sentence number {number} of a long text." for number in range(40))


@pytest.mark.parametrize("path", ["speech", "speech/batch"])
async def test_text_of_http_request_is_one_generation(path: str) -> None:
    talker = RecordingTalker()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        body: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": TEXT}
        if path == "speech/batch":
            body = {"items": [{"input": TEXT}]}
        talker.spoken.clear()  # the warm-up text
        answer = await http.post(f"{server.http}/v1/audio/{path}", json=body, timeout=60)
        assert answer.status_code == 200
        assert talker.spoken == [("", TEXT)]


async def say(talk: Client, text: str, last: str) -> None:
    await talk.create()
    await talk.send("text.append", context_id="c", text=text)
    if last == "flush":
        await talk.send("context.flush", context_id="c", flush_id="f")
        await talk.until("flush.done")
    await talk.send("context.end", context_id="c")
    await talk.until("context.done")


@pytest.mark.parametrize("last", ["flush", "end"])
async def test_text_flushed_or_ended_before_speech_is_one_generation(last: str) -> None:
    talker = RecordingTalker(first_row_s=0.5)
    async with gateway(talker) as server, client(server.url) as talk:
        talker.spoken.clear()  # the warm-up text
        await say(talk, TEXT, last)
        assert talker.spoken == [("", TEXT)]
        assert talker.outstanding == 0


async def test_long_text_is_split_by_longest_generation() -> None:
    talker = RecordingTalker()
    async with gateway(talker) as server, client(server.url) as talk:
        talker.spoken.clear()  # the warm-up text
        await say(talk, f"<|style:whispering|>{LONG}", "end")
        texts = [text for _, text in talker.spoken]
        assert " ".join(texts) == f"<|style:whispering|>{LONG}"
        assert [delivery for delivery, _ in talker.spoken[1:]] == ["<|style:whispering|>"] * (
            len(texts) - 1
        )
        # 2048 frames of 40 ms; forty sentences of 42 letters and a number
        assert len(texts) == 3
        assert max(map(len, texts)) < 2 * min(map(len, texts))


async def test_max_segment_chars_splits_complete_text() -> None:
    talker = RecordingTalker()
    async with gateway(talker, max_segment_chars=60) as server, client(server.url) as talk:
        talker.spoken.clear()  # the warm-up text
        await say(talk, TEXT, "end")
        angry = "<|emotion:anger|>"
        assert talker.spoken == [
            ("", "<|emotion:anger|>No, that is not okay!"),
            (angry, "We cannot ship it."),
            (angry, "It sounds broken."),
        ]


async def test_text_is_checked_only_by_its_generation() -> None:
    """A check builds the whole prompt, and so does the generation."""
    talker = RecordingTalker()
    async with gateway(talker, max_segment_chars=60) as server, client(server.url) as talk:
        talker.checked.clear()  # the warm-up text
        await say(talk, TEXT, "end")
        assert talker.checked == [text for _, text in talker.spoken[-3:]]


async def test_text_arriving_during_speech_waits_for_end_of_turn() -> None:
    talker = RecordingTalker(row_s=0.01)
    async with gateway(talker) as server, client(server.url) as talk:
        talker.spoken.clear()  # the warm-up text
        await talk.create()
        await talk.send("text.append", context_id="c", text="A first sentence is said. And ")
        await talk.until("audio.started")
        await talk.send("text.append", context_id="c", text="another. A third. The rest")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        assert [text for _, text in talker.spoken] == [
            "A first sentence is said.", "And another. A third. The rest",
        ]  # fmt: skip


async def test_low_max_frames_gives_each_sentence_its_own_generation() -> None:
    talker = RecordingTalker()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        talker.spoken.clear()
        body = {"model": "tts-1", "voice": "alloy", "input": TEXT, "max_frames": 20}
        answer = await http.post(f"{server.http}/v1/audio/speech", json=body, timeout=60)
        assert answer.status_code == 200
        assert len(talker.spoken) == 3


async def test_long_sentence_is_spoken_before_its_end_arrives() -> None:
    talker = RecordingTalker()
    async with gateway(talker) as server, client(server.url) as talk:
        talker.spoken.clear()  # the warm-up text
        await talk.create()
        begun = "This is where a sentence begins that goes on for a long time,"
        rest = "since whoever writes it has not come to the end of it yet"
        await talk.send("text.append", context_id="c", text=f"{begun} {rest}")
        await talk.until("audio.started")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        assert [text for _, text in talker.spoken] == [begun, rest]

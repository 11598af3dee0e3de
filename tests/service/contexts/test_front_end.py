"""A talker with a text front end: limits and reports refer to the client's own text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from tests.service.live import SPEC, client, gateway
from text.english.normaliser import normalise
from text.front_end import spoken_lengths

EXACT = {"lookahead_frames": SPEC.right_frames}
#: 38 characters as written, 90 as spoken.
TEXT = "It has 1,234 rooms, 567 of them empty."


def reading_talker(row_s: float = 0.0) -> FakeTalker:
    spec = replace(FAKE_SPEC, spoken_lengths=partial(spoken_lengths, normalise))
    return FakeTalker(row_s=row_s, frames_per_character=20 if row_s else 0.5, spec=spec)


async def test_utterance_is_split_by_spoken_length() -> None:
    async with (
        gateway(reading_talker(), max_segment_chars=60) as server,
        client(server.url) as talk,
    ):
        got = await talk.say(TEXT, chunking=EXACT, sampling={"seed": 5})
        parts = [server.whole("It has 1,234 rooms,", 5), server.whole("567 of them empty.", 5)]
        assert np.array_equal(got, np.concatenate(parts))


async def test_text_limit_counts_written_characters() -> None:
    limits: dict[str, Any] = {"max_segment_chars": 60, "max_text_chars": len(TEXT)}
    async with gateway(reading_talker(), **limits) as server, client(server.url) as talk:
        assert len(normalise(TEXT).text) > 2 * len(TEXT)
        assert len(await talk.say(TEXT))
        await talk.create("d")
        await talk.send("text.append", context_id="d", text=TEXT + "!")
        assert (await talk.error())["code"] == "text_too_long"


async def test_cancel_reports_written_text() -> None:
    talker = reading_talker(row_s=0.0005)
    async with gateway(talker, max_segment_chars=60) as server, client(server.url) as talk:
        await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        await talk.until("audio.started")
        await talk.send("context.cancel", context_id="c")
        cancelled = await talk.until("context.cancelled")
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == TEXT
        await server.until_free()

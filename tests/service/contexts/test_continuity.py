"""``continuity``: announcement, refusal, and the conversation that an utterance belongs to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.ports import Sampling, SpeechRequest, TalkerRows
from streaming.spec import Codes, Samples
from tests.service.live import SPEC, Gateway, client, gateway

FIRST, SECOND = "A sentence to say.", "And a second one, which is longer than the first."
EXACT = {"lookahead_frames": SPEC.right_frames}
CONTINUING = replace(FAKE_SPEC, has_continuity=True)
ALONE, TOGETHER = ("", ""), ("", FIRST + "\n")


def spoken(server: Gateway, before: tuple[str, ...]) -> Samples:
    """Return the two sentences, each spoken after its text of ``before``."""
    return np.concatenate(
        [
            server.whole(text, 5, earlier)
            for text, earlier in zip((FIRST, SECOND), before, strict=True)
        ]
    )


@pytest.mark.parametrize(("able", "announced"), [(True, ["context", "none"]), (False, ["none"])])
async def test_greeting_announces_supported_continuity(able: bool, announced: list[str]) -> None:
    talker = FakeTalker(spec=replace(FAKE_SPEC, has_continuity=able))
    async with gateway(talker) as server, connect(server.url) as socket:
        assert json.loads(await socket.recv())["continuity"] == announced


@pytest.mark.parametrize(
    ("able", "asked", "before"),
    [
        (True, {"continuity": "context"}, TOGETHER),
        (True, {}, TOGETHER),
        (True, {"continuity": "none"}, ALONE),
        (False, {"continuity": "none"}, ALONE),
        (False, {}, ALONE),
    ],
)
@pytest.mark.parametrize("mode", ["chunked", "whole"])
async def test_utterance_continues_earlier_ones_if_wanted_and_supported(
    able: bool, asked: dict[str, str], before: tuple[str, ...], mode: str
) -> None:
    talker = FakeTalker(spec=replace(FAKE_SPEC, has_continuity=able))
    async with gateway(talker) as server, client(server.url) as talk:
        options: dict[str, Any] = {
            "mode": mode,
            "chunking": EXACT,
            "sampling": {"seed": 5},
            **asked,
        }
        got = await talk.say(f"{FIRST} {SECOND}", **options)
        assert np.array_equal(got, spoken(server, before))
        assert not np.array_equal(spoken(server, ALONE), spoken(server, TOGETHER))
        await server.until_free()
        assert not talker.conversations


async def test_unsupported_continuity_is_refused_with_param() -> None:
    async with gateway(FakeTalker()) as server, client(server.url) as talk:
        await talk.send("context.create", context_id="c", continuity="context")
        error = await talk.error()
        assert (error["code"], error["param"]) == ("unsupported", "continuity")
        assert server.runtime.admission.active == 0
        await talk.create()  # the refused context has left nothing behind


async def test_continuity_does_not_cross_contexts() -> None:
    async with gateway(FakeTalker(spec=CONTINUING)) as server, client(server.url) as talk:
        handles = [await talk.create(f"c{i}", chunking=EXACT, sampling={"seed": 5}) for i in (1, 2)]
        for context_id in ("c1", "c2"):
            await talk.send("text.append", context_id=context_id, text=FIRST + " ")
            await talk.send("context.flush", context_id=context_id, flush_id="f")
        for context_id in ("c1", "c2"):
            await talk.send("text.append", context_id=context_id, text=SECOND)
            await talk.send("context.end", context_id=context_id)
        for _ in handles:
            await talk.until("context.done")
        for handle in handles:
            assert np.array_equal(talk.samples(handle), spoken(server, TOGETHER))


@pytest.mark.parametrize("end", ["cancel", "leave", "fail"])
async def test_conversation_is_forgotten_however_context_ends(end: str) -> None:
    talker = FakeTalker(row_s=0.002, spec=CONTINUING)
    async with gateway(talker) as server:
        async with client(server.url) as talk:
            await talk.create()
            text = "now !fail" if end == "fail" else f"{FIRST} {SECOND}"
            await talk.send("text.append", context_id="c", text=text)
            await talk.send("context.end", context_id="c")
            if end != "fail":
                await talk.until("audio.started")
                assert len(talker.conversations) == 1
            if end == "cancel":
                await talk.send("context.cancel", context_id="c")
                await talk.until("context.cancelled")
            elif end == "fail":
                assert (await talk.error())["code"] == "engine_failed"
        await server.until_free()
        assert not talker.conversations


async def test_utterance_cut_by_max_frames_is_not_continued() -> None:
    """The second utterance is spoken as if it were the first."""
    talker = FakeTalker(spec=CONTINUING)
    async with gateway(talker) as server, client(server.url) as talk:
        sampling = {"seed": 5, "max_frames": 20}
        got = await talk.say(f"{FIRST} Yes.", chunking=EXACT, sampling=sampling)
        alone = server.whole("Yes.", 5)
        assert np.array_equal(got[-len(alone) :], alone)


async def test_next_utterance_waits_for_last_row_of_previous_one() -> None:
    """A session knows the end of an utterance one row before the talker reports it."""
    talker = FakeTalker(spec=CONTINUING)
    ask = SpeechRequest("r", FIRST, sampling=Sampling(seed=1), conversation="x")
    first = talker.generate(ask)
    pieces = [await anext(first) for _ in range(3)]
    then = SpeechRequest("r", SECOND, sampling=Sampling(seed=1), conversation="x")
    second = asyncio.create_task(collect(talker.generate(then)))
    await asyncio.sleep(0.01)
    pieces += [piece async for piece in first]
    assert not second.done()
    rows = np.concatenate([piece.rows for piece in pieces])
    assert np.array_equal(rows, talker.rows_of(ask))
    assert np.array_equal(await second, talker.rows_of(then, FIRST + "\n"))


async def collect(pieces: AsyncIterator[TalkerRows]) -> Codes:
    return np.concatenate([piece.rows async for piece in pieces])

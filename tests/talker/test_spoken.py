"""Word timings of real talker processes against a plain loop: the place in the text of each row.

The alignment heads of the tiny random checkpoint attend anywhere, so the attention itself is
compared. Each source of a text's keys has its test: cached prefixes, chunked prefill, preempted
and paused requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from benchmarks.reference_talker import Chance, ReferenceTalker
from streaming.ports import SpeechRequest
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.prompts import Prompt
from tests.talker.harness import (
    MAX_ROWS,
    RUNNER,
    Voices,
    idle,
    preempting,
    running,
    text,
    until,
    warm,
)
from tests.talker.tiny import HEADS_TO_WATCH

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
TIGHT: dict[str, Any] = {"max_positions": 256, "kv_positions": 512}
Places = np.ndarray


@dataclass
class Reading:
    """The plain loop's rows of a request, and the place in the text of each.

    ``sure`` marks rows whose most attended id leads by more than rounding.
    """

    rows: np.ndarray
    characters: Places
    sure: np.ndarray


class Oracle:
    """Reads the plain loop's attention as ``ports`` and ``talker.attention`` define it."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(str(folder))
        self._prompts = checkpoint.prompt_builder(1024)
        self._talker = ReferenceTalker(folder)
        self._known: dict[tuple[int, str], Reading] = {}

    def read(self, number: int, voice: str = "default") -> Reading:
        if (number, voice) not in self._known:
            self._known[number, voice] = self._read(number, voice)
        return self._known[number, voice]

    def _read(self, number: int, voice: str) -> Reading:
        prompt = self._prompts.build(text(number), Voices().get(voice))
        return self._reading(prompt, prompt.ids, number)

    def read_after(self, number: int) -> tuple[int, Reading]:
        """The number of a text whose speech ends, and the reading of ``number`` after it."""
        prompt = self._prompts.build(text(number))
        for first in itertools.count(number + 1):
            before = self._prompts.build(text(first)).ids
            said = self._talker.speak(before, 40, Chance(first))
            if said.finish == "stop":
                rows = said.rows[:-1]
                ids = (*before, *[0] * len(rows), *prompt.ids[1:])
                return first, self._reading(prompt, ids, number, [(rows, len(before))])
        raise AssertionError

    def _reading(
        self, prompt: Prompt, ids: tuple[int, ...], number: int,
        said: Sequence[tuple[np.ndarray, int]] = (),
    ) -> Reading:  # fmt: skip
        clips = [*prompt.clips, *said]
        spoken = self._talker.speak(ids, MAX_ROWS, Chance(number), clips, HEADS_TO_WATCH)
        # the text ends just before the last id
        count = len(prompt.text_starts) - 1
        looks = spoken.looks[:, :, -1 - count : -1]
        looks = (looks / looks.sum(2, keepdims=True)).mean(1)
        first, second = np.sort(looks, 1)[:, [-1, -2]].T if count > 1 else (looks[:, 0], 0)
        places = []
        for look in looks:
            near = np.arange(max(0, look.argmax() - 2), min(count, look.argmax() + 3))
            places.append((look[near] * near).sum() / look[near].sum())
        characters = np.interp(places, range(count + 1), prompt.text_starts)
        return Reading(spoken.rows, characters, first - second > 1e-5)


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint: Path) -> Oracle:
    return Oracle(tiny_checkpoint)


@pytest.fixture(scope="module", params=["inprocess", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def request_of(number: int, voice: str = "default", *, timings: bool = True) -> SpeechRequest:
    return SpeechRequest(
        "r", text(number), voice, sampling=warm(number), max_frames=MAX_ROWS, word_timings=timings
    )


async def hear(
    engine: TalkerProcessEngine, number: int, voice: str = "default", *, timings: bool = True
) -> tuple[np.ndarray, Places | None]:
    rows, places = [], []
    async for piece in engine.generate(request_of(number, voice, timings=timings)):
        assert (piece.spoken is not None) is (timings and len(piece.rows) > 0)
        rows.append(piece.rows)
        places += [] if piece.spoken is None else [piece.spoken]
    return np.concatenate(rows), np.concatenate(places) if places else None


def check(
    oracle: Oracle, heard: Sequence[tuple[np.ndarray, Places | None]], numbers: Sequence[int]
) -> None:
    for (rows, places), number in zip(heard, numbers, strict=True):
        check_one(oracle.read(number), rows, places)


def check_one(wanted: Reading, rows: np.ndarray, places: Places | None) -> None:
    assert np.array_equal(rows, wanted.rows)
    assert places is not None
    assert places.shape == (len(rows),)
    assert wanted.sure.mean() > 0.9
    off = np.abs(places - wanted.characters)[wanted.sure]
    assert off.max() < 1e-2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, kind: str) -> AsyncIterator[TalkerProcessEngine]:
    async with running(tiny_checkpoint, engine=kind, hold_rows=8, continuity="on") as started:
        yield started


async def test_word_timings_match_oracle_beside_untimed_streams(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    assert engine.spec.has_word_timings
    numbers = range(8)
    heard = await asyncio.gather(*(hear(engine, i, timings=i % 3 > 0) for i in numbers))
    asking = [i for i in numbers if i % 3]
    check(oracle, [heard[i] for i in asking], asking)
    assert all(heard[i][1] is None for i in numbers if i % 3 == 0)


async def test_word_timings_of_continued_utterance_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    first, wanted = oracle.read_after(30)
    for number in (first, 30):
        request = dataclasses.replace(request_of(number), conversation="talk")
        pieces = [piece async for piece in engine.generate(request)]
    engine.forget("talk")
    places = np.concatenate([piece.spoken for piece in pieces if piece.spoken is not None])
    check_one(wanted, np.concatenate([piece.rows for piece in pieces]), places)


async def test_word_timings_with_cached_prefix_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    """A request without word timings has filled the cache."""
    await hear(engine, 27, timings=False)
    hits = engine.last_step.cached
    heard = await asyncio.gather(*(hear(engine, 27) for _ in range(3)))
    assert engine.last_step.cached > hits
    check(oracle, heard, [27] * 3)


async def test_word_timings_with_reference_voice_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    for voice in ("alto", "bass"):
        rows, places = await hear(engine, 5, voice)
        check_one(oracle.read(5, voice), rows, places)


async def test_word_timings_survive_pause(engine: TalkerProcessEngine, oracle: Oracle) -> None:
    """Streams are read until some have been paused: a busy machine may end them before that."""
    pauses = 0
    while not pauses:
        streams = {i: engine.generate(request_of(i)) for i in range(3)}
        heard: dict[int, list[tuple[np.ndarray, Places | None]]] = {i: [] for i in streams}
        while streams:
            for i, stream in list(streams.items()):
                piece = await anext(stream)
                heard[i].append((piece.rows, piece.spoken))
                # a resumed request is an arrival without rows
                pauses += sum(not arrival.rows for arrival in piece.came)
                if piece.finish:
                    await stream.aclose()
                    del streams[i]
            await until(lambda: engine.live == 0)
            check(oracle, [await hear(engine, 9)], [9])
        for i, pieces in heard.items():
            rows = np.concatenate([rows for rows, _ in pieces])
            places = np.concatenate([places for _, places in pieces if places is not None])
            check_one(oracle.read(i), rows, places)
    await idle(engine)


async def test_word_timings_survive_preemption(
    tiny_checkpoint: Path, kind: str, oracle: Oracle
) -> None:
    async with running(tiny_checkpoint, engine=kind, **TIGHT) as engine:
        heard = await preempting(engine, [hear(engine, i) for i in range(16)])
        check(oracle, heard, range(16))


async def test_word_timings_with_chunked_prefill_match_oracle(
    tiny_checkpoint: Path, kind: str, oracle: Oracle
) -> None:
    small: dict[str, Any] = {"max_batched_positions": 24, "max_num_seqs": 8}
    async with running(tiny_checkpoint, engine=kind, **small) as engine:
        heard = await asyncio.gather(*(hear(engine, i) for i in range(8)))
        check(oracle, heard, range(8))


@pytest.mark.skipif(RUNNER != "v1", reason="compiles for a CPU")
async def test_word_timings_with_compiled_model_match_oracle(
    tiny_checkpoint: Path, oracle: Oracle
) -> None:
    async with running(tiny_checkpoint, engine="inprocess", compile="on") as engine:
        heard = await asyncio.gather(*(hear(engine, i) for i in range(4)))
        check(oracle, heard, range(4))

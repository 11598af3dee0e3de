"""Text that arrives while it is spoken: talker processes against the oracle fed the whole text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from benchmarks.reference_talker import Chance, Spoken
from streaming.errors import ErrorCode, RequestError
from streaming.ports import ArrivingText, RowDemand, Sampling, SpeechRequest, TalkerRows
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.prompts import PromptBuilder
from tests.talker import tiny_qwen3_tts as tiny_qwen
from tests.talker.harness import (
    GREEDY,
    RUNNER,
    Heard,
    begun_at_once,
    idle,
    preempting,
    running,
    text,
    until,
    warm,
)
from tests.talker.qwen3_tts_oracle import Qwen3TTSReference

#: More than the texts have ids, so that streams go on after their text's end.
ROWS = 70 if RUNNER == "v1" else 24
#: Of letters each, since the tiny vocabulary has few words.
SHORT = 0 if RUNNER == "v1" else 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen.write_checkpoint(tmp_path_factory.mktemp("tiny-qwen-words"))


class Oracle:
    """The expected speech of a whole text, laid out as one that arrives."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        builder: PromptBuilder = open_checkpoint(str(folder)).prompt_builder(1024)
        self.encode, self.talker = builder.encode, Qwen3TTSReference(folder)
        self.speak = cache(self._speak)

    def _speak(self, words: str, sampling: Sampling = GREEDY, rows: int = ROWS) -> Spoken:
        chance = None
        if sampling.temperature:
            assert sampling.seed is not None
            chance = Chance(sampling.seed, sampling.temperature, sampling.top_k or 50, 0.95)
        ids = self.encode(words)
        places = self.talker.prompt(ids, "vivian", is_streamed=True)
        spoken = self.talker.speak(places, rows, chance, self.talker.following(ids))
        assert spoken.margin > 2e-5, "too close to call: choose another text or seed"
        return spoken


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["inprocess", "async"])
async def engine(
    request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[TalkerProcessEngine]:
    if request.param == "async" and RUNNER == "v2":
        pytest.skip("the interpreter is too slow for engine cores of their own")
    async with running(folder, engine=request.param) as started:
        yield started


def said(number: int) -> str:
    return text(number)[: SHORT or None].strip()


def pieces(words: str) -> list[str]:
    """A text cut before each of its spaces."""
    first, *rest = words.split(" ")
    return [first, *(f" {word}" for word in rest)]


class Speaker:
    """Takes the rows of one request whose text the test lets arrive."""

    def __init__(
        self,
        engine: TalkerProcessEngine,
        begin: str,
        sampling: Sampling = GREEDY,
        rows: int = ROWS,
        *,
        is_complete: bool = False,
    ) -> None:
        self.text = ArrivingText(begin, is_complete=is_complete)
        self._request = SpeechRequest(
            "r", "", sampling=sampling, max_frames=rows, arriving=self.text
        )
        self._engine = engine
        #: Set when the talker has said that it waits for text.
        self.waits = asyncio.Event()
        self.rows = 0

    async def hear(
        self, demand: RowDemand | None = None, each: Callable[[TalkerRows], Any] | None = None
    ) -> Heard:
        got, finish = [], None
        stream = self._engine.generate(self._request)
        sent: RowDemand | None = None
        while finish is None:
            piece = await stream.asend(sent)
            sent = demand
            got.append(piece.rows)
            self.rows += len(piece.rows)
            finish = piece.finish
            if piece.waits:
                self.waits.set()
            if each is not None:
                await each(piece)
        return Heard(np.concatenate(got), finish, len(got))

    async def write(self, parts: Sequence[str], *, when_waiting: bool) -> None:
        """Append the rest of a text: all at once, or whenever the talker waits, so much that it
        goes on, which it does for four ids.
        """
        ids = 4
        for part in parts:
            if when_waiting and ids >= 4:
                await self.waits.wait()
                self.waits.clear()
                ids = 0
            self.text.append(part, is_last=False)
            ids += 1 if part in (" the", " hello", " world") else len(part)
        self.text.append("", is_last=True)


def draws(number: int, *, drawn: bool) -> Sampling:
    return warm(number, temperature=0.9) if drawn else GREEDY


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("when_waiting", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
async def test_text_that_arrives_gives_codes_of_whole_text(
    engine: TalkerProcessEngine, oracle: Oracle, drawn: bool, when_waiting: bool
) -> None:
    count = 6 if RUNNER == "v1" else 2

    async def one(number: int) -> Heard:
        first, *rest = pieces(said(number))
        speaker = Speaker(engine, first, draws(number, drawn=drawn))
        demand = RowDemand(at_once=4) if number % 2 else None
        heard, _ = await asyncio.gather(
            speaker.hear(demand), speaker.write(rest, when_waiting=when_waiting)
        )
        return heard

    heard = await asyncio.gather(*map(one, range(count)))
    wanted = [oracle.speak(said(i), draws(i, drawn=drawn)) for i in range(count)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * count
    await idle(engine)


@pytest.mark.asyncio(loop_scope="module")
async def test_complete_text_has_same_layout(engine: TalkerProcessEngine, oracle: Oracle) -> None:
    heard = await Speaker(engine, said(3), is_complete=True).hear()
    assert heard.same(oracle.speak(said(3)))


@pytest.mark.asyncio(loop_scope="module")
async def test_waiting_stream_has_no_slot_and_speaks_no_further(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    words = said(1)
    first, *rest = pieces(words)
    speaker = Speaker(engine, first)
    listening = asyncio.create_task(speaker.hear())
    await speaker.waits.wait()
    await until(lambda: engine.live == 0)
    assert engine.outstanding == 1
    assert speaker.rows == len(oracle.encode(first)) - 1  # each frame goes with a later id
    # another stream is not held up
    other = await Speaker(engine, said(2), is_complete=True).hear()
    assert other.same(oracle.speak(said(2)))
    assert speaker.rows == len(oracle.encode(first)) - 1
    speaker.text.append("".join(rest), is_last=True)
    assert (await listening).same(oracle.speak(words))


@pytest.mark.asyncio(loop_scope="module")
async def test_end_is_held_until_text_has_ended(folder: Path, oracle: Oracle) -> None:
    """Whole texts end long before this one's text does: without the hold it would end too."""
    ends = [len(oracle.speak(said(i), warm(i, temperature=0.9)).rows) for i in range(6)]
    lengths = [len(oracle.encode(said(i))) for i in range(6)]
    assert all(end >= length for end, length in zip(ends, lengths, strict=True))


@pytest.mark.asyncio(loop_scope="module")
async def test_aborted_waiting_streams_leave_nothing(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    speakers = [Speaker(engine, pieces(said(i))[0]) for i in range(4)]
    tasks = [asyncio.create_task(speaker.hear()) for speaker in speakers]
    await asyncio.gather(*(speaker.waits.wait() for speaker in speakers))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await idle(engine)
    speakers[0].text.append(" late", is_last=True)  # of no request any more
    heard = await Speaker(engine, said(0), is_complete=True).hear()
    assert heard.same(oracle.speak(said(0)))


@pytest.mark.asyncio(loop_scope="module")
async def test_client_limit_cuts_stream_in_its_text(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    first, *rest = pieces(said(3))
    speaker = Speaker(engine, first, rows=6)
    heard, _ = await asyncio.gather(speaker.hear(), speaker.write(rest, when_waiting=False))
    assert heard.finish == "length"
    assert heard.same(oracle.speak(said(3), rows=6))


@pytest.mark.asyncio(loop_scope="module")
async def test_text_that_cannot_be_encoded_ends_stream(engine: TalkerProcessEngine) -> None:
    speaker = Speaker(engine, "hello the")
    listening = asyncio.create_task(speaker.hear())
    await speaker.waits.wait()
    speaker.text.append(" \ud800", is_last=False)
    with pytest.raises(RequestError) as error:
        await listening
    assert error.value.code is ErrorCode.INVALID_TEXT
    await idle(engine)


@pytest.mark.asyncio
async def test_preempted_chunked_and_paused_streams_give_codes_of_whole_text(
    folder: Path, oracle: Oracle
) -> None:
    tight: dict[str, Any] = {
        "max_positions": 256, "kv_positions": 352, "max_batched_positions": 19, "max_num_seqs": 12,
        "hold_rows": 8,
    }  # fmt: skip
    count = 12 if RUNNER == "v1" else 4
    async with running(folder, engine="inprocess", **tight) as engine:

        async def one(number: int) -> Heard:
            first, *rest = pieces(said(number))
            speaker = Speaker(engine, first, draws(number, drawn=number % 2 > 0))
            lag = 0.02 * (number % 3)
            heard, _ = await asyncio.gather(
                speaker.hear(each=lambda _: asyncio.sleep(lag)),
                speaker.write(rest, when_waiting=number % 2 > 0),
            )
            return heard

        begin = preempting if RUNNER == "v1" else begun_at_once
        heard = await begin(engine, [one(i) for i in range(count)])
        wanted = [oracle.speak(said(i), draws(i, drawn=i % 2 > 0)) for i in range(count)]
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * count
        await idle(engine)

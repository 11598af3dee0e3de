"""Conversations in real talker processes against the oracle, a plain loop over the whole prompt.

Every code of every utterance must be equal, also after pauses, preemption and restarts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import Sampling, SpeechRequest, TalkerRows
from talker.engine import TalkerProcessEngine
from talker.prompts import Prompt, PromptBuilder
from tests.talker.harness import (
    GREEDY,
    MAX_ROWS,
    Heard,
    hear,
    idle,
    preempting,
    running,
    text,
    until,
    warm,
)
from tests.talker.talks import SHORT_ROWS, Talk, TalkOracle

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
#: Block size of the KV cache on a CPU; the prefix cache holds only whole blocks.
BLOCK = 32
#: Numbers of texts whose greedy speech does not end within 100 rows.
LONG = (0, 1, 2, 5, 7, 9, 13, 0)
#: No utterance is paused, however late its rows are taken: a pause reads the cache again, and the
#: table of frames may go round in it.
UNPAUSED: dict[str, Any] = {"hold_rows": MAX_ROWS}


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint: Path) -> TalkOracle:
    return TalkOracle(tiny_checkpoint)


@pytest.fixture(scope="module", params=["inprocess", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, kind: str) -> AsyncIterator[TalkerProcessEngine]:
    async with running(tiny_checkpoint, engine=kind, continuity="on", **UNPAUSED) as started:
        yield started


class Speaker:
    """One conversation, in both the engine and the oracle."""

    def __init__(
        self, engine: TalkerProcessEngine, oracle: TalkOracle, name: str,
        voice: str = "default", sampling: Sampling = GREEDY,
    ) -> None:  # fmt: skip
        self._engine, self.name, self._number = engine, name, sum(map(ord, name))
        self.talk = Talk(oracle, voice, sampling)

    async def hear(self, words: str, **more: Any) -> Heard:
        return await hear(
            self._engine, words, self.talk.sampling, voice=self.talk.voice,
            conversation=self.name, **more,
        )  # fmt: skip

    def start(self, words: str) -> AsyncGenerator[TalkerRows, None]:
        return self._engine.generate(
            SpeechRequest("r", words, sampling=GREEDY, max_frames=60, conversation=self.name)
        )

    async def go_on(self) -> None:
        """Speak the next utterance, which must equal the oracle's."""
        words = self.talk.next_text(self._number)
        self._number += 1
        assert (await self.hear(words)).same(self.talk.go_on(words))


async def test_conversation_history_hits_prefix_cache(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    one = Speaker(engine, oracle, "alone")
    for _ in range(4):
        held, before = len(one.talk.ids), engine.last_step.cached
        await one.go_on()
        assert engine.last_step.cached - before == held // BLOCK * BLOCK
    engine.forget("alone")


async def test_each_utterance_builds_its_prompt_once(
    engine: TalkerProcessEngine, oracle: TalkOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, built, build = Speaker(engine, oracle, "counted"), list[str](), PromptBuilder.build

    def counted(prompts: PromptBuilder, words: str, *args: Any, **options: Any) -> Prompt:
        built.append(words)
        return build(prompts, words, *args, **options)

    monkeypatch.setattr(PromptBuilder, "build", counted)
    for number in range(3):
        await one.hear(text(number), rows=20)
    assert built == [text(number) for number in range(3)]
    engine.forget("counted")


async def test_unspeakable_utterance_is_refused_before_its_turn(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    one = Speaker(engine, oracle, "refused")
    first = one.start(text(0))
    await anext(first)
    with pytest.raises(RequestError):
        one.start("")
    await first.aclose()
    await idle(engine)
    engine.forget("refused")


async def test_concurrent_conversations_keep_voice_and_sampling(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    speakers = [
        Speaker(engine, oracle, "a"),
        Speaker(engine, oracle, "b", sampling=warm(5)),
        Speaker(engine, oracle, "c", voice="alto", sampling=warm(6)),
        Speaker(engine, oracle, "d", voice="bass"),
    ]
    alone = Talk(oracle)
    words = alone.next_text(70)
    for _ in range(3):
        other = asyncio.create_task(hear(engine, words))
        await asyncio.gather(*(s.go_on() for s in speakers), other)
        assert other.result().same(alone.say(words))
    for speaker in speakers:
        engine.forget(speaker.name)


async def test_forgotten_conversation_starts_anew(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    await Speaker(engine, oracle, "again").go_on()
    engine.forget("again")
    engine.forget("again")
    await Speaker(engine, oracle, "again").go_on()
    engine.forget("again")


async def test_truncated_and_closed_utterances_are_not_continued(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    one = Speaker(engine, oracle, "cut")
    await one.go_on()
    cut = await one.hear(text(3), rows=9)
    assert cut.same(one.talk.say(text(3), 9))
    assert cut.finish == "length"
    await one.go_on()
    # however late it is left: what ends at its length is not continued either
    short = SpeechRequest("r", text(4), sampling=GREEDY, max_frames=9, conversation="cut")
    left = engine.generate(short)
    await anext(left)
    await left.aclose()
    await one.go_on()
    engine.forget("cut")


async def test_utterance_closed_after_its_end_in_process_is_not_continued(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    """The process has kept it, so the conversation starts over from the last one that was heard."""
    one = Speaker(engine, oracle, "left")
    await one.go_on()
    while True:
        words = one.talk.next_text(30)
        left = one.start(words)
        if (await anext(left)).finish is None:
            break
        # all of it came before this process looked, so it was heard
        await left.aclose()
        one.talk.go_on(words)
    await until(lambda: engine.live == 0)  # no more than ``hold_rows`` rows wait
    await left.aclose()
    one.talk.start_over()
    await one.go_on()
    await one.go_on()
    engine.forget("left")


async def test_utterance_waits_for_previous_utterance(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    one = Speaker(engine, oracle, "queue")
    words = [one.talk.next_text(10)]
    wanted = [one.talk.go_on(words[0])]
    words.append(one.talk.next_text(20))
    wanted.append(one.talk.go_on(words[1]))
    heard = await asyncio.gather(*(one.hear(w) for w in words))
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True, True]
    engine.forget("queue")


async def test_forget_during_speech_leaves_no_history(
    engine: TalkerProcessEngine, oracle: TalkOracle
) -> None:
    one = Speaker(engine, oracle, "gone")
    words = one.talk.next_text(20)
    speaking = one.start(words)
    rows = [(await anext(speaking)).rows]
    engine.forget("gone")
    rows += [piece.rows async for piece in speaking]
    assert np.array_equal(np.concatenate(rows), one.talk.say(words).rows)
    await Speaker(engine, oracle, "gone").go_on()
    engine.forget("gone")


async def test_overlong_conversation_restarts_from_last_utterance(
    tiny_checkpoint: Path, oracle: TalkOracle
) -> None:
    """The prompt may take half of the positions, or all but those of the longest utterance."""
    room = 256
    settings: dict[str, Any] = {"engine": "inprocess", "continuity": "on", "max_positions": room}
    async with running(tiny_checkpoint, **settings) as engine:
        for voice in ("default", "alto"):
            one = Speaker(engine, oracle, voice, voice)
            overs = 0
            for number in range(8):
                # the text's length counts: a short one may continue where a longer one starts over
                words, talk = one.talk.within(max(room // 2, room - MAX_ROWS), 10 * number)
                overs += talk is not one.talk
                one.talk = talk
                assert (await one.hear(words)).same(talk.go_on(words))
            assert overs


async def test_overwritten_frames_are_resent_as_rows(
    tiny_checkpoint: Path, kind: str, oracle: TalkOracle
) -> None:
    """Detected by the row count or, if it happens while the request waits, by the epoch check."""
    settings: dict[str, Any] = {
        "frame_slots": 256,
        "max_num_seqs": 4,
        "prefix_caching": False,
        **UNPAUSED,
    }
    async with running(tiny_checkpoint, engine=kind, continuity="on", **settings) as engine:
        one = Speaker(engine, oracle, "old")
        await one.go_on()
        await one.go_on()
        others = [hear(engine, text(i), rows=100) for i in LONG]
        assert min(len(h.rows) for h in await asyncio.gather(*others)) == 100
        one.talk.start_over()
        await one.go_on()
        await one.go_on()
        began = asyncio.Event()
        waiting = [asyncio.create_task(hear(engine, text(i), rows=100, began=began)) for i in LONG]
        await began.wait()  # all were sent before the first one's rows came
        one.talk.start_over()
        await one.go_on()  # has waited behind the others
        await asyncio.gather(*waiting)
        await idle(engine)


async def test_conversation_survives_process_death(
    tiny_checkpoint: Path, oracle: TalkOracle
) -> None:
    """The utterance in flight fails; the next one starts over from the last complete one."""
    async with running(tiny_checkpoint, engine="inprocess", continuity="on") as engine:
        one = Speaker(engine, oracle, "survivor")
        await one.go_on()
        await one.go_on()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)  # so that the utterance cannot end
        dying = asyncio.create_task(one.hear(text(0)))
        await until(lambda: engine.outstanding == 1)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(BackendError) as error:
            await dying
        assert error.value.code is ErrorCode.ENGINE_RESTARTING
        await until(lambda: engine.is_ready, timeout_s=250)
        one.talk.start_over()
        await one.go_on()
        await one.go_on()


async def test_paused_and_preempted_utterances_resume_unchanged(
    tiny_checkpoint: Path, oracle: TalkOracle
) -> None:
    settings: dict[str, Any] = {"max_positions": 384, "kv_positions": 512, "hold_rows": 8}
    async with running(tiny_checkpoint, engine="inprocess", continuity="on", **settings) as engine:
        speakers = [Speaker(engine, oracle, f"s{i}") for i in range(12)]
        await asyncio.gather(*(s.go_on() for s in speakers))
        words = [s.talk.next_text(5 * i, "length") for i, s in enumerate(speakers)]
        wanted = [s.talk.say(w, SHORT_ROWS) for s, w in zip(speakers, words, strict=True)]
        streams = [
            s.hear(w, rows=SHORT_ROWS, pause_s=0.05 * (i % 2))
            for i, (s, w) in enumerate(zip(speakers, words, strict=True))
        ]
        heard = await preempting(engine, streams)
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 12
        await idle(engine)


@pytest.mark.timeout(900)  # five processes start one after another
async def test_conversation_stays_with_engine_core(
    tiny_checkpoint: Path, oracle: TalkOracle
) -> None:
    """Frame ids, also those of a paused request, are valid only in the core that made them."""
    settings: dict[str, Any] = {"data_parallel_size": 2, "hold_rows": 8}
    async with running(tiny_checkpoint, engine="async", continuity="on", **settings) as engine:
        speakers = [Speaker(engine, oracle, f"d{i}") for i in range(5)]
        for _ in range(3):
            await asyncio.gather(*(s.go_on() for s in speakers))
        streams = [s.start(text(number)) for s, number in zip(speakers, LONG, strict=False)]
        heard = [[(await anext(stream)).rows] for stream in streams]
        await until(lambda: engine.live == 0)  # all are paused, since their rows are not taken
        for speaker, number, stream, rows in zip(speakers, LONG, streams, heard, strict=False):
            rows += [piece.rows async for piece in stream]
            wanted = speaker.talk.say(text(number), 60).rows
            assert np.array_equal(np.concatenate(rows), wanted)
        await idle(engine)

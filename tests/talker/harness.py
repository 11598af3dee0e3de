"""Helpers for tests of real talker processes: texts, the oracle, collecting rows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.reference_talker import Chance, ReferenceTalker, Spoken
from streaming.ports import Reference, RowDemand, Sampling, SilenceMask, SpeechRequest
from streaming.spec import Codes
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.prompts import Prompt, ReferenceVoice
from talker.request_builder import VoiceSource
from talker.settings import TalkerSettings
from tests import waiting

#: "v2" tests the GPU adapter in Triton's interpreter, in an environment of its own.
RUNNER = os.environ.get("TALKWIRE_TEST_RUNNER", "v1")
#: Fewer in Triton's interpreter, which takes milliseconds per stream and step.
MAX_ROWS = 120 if RUNNER == "v1" else 40
WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "hello", "world",
    "again",
)  # fmt: skip
GREEDY = Sampling(temperature=0.0)
T = TypeVar("T")


def text(number: int) -> str:
    """A text of 3 to 11 words, the same for the same number."""
    chosen = random.Random(number)
    return " ".join(chosen.choice(WORDS) for _ in range(chosen.randrange(3, 12)))


def spelled(folder: Path, prompt: Prompt) -> str:
    """A prompt's ids as text, control tokens included."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(list(prompt.ids), skip_special_tokens=False)


def warm(seed: int, **more: Any) -> Sampling:
    return Sampling(**{"temperature": 1.0, "top_k": 50, "top_p": 0.95, "seed": seed, **more})


def random_voice(number: int, frames: int = 40) -> ReferenceVoice:
    """A reference clip of random codes."""
    codes = np.random.default_rng(number).integers(0, 1024, (8, frames), np.int16)
    return ReferenceVoice(codes.T, transcript="hello again" if number % 2 else None)


class Voices:
    """Two random voices, "alto" and "bass"."""

    def __init__(self) -> None:
        self.known = {"alto": random_voice(1), "bass": random_voice(2)}

    def names(self) -> Sequence[str]:
        return tuple(self.known)

    def get(self, name: str) -> ReferenceVoice | None:
        return self.known.get(name)


class Oracle:
    """The expected speech of requests, cached because the plain loop is slow."""

    def __init__(self, folder: Path, talker: ReferenceTalker | None = None) -> None:
        torch.set_num_threads(1)  # one row is too little work for several threads
        checkpoint = open_checkpoint(str(folder))
        self._prompts = checkpoint.prompt_builder(1024)
        self._talker = talker or ReferenceTalker(folder)
        self.speak: Callable[..., Spoken] = cache(self._speak)

    def _speak(
        self, words: str, sampling: Sampling = GREEDY, voice: str = "default", rows: int = MAX_ROWS
    ) -> Spoken:
        prompt = self._prompts.build(words, Voices().get(voice))
        chance = None
        heat = 1.0 if sampling.temperature is None else sampling.temperature
        if heat or sampling.seed is not None:
            assert sampling.seed is not None
            chance = Chance(sampling.seed, heat, sampling.top_k or 50, sampling.top_p or 0.95)
        spoken = self._talker.speak(prompt.ids, rows, chance, prompt.clips)
        assert spoken.margin > 2e-5, "too close to call: choose another text or seed"
        return spoken


@dataclass
class Heard:
    """The rows of one request, its finish reason, and the number of pieces received."""

    rows: Codes
    finish: str | None
    pieces: int

    def same(self, spoken: Spoken) -> bool:
        return self.finish == spoken.finish and np.array_equal(self.rows, spoken.rows)


async def hear(
    engine: TalkerProcessEngine,
    words: str,
    sampling: Sampling = GREEDY,
    *,
    voice: str = "default",
    rows: int = MAX_ROWS,
    pause_s: float = 0.0,
    together: Sequence[int] = (),
    conversation: str | None = None,
    began: asyncio.Event | None = None,
    after_first: Callable[[], Awaitable[object]] | None = None,
    references: Sequence[Reference] = (),
    instructions: str | None = None,
    mask: SilenceMask | None = None,
    deadline: Callable[[], float] | None = None,
) -> Heard:
    """Run one request to its end.

    ``together`` lists the numbers of rows to demand at a time, one after each piece, in a cycle.
    ``began`` is set when the first rows have come; ``after_first`` is awaited before the next.
    """
    request = SpeechRequest(
        "r",
        words,
        voice,
        sampling=sampling,
        max_frames=rows,
        conversation=conversation,
        instructions=instructions,
        mask=mask,
        deadline=deadline,
    )
    if references:
        first, *others = references
        request = replace(request, reference=first, other_references=tuple(others))
    got, finish = [], None
    pieces = engine.generate(request)
    demand: RowDemand | None = None
    while finish is None:
        piece = await pieces.asend(demand)
        got.append(piece.rows)
        finish = piece.finish
        if began is not None:
            began.set()
        if together:
            demand = RowDemand(at_once=together[len(got) % len(together)])
        if after_first is not None and len(got) == 1:
            await after_first()
        if pause_s:
            await asyncio.sleep(pause_s)
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)  # no rows after the end
    return Heard(np.concatenate(got), finish, len(got))


#: Triton's interpreter is slow.
until = partial(waiting.until, timeout_s=180.0)


async def begun_at_once(
    engine: TalkerProcessEngine, streams: Sequence[Coroutine[Any, Any, T]]
) -> list[T]:
    """Run streams whose requests all reach the talker before it takes its next step, however slowly
    this process sends them.
    """
    assert engine.pid is not None
    expected = engine.outstanding + len(streams)
    os.kill(engine.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(stream) for stream in streams]
    await until(lambda: engine.outstanding == expected)
    os.kill(engine.pid, signal.SIGCONT)
    return await asyncio.gather(*tasks)


async def preempting(
    engine: TalkerProcessEngine, streams: Sequence[Coroutine[Any, Any, T]]
) -> list[T]:
    """Run streams of which some must be preempted."""
    before = engine.last_step.preempted
    heard = await begun_at_once(engine, streams)
    assert engine.last_step.preempted > before
    return heard


async def idle(engine: TalkerProcessEngine) -> None:
    """Wait until neither the gateway nor the talker process holds a request."""
    await until(lambda: not (engine.outstanding or engine.live))


@contextlib.asynccontextmanager
async def running(
    folder: Path, voices: VoiceSource | None = None, **settings: Any
) -> AsyncIterator[TalkerProcessEngine]:
    # float32 on a GPU too, where the default is bfloat16: the oracle computes in float32
    shared: dict[str, Any] = {"runner": RUNNER, "statistics": True, "dtype": "float32"}
    chosen = TalkerSettings(**{**shared, **settings})
    engine = TalkerProcessEngine(str(folder), chosen, voices=voices or Voices())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()

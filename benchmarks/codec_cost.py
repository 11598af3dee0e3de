"""Cost of streaming: ``python -m benchmarks.codec_cost``.

One-shot decoding and all ways of streaming are timed in turn within each round, so that a busy
machine affects all equally. Each round gives one ratio of costs per frame; the median and the
minimum of these ratios are printed. ``window`` decodes the whole window and drops the rest;
``trim`` is this project's way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.random_weights import random_decoder
from codec.families.higgs.checkpoint import open_higgs
from codec.family import CheckpointError, DeviceError
from codec.memory import keep_freed_memory
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow

ONE_SHOT_FRAMES = 100


@dataclass(frozen=True)
class Case:
    """One way of streaming: contexts and chunk in frames."""

    mode: str
    left: int
    chunk: int
    lookahead: int


@dataclass(frozen=True)
class Figure:
    """Cost per new frame relative to one-shot decoding, and the milliseconds of one window."""

    case: Case
    median_ratio: float
    least_ratio: float
    median_ms: float


CASES = (
    Case("trim", 10, 1, 2),
    Case("trim", 10, 2, 2),
    Case("trim", 10, 5, 2),
    Case("trim", 10, 5, 4),
    Case("trim", 10, 10, 4),
    Case("trim", 10, 25, 4),
    Case("trim", 10, 50, 4),
    Case("trim", 10, 25, 10),
    Case("window", 10, 5, 4),
    Case("window", 10, 25, 4),
    Case("window", 25, 25, 4),
)
BATCHES = (1, 2, 4, 8)
BATCH_CASES = (Case("trim", 10, 2, 2), Case("trim", 10, 5, 4), Case("trim", 10, 25, 4))


@failing("benchmarks.codec_cost", CheckpointError, DeviceError, ValueError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a Markdown report, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.codec_cost", description=__doc__)
    parser.add_argument("--model", default="embedded/checkpoint", help="a folder or a hub id")
    parser.add_argument("--full-size", action="store_true", help="random full-size weights")
    parser.add_argument("--rounds", type=bounded(int, 1), default=9)
    parser.add_argument("--threads", type=bounded(int, 1), default=1)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    name = "full size, random weights" if options.full_size else options.model
    decoder = random_decoder() if options.full_size else open_higgs(options.model).load_decoder()
    # A single thread is timed by its own clock, which stops while other processes use the core.
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    one_shot_ms, figures = measure_streaming(decoder, options.rounds, clock)
    batches = measure_batches(decoder, options.rounds, clock)
    facts = environment() | {"codec": name, "threads": str(options.threads)}
    print_facts(facts)
    print(f"One-shot: {one_shot_ms:.3f} ms per frame of {1000 * decoder.spec.frame_s:.0f} ms\n")
    print(streaming_table(figures))
    print()
    print(batch_table(batches))
    report = {
        "environment": facts,
        "one_shot_ms_per_frame": one_shot_ms,
        "streaming": [asdict(figure) for figure in figures],
        "batches": [{"case": asdict(case), "ms": list(ms)} for case, ms in batches],
    }
    write_json(options.json, report)


def measure_streaming(
    decoder: CodecDecoder, rounds: int, clock: Callable[[], float]
) -> tuple[float, list[Figure]]:
    """Time one-shot decoding and all cases in turn. Returns one-shot ms per frame, and results."""
    codes = _codes(decoder, ONE_SHOT_FRAMES)
    works = [window_work(decoder, case) for case in CASES]
    once = []
    ratios = [list[float]() for _ in CASES]
    seconds = [list[float]() for _ in CASES]
    for number in range(rounds + 1):
        base = _seconds(clock, lambda: decoder.decode([codes])) / ONE_SHOT_FRAMES
        times = [_seconds(clock, work) for work in works]
        if number == 0:
            continue  # warms up
        once.append(base)
        for index, (case, taken) in enumerate(zip(CASES, times, strict=True)):
            seconds[index].append(taken)
            ratios[index].append(taken / case.chunk / base)
    figures = [
        Figure(case, statistics.median(r), min(r), 1000 * statistics.median(s))
        for case, r, s in zip(CASES, ratios, seconds, strict=True)
    ]
    return 1000 * statistics.median(once), figures


def measure_batches(
    decoder: CodecDecoder, rounds: int, clock: Callable[[], float]
) -> list[tuple[Case, list[float]]]:
    """Time 1, 2, 4 and 8 windows that are decoded together, in milliseconds per window."""
    results = []
    for case in BATCH_CASES:
        window = _window(decoder, case)
        milliseconds = []
        for rows in BATCHES:
            work = partial(decoder.decode_windows, [window] * rows)
            work()
            taken = statistics.median(_seconds(clock, work) for _ in range(rounds))
            milliseconds.append(1000 * taken / rows)
        results.append((case, milliseconds))
    return results


def streaming_table(figures: Sequence[Figure]) -> str:
    """Format the streaming results in Markdown."""
    head = ["mode", "left", "chunk", "lookahead", "x one-shot", "least", "ms per window"]
    rows = [[*asdict(f.case).values(), f.median_ratio, f.least_ratio, f.median_ms] for f in figures]
    return markdown_table(head, rows)


def batch_table(batches: Sequence[tuple[Case, list[float]]]) -> str:
    """Format the batch results in Markdown."""
    head = ["ms per window at left+chunk+lookahead", *(f"batch {rows}" for rows in BATCHES)]
    rows = [[f"{c.left}+{c.chunk}+{c.lookahead}", *ms] for c, ms in batches]
    return markdown_table(head, rows)


def window_work(decoder: CodecDecoder, case: Case) -> Callable[[], object]:
    """Return a function that decodes one window."""
    window = _window(decoder, case)
    if case.mode == "window":
        return lambda: window.trim(decoder.decode([window.codes])[0])
    return lambda: decoder.decode_windows([window])


def _window(decoder: CodecDecoder, case: Case) -> DecodeWindow:
    codes = _codes(decoder, case.left + case.chunk + case.lookahead)
    return DecodeWindow(codes, case.left, case.chunk, case.lookahead)


def _codes(decoder: CodecDecoder, frames: int) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
    size = (decoder.spec.num_codebooks, frames)
    rng = np.random.default_rng(frames)
    return rng.integers(0, decoder.spec.codebook_size, size).astype(np.int16)


def _seconds(clock: Callable[[], float], work: Callable[[], object]) -> float:
    began = clock()
    work()
    return clock() - began


if __name__ == "__main__":
    main()

"""Throughput of the codec: ``python -m benchmarks.codec_throughput --device cuda``.

Prints seconds of audio per second for steady windows (the codec's own left context, and lookahead 4
if it uses any) at several chunk and batch sizes, of a model's codec or, with ``--full-size``, of a
family's published sizes with random weights. On a GPU it runs with graphs, if the codec has them,
and without; a batch is timed from the codes on the host to the samples on the host. On a CPU there
are no graphs, and a single thread is timed by its own clock, which stops while other processes use
the core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.random_weights import random_decoder
from benchmarks.report import (
    bounded,
    environment,
    failing,
    markdown_table,
    median_seconds,
    output_file,
    print_facts,
    write_json,
)
from codec.batching import BatchLimits
from codec.families import open_codec
from codec.family import CheckpointError, DeviceError
from codec.graphs import CudaRecorder, GraphDecoder, LaidOutDecoder, choose_device, graphed
from codec.layers import set_precision
from codec.memory import keep_freed_memory
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow

_LOOKAHEAD = 4
#: Minimum duration and number of timings.
_LEAST_S, _TIMES = 0.2, 5


@dataclass(frozen=True)
class Figure:
    """Seconds of audio per second, and the milliseconds of one batch (medians)."""

    way: str
    chunk: int
    batch: int
    audio_s_per_s: float
    ms: float


@failing("benchmarks.codec_throughput", CheckpointError, DeviceError, ValueError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a Markdown report, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.codec_throughput", description=__doc__)
    parser.add_argument("--model", default="embedded/checkpoint", help="a folder or a hub id")
    parser.add_argument("--full-size", action="store_true", help="random full-size weights")
    parser.add_argument("--family", choices=("higgs", "fish_s2"), default="higgs")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--batches", nargs="+", type=bounded(int, 1), default=[1, 2, 4, 8])
    parser.add_argument("--chunks", nargs="+", type=bounded(int, 1), default=[5, 25, 50])
    parser.add_argument("--threads", type=bounded(int, 1), default=1)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    torch.set_num_threads(options.threads)
    set_precision()
    keep_freed_memory()
    decoder = (
        random_decoder(device, options.family)
        if options.full_size
        else open_codec(options.model).load_decoder(device)
    )
    began = time.perf_counter()
    ways = ways_of(decoder, device, max(options.batches))
    captured_s = time.perf_counter() - began
    alone = device == "cpu" and options.threads == 1
    clock = time.thread_time if alone else time.perf_counter
    figures = measure(ways, options.chunks, options.batches, clock)
    name = f"{options.family}, random weights" if options.full_size else options.model
    facts = environment() | {"codec": name, "threads": str(options.threads)}
    if device != "cpu":
        facts |= {"device": torch.cuda.get_device_name(device)}
        facts |= {"captures": f"{captured_s:.1f} s"}
    print_facts(facts)
    print(table(figures, options.batches))
    write_json(options.json, {"environment": facts, "figures": [asdict(one) for one in figures]})


def ways_of(decoder: CodecDecoder, device: str, most: int) -> dict[str, CodecDecoder]:
    """Return the ways to decode on ``device``, by name; only one on a GPU where captures fail."""
    ways: dict[str, CodecDecoder] = {"eager": decoder}
    if torch.device(device).type == "cuda" and isinstance(decoder, LaidOutDecoder):
        made = graphed(decoder, BatchLimits(rows=most), CudaRecorder(device))
        if isinstance(made, GraphDecoder):
            ways["graphs"] = made
    return ways


def measure(
    ways: dict[str, CodecDecoder],
    chunks: Sequence[int],
    batches: Sequence[int],
    clock: Callable[[], float],
) -> list[Figure]:
    """Time every way, chunk and batch."""
    figures = []
    for way, decoder in ways.items():
        for chunk in chunks:
            for batch in batches:
                seconds = seconds_of(decoder, windows(decoder, chunk, batch), clock)
                audio = batch * chunk * decoder.spec.frame_s
                figures.append(Figure(way, chunk, batch, audio / seconds, 1000 * seconds))
    return figures


def windows(decoder: CodecDecoder, chunk: int, batch: int) -> list[DecodeWindow]:
    """Make ``batch`` windows of random codes."""
    spec, rng = decoder.spec, np.random.default_rng(chunk)
    left, lookahead = spec.left_frames, min(_LOOKAHEAD, spec.right_frames)
    shape = (batch, spec.num_codebooks, left + chunk + lookahead)
    sizes = np.array(spec.codebook_sizes)[:, None]
    codes = rng.integers(0, sizes, shape).astype(np.int16)
    return [DecodeWindow(one, left, chunk, lookahead, left) for one in codes]


def seconds_of(
    decoder: CodecDecoder, work: list[DecodeWindow], clock: Callable[[], float]
) -> float:
    """Return the seconds of one batch, the median of several timings without the first run."""
    decode = partial(decoder.decode_windows, work)
    decode()
    once_s = median_seconds(decode, 1, 1, clock=clock)
    repeats = max(1, round(_LEAST_S / max(once_s, 1e-6)))
    return median_seconds(decode, _TIMES, repeats, clock=clock)


def table(figures: Sequence[Figure], batches: Sequence[int]) -> str:
    """Format seconds of audio per second, with the milliseconds of a batch in brackets."""
    rows: dict[tuple[str, int], list[object]] = {}
    for figure in figures:
        cells = rows.setdefault((figure.way, figure.chunk), [figure.way, figure.chunk])
        cells.append(f"{figure.audio_s_per_s:.3g} ({figure.ms:.1f})")
    head = ["way", "chunk", *(f"batch {batch}: audio s/s (ms)" for batch in batches)]
    return markdown_table(head, list(rows.values()))


if __name__ == "__main__":
    main()

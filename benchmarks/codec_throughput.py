"""Throughput of the codec: ``python -m benchmarks.codec_throughput --device cuda``.

Prints seconds of audio per second at several chunk and batch sizes, for steady windows (the codec's
own left context, and lookahead 4 if it uses any) or, with a codec that keeps states, for whole
streams: of a model's codec or, with ``--full-size``, of a family's published sizes with random
weights. On a GPU it runs with graphs and without; a batch is timed from the codes on the host to
the samples on the host. On a CPU there are no graphs, and a single thread is timed by its own
clock, which stops while other processes use the core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle

import numpy as np
import torch

from benchmarks.random_weights import random_decoder
from codec.batching import BatchLimits
from codec.families import open_codec
from codec.family import CheckpointError, DeviceError, StatefulDecoder
from codec.graphs import LaidOutDecoder, choose_device, graphed, recorder_for
from codec.layers import set_tf32
from codec.memory import keep_freed_memory
from codec.snake import use_kernel
from codec.stream_decoder import StreamDecoder
from codec.stream_graphs import stream_graphed
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
from streaming.ports import CodecDecoder
from streaming.spec import Codes
from streaming.window import DecodeWindow, SlidingWindowChunker

_LOOKAHEAD = 4
#: Minimum duration of a timing.
_LEAST_S = 0.2
#: Number of timings.
_TIMES = 5
#: Least length of a stream.
_STREAM_FRAMES = 100


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
    parser.add_argument("--family", choices=("higgs", "fish_s2", "qwen3_tts"), default="higgs")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--batches", nargs="+", type=bounded(int, 1), default=[1, 2, 4, 8])
    parser.add_argument("--chunks", nargs="+", type=bounded(int, 1), default=[5, 25, 50])
    parser.add_argument("--threads", type=bounded(int, 1), default=1)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    torch.set_num_threads(options.threads)
    set_tf32(False)
    keep_freed_memory()
    has_kernel = use_kernel(device)
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
        facts |= {"captures": f"{captured_s:.1f} s", "Snake kernel": str(has_kernel)}
    print_facts(facts)
    print(table(figures, options.batches))
    write_json(options.json, {"environment": facts, "figures": [asdict(one) for one in figures]})


def ways_of(decoder: CodecDecoder, device: str, max_rows: int) -> dict[str, CodecDecoder]:
    """Return the ways to decode on ``device``, by name; only one on a GPU where captures fail."""
    ways: dict[str, CodecDecoder] = {"eager": decoder}
    recorder = recorder_for(device)
    if recorder is not None:
        limits = BatchLimits(rows=max_rows)
        recorded: CodecDecoder = decoder
        if isinstance(decoder, StreamDecoder):
            recorded = stream_graphed(decoder, limits, recorder)
        elif isinstance(decoder, LaidOutDecoder):
            recorded = graphed(decoder, limits, recorder)
        if recorded is not decoder:
            ways["graphs"] = recorded
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
                stateful = isinstance(decoder, StatefulDecoder)
                batches_in_turn = streams if stateful else windows
                seconds = seconds_of(decoder, batches_in_turn(decoder, chunk, batch), clock)
                audio = batch * chunk * decoder.spec.frame_s
                figures.append(Figure(way, chunk, batch, audio / seconds, 1000 * seconds))
    return figures


def windows(decoder: CodecDecoder, chunk: int, batch: int) -> list[list[DecodeWindow]]:
    """Make one batch of windows of random codes."""
    spec = decoder.spec
    left, lookahead = spec.left_frames, min(_LOOKAHEAD, spec.right_frames)
    codes = _codes(decoder, chunk, batch, left + chunk + lookahead)
    return [[DecodeWindow(one, left, chunk, lookahead, left) for one in codes]]


def streams(decoder: CodecDecoder, chunk: int, batch: int) -> list[list[DecodeWindow]]:
    """Make the batches of whole streams of random codes in order, so that a decoder with states has
    them.
    """
    spec = decoder.spec
    turns = []
    for codes in _codes(decoder, chunk, batch, max(_STREAM_FRAMES, 4 * chunk) // chunk * chunk):
        chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
        chunker.push(np.ascontiguousarray(codes.T))
        chunker.finish()
        turns.append([chunker.take(chunk, 0) for _ in range(codes.shape[1] // chunk)])
    return [list(together) for together in zip(*turns, strict=True)]


def _codes(decoder: CodecDecoder, seed: int, batch: int, frames: int) -> list[Codes]:
    sizes = np.array(decoder.spec.codebook_sizes)[:, None]
    shape = (batch, len(sizes), frames)
    return list(np.random.default_rng(seed).integers(0, sizes, shape).astype(np.int16))


def seconds_of(
    decoder: CodecDecoder, turns: Sequence[list[DecodeWindow]], clock: Callable[[], float]
) -> float:
    """Return the seconds of one batch, the median of several timings without the first run. The
    batches take turns.
    """
    work = cycle(turns)

    def decode() -> None:
        decoder.decode_windows(next(work))

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

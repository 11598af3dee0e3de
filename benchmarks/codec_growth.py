"""Does the codec's processor time grow with the size of its input, without jumps?

``python -m benchmarks.codec_growth`` times windows of 1 to 32 new frames, and clips of 1 to 32
frames, with every family's decoder and encoder, on one thread. For each it prints the largest ratio
of the medians of two neighbouring sizes. The chunk schedule is made for a cost that grows smoothly:
a size that takes many times as long as its neighbours makes it as cautious as it can be. Which
kernels run depends on the processor; ``ONEDNN_MAX_CPU_ISA=AVX2`` shows those without AVX-512.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from benchmarks.random_weights import random_tensors
from codec.families.fish import config as fish
from codec.families.fish.decoder import FishDecoder
from codec.families.fish.encoder import FishEncoder
from codec.families.higgs.checkpoint import open_higgs
from codec.families.higgs.decoder import HiggsDecoder
from codec.families.higgs.tensors import decoder_shapes
from codec.families.qwen3_tts import config as qwen3_tts
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
from codec.family import ClipEncoder
from codec.memory import keep_freed_memory
from codec.warmup import keep_kernels
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

#: The embedded codec stands for Higgs, causal as it is and looking ahead with random weights.
EMBEDDED = "embedded/checkpoint"
#: Layers of Fish's codec about as wide as those of the embedded codec.
FISH = fish.FishConfig(
    dim=320, layers=2, feed_forward=640, decoder_dim=384, encoder_dim=32, encoder_layers=2
)
#: Likewise, with half of the transformers' layers.
QWEN3_TTS = qwen3_tts.Qwen3TTSCodecConfig(
    qwen3_tts.DecoderSizes(latent_dim=320, num_hidden_layers=4, decoder_dim=384),
    qwen3_tts.EncoderSizes(num_filters=32, num_hidden_layers=4),
)
_LOOKAHEAD = 2
SHOWN = (1, 2, 3, 4, 8, 16, 25, 32)
Work = Callable[[int], Callable[[], object]]


@dataclass(frozen=True)
class Growth:
    """Median milliseconds by size in frames, and the largest ratio of two neighbours."""

    part: str
    ms: dict[int, float]
    largest_ratio: float


@failing("benchmarks.codec_growth", ValueError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a Markdown table, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.codec_growth", description=__doc__)
    parser.add_argument("--rounds", type=bounded(int, 1), default=7)
    parser.add_argument("--frames", type=bounded(int, 2), default=32, help="the largest size")
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_freed_memory()
    keep_kernels()
    sizes = range(1, options.frames + 1)
    growths = [measure(name, work, sizes, options.rounds) for name, work in parts()]
    facts = environment() | {"instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", "all")}
    print_facts(facts)
    shown = [size for size in SHOWN if size in sizes]
    rows = [[g.part, *(g.ms[size] for size in shown), g.largest_ratio] for g in growths]
    heads = ["ms of processor time at", *(f"{size} frames" for size in shown), "largest ratio"]
    print(markdown_table(heads, rows))
    write_json(options.json, {"environment": facts, "growth": [asdict(g) for g in growths]})


def parts() -> Iterator[tuple[str, Work]]:
    """Return every family's decoder and encoder, as work by size in frames."""
    higgs = open_higgs(EMBEDDED)
    yield "Higgs decoder, causal", partial(_window, higgs.load_decoder())
    looking = HiggsDecoder(higgs.config, random_tensors(decoder_shapes(higgs.config)))
    yield "Higgs decoder, looking ahead", partial(_window, looking)
    yield "Higgs encoder", partial(_clip, higgs.load_encoder(), higgs.config.hop_length)
    tensors = random_tensors(fish.decoder_shapes(FISH) | fish.encoder_shapes(FISH))
    yield "Fish decoder", partial(_window, FishDecoder(FISH, tensors))
    yield "Fish encoder", partial(_clip, FishEncoder(FISH, tensors), FISH.hop_length)
    tensors = random_tensors(qwen3_tts.decoder_shapes(QWEN3_TTS))
    yield "Qwen3-TTS decoder", partial(_window, Qwen3TTSDecoder(QWEN3_TTS, tensors))
    tensors = random_tensors(qwen3_tts.encoder_shapes(QWEN3_TTS))
    encoder = Qwen3TTSEncoder(QWEN3_TTS, tensors)
    yield "Qwen3-TTS encoder", partial(_clip, encoder, QWEN3_TTS.hop_length)


def measure(part: str, work: Work, sizes: Sequence[int], rounds: int) -> Growth:
    """Time all sizes in turn within each round, so that a busy machine affects all equally."""
    works = {size: work(size) for size in sizes}
    seconds = {size: list[float]() for size in sizes}
    for number in range(rounds + 1):
        for size, one in works.items():
            began = time.thread_time()
            one()
            if number:  # the first round warms up
                seconds[size].append(time.thread_time() - began)
    ms = {size: 1000 * statistics.median(taken) for size, taken in seconds.items()}
    return Growth(part, ms, max(max(a / b, b / a) for a, b in pairwise(ms.values())))


def _window(decoder: CodecDecoder, new: int) -> Callable[[], object]:
    """A window amid a stream. State before it is cached, as in a stream."""
    left, lookahead = decoder.spec.left_frames, min(_LOOKAHEAD, decoder.spec.right_frames)
    size = (decoder.spec.num_codebooks, left + new + lookahead)
    codes = np.random.default_rng(new).integers(0, min(decoder.spec.codebook_sizes), size)
    window = DecodeWindow(codes.astype(np.int16), left, new, lookahead, left)
    return lambda: decoder.decode_windows([window])


def _clip(encoder: ClipEncoder, hop_length: int, frames: int) -> Callable[[], object]:
    samples = np.random.default_rng(frames).normal(0, 0.1, frames * hop_length)
    return partial(encoder.encode, samples.astype(np.float32))


if __name__ == "__main__":
    main()

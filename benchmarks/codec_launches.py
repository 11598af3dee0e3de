"""What a codec's batch costs a GPU: ``python -m benchmarks.codec_launches``.

Counts launches, memory traffic and arithmetic. Runs the decoders of the published sizes on tensors
without values, as on a GPU (torch's convolutions), so neither a GPU nor minutes of computing are
needed. An operator that moves data counts as one launch, and its inputs and outputs as bytes, as if
each were read or written once: an operator of which a GPU makes several kernels (some convolutions,
attention with a mask) counts too little. ``own shapes``: the windows as they are, as without
graphs. ``bucket``: padded to the rows and frames of a graph, in which launches cost the host
nothing, and with the copies of states.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.random_weights import random_decoder
from codec import layers, snake
from codec.batching import BatchLimits
from codec.buckets import Buckets
from codec.graphs import InteriorDecoder
from codec.stream_decoder import StreamDecoder
from codec.window_transformer import BatchPositions
from loadtest.program import (
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from streaming.ports import CodecDecoder

#: Rows and new frames of the batches.
BATCHES = ((1, 2), (2, 14), (8, 25))
FAMILIES = ("fish_s2", "qwen3_tts", "higgs")
_LOOKAHEAD = 4
#: Operators that allocate, or return another view of what exists.
_FREE = ("empty", "new_empty", "empty_like", "detach", "_unsafe_view", "_reshape_alias")
#: Operators that read only the values that they return.
_LOOK_UPS = ("index", "gather", "index_select", "embedding")


@dataclass(frozen=True)
class Figure:
    """One batch of a family's codec."""

    family: str
    rows: int
    frames: int
    way: str
    launches: int
    gigabytes: float
    gflop: float


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts launches and bytes of the operators inside. Used as a Snake kernel, it counts those
    as well.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace != "prim" and not func.is_view and name not in _FREE:
            outputs = tree_leaves(made)
            self.count(outputs if name in _LOOK_UPS else tree_leaves((args, kwargs)), outputs)
        return made

    def count(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Count one launch that reads and writes these tensors, each once."""
        self.launches += 1
        for tensors in (inputs, outputs):
            each = {id(one): one for one in tensors if isinstance(one, Tensor)}
            self.bytes += sum(map(_bytes, each.values()))

    def fits(self, x: Tensor) -> bool:
        """See ``codec.snake.SnakeKernel``."""
        return True

    def snake(
        self,
        x: Tensor,
        alpha: Tensor | None,
        ratio: Tensor | None,
        pad_left: int = 0,
        pad_right: int = 0,
    ) -> Tensor:
        """See ``codec.snake.SnakeKernel``."""
        batch, length, channels = x.shape
        out = x if alpha is None else x.new_empty(batch, pad_left + length + pad_right, channels)
        self.count([x, alpha, ratio], [out])
        return out


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's values, of which an expanded dimension has one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(n for n, stride in sizes if stride) * tensor.element_size()


def measure(decoder: CodecDecoder, family: str, rows: int, frames: int) -> Iterator[Figure]:
    """Measure one batch in the middle of its streams in each way."""
    limits = BatchLimits()
    lookahead = min(_LOOKAHEAD, decoder.spec.right_frames)
    buckets = Buckets.of(limits, decoder.spec, lookahead)
    bucket = buckets.fit(rows, buckets.length(frames) or frames, interior=True)
    for way, kernel, size in (
        ("own shapes", False, (rows, frames)),
        ("bucket", False, (bucket.rows, bucket.new_frames)),
        ("own shapes, Snake kernel", True, (rows, frames)),
        ("bucket, Snake kernel", True, (bucket.rows, bucket.new_frames)),
    ):
        in_bucket = way.startswith("bucket")
        meter = Meter()
        arithmetic = FlopCounterMode(display=False)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
            work = work_of(decoder, *size, lookahead, in_bucket=in_bucket)
            with mock.patch.object(snake, "_kernel", meter if kernel else None), arithmetic, meter:
                work()
        gflop = arithmetic.get_total_flops() / 1e9
        yield Figure(family, rows, frames, way, meter.launches, meter.bytes / 1e9, gflop)


def work_of(
    decoder: CodecDecoder, rows: int, frames: int, lookahead: int, *, in_bucket: bool
) -> Callable[[], object]:
    """Return the work of a batch on the device."""
    spec = decoder.spec
    books, left = spec.num_codebooks, spec.left_frames
    if not isinstance(decoder, StreamDecoder):
        assert isinstance(decoder, InteriorDecoder)
        codes = torch.zeros(rows, books, left + frames + lookahead, dtype=torch.int16)
        return lambda: decoder.decode_interior(codes, frames, lookahead)
    numbers = torch.zeros(3, rows, dtype=torch.int64)
    at = BatchPositions(numbers[0], numbers[1], numbers[2] if in_bucket else None)
    states = [decoder.begin().tensors for _ in range(rows)]
    codes = torch.zeros(rows, books, frames, dtype=torch.int64)
    buffers = tuple(torch.stack(one) for one in zip(*states, strict=True))

    def work() -> None:
        stacked = tuple(torch.stack(one) for one in zip(*states, strict=True))
        _, after = decoder.compute(codes, stacked, at, left)
        if in_bucket:
            for buffer, new in zip(buffers, after, strict=True):
                buffer.copy_(new)
        for row in range(rows):
            for one in after:
                one[row].clone()

    return work


@failing("benchmarks.codec_launches")
def main(argv: Sequence[str] | None = None) -> None:
    """Count, print a Markdown table, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.codec_launches", description=__doc__)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    figures: list[Figure] = []
    with mock.patch.object(layers, "_has_onednn", return_value=False):
        for family in options.family:
            decoder = random_decoder(family=family)
            for rows, frames in BATCHES:
                figures += measure(decoder, family, rows, frames)
    print_facts(environment())
    head = ["codec", "rows", "frames", "way", "launches", "GB", "GFLOP"]
    print(markdown_table(head, [list(asdict(figure).values()) for figure in figures]))
    write_json(options.json, {"figures": [asdict(figure) for figure in figures]})


if __name__ == "__main__":
    main()

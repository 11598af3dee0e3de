"""Kernels of a frame's codes after its first: ``python -m benchmarks.frame_launches``.

Runs the fast AR of Fish Speech S2 Pro and the code predictor of Qwen3-TTS as on a GPU, with their
numbers of layers and codebooks and small matrices, once in PyTorch and once with Triton kernels.
Counts the operators that move data, and the launches of Triton kernels, which are not run, so
neither a GPU nor Triton is needed. A norm is one kernel, as on a GPU, and so is a matrix product.
Attention is counted as the sum of its steps, which is PyTorch's form of it where no fused one can
be used, as in float32, and as one kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks.sampler_step import VIEWS
from benchmarks.step_launches import counted_launches
from loadtest.program import bounded, environment, failing, markdown_table, print_facts
from talker.families.fast_ar import FastAR
from talker.families.frame_graphs import drawing
from talker.sampler import Draw
from talker.shape import BackboneShape

_TOP_K = 50
MAX_ROWS = 64
#: Operators that are one kernel on a GPU and several on a CPU.
_FUSED = frozenset({"aten::rms_norm", "aten::linear", "aten::bmm"})
_ATTENTION = "aten::scaled_dot_product_attention"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A family's fast AR; ``projects``: it narrows its inputs."""

    part: BackboneShape
    books: int
    qk_norms: bool
    projects: bool

    def small(self) -> Sizes:
        """Return the same layers and codebooks with small matrices."""
        part = replace(
            self.part,
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
        )
        return replace(self, part=part)


#: The published sizes.
FAMILIES = {
    "Fish Speech S2 Pro": Sizes(
        BackboneShape(4096, 2560, 9728, 4, 32, 8, 128, 11, 1e6, 1e-6), 10, False, False
    ),
    "Qwen3-TTS 1.7B": Sizes(
        BackboneShape(2048, 1024, 3072, 5, 16, 8, 128, 65_536, 1e6, 1e-6), 16, True, True
    ),
}


class RandomBooks(FastAR):
    """A fast AR in bfloat16 with random weights, one table and one head."""

    def __init__(self, sizes: Sizes, device: str = "cpu") -> None:
        part = sizes.part
        dtype = torch.bfloat16
        super().__init__(
            part, sizes.books, MAX_ROWS, dtype, qk_norms=sizes.qk_norms, rounds_angles=False
        )
        width = part.hidden_size
        self._table = torch.nn.Embedding(part.vocab_size, width)
        self._head = torch.nn.Linear(width, part.vocab_size, bias=False)
        self._project = torch.nn.Linear(width, width) if sizes.projects else torch.nn.Identity()
        # the angles stay in float32
        cos, sin = self.cos, self.sin
        self.to(dtype)
        self.cos, self.sin = cos, sin
        self.to(device)

    def embed(self, codes: torch.Tensor, book: int) -> torch.Tensor:
        """See FastAR."""
        embedded: torch.Tensor = self._table(codes)
        return embedded

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """See FastAR."""
        narrow: torch.Tensor = self._project(x)
        return narrow

    def logits(self, x: torch.Tensor, book: int) -> torch.Tensor:
        """See FastAR."""
        logits: torch.Tensor = self._head(x)
        return logits


@dataclass(frozen=True, slots=True)
class Counts:
    """Kernels of a layer at one new position, of a frame without drawing its codes, and with it."""

    layer: float
    frame: int
    drawn: int


@torch.inference_mode()
def count(family: str, rows: int, *, kernels: bool, fused_attention: bool) -> Counts:
    """Count the kernels of a family's frames of ``rows`` rows."""
    sizes = FAMILIES[family].small()
    fast = RandomBooks(sizes)
    if kernels:
        from talker.fast_ar_kernels import run_layers

        fast.kernels = run_layers
    ones = torch.ones(rows)
    draw = Draw(ones, ones.long() * _TOP_K, ones, ones.long(), _TOP_K, same_width=False)
    hidden = torch.randn(rows, sizes.part.hidden_size).bfloat16()
    first = ones.long()
    run = fast.kernels or FastAR.run_layers

    def seen(work: Callable[[], object]) -> int:
        return _count(work, fused_attention=fused_attention)

    passed = seen(lambda: run(fast, hidden[:, None], 2))
    return Counts(
        # the last norm is no layer's
        layer=(passed - 1) / sizes.part.num_layers,
        frame=seen(lambda: fast(hidden, first, lambda logits, book: first)),
        drawn=seen(lambda: fast(hidden, first, drawing(ones.long(), draw, sizes.books))),
    )


def _count(work: Callable[[], object], *, fused_attention: bool) -> int:
    from talker import fast_ar_kernels

    whole = _FUSED | {_ATTENTION} if fused_attention else _FUSED
    with (
        counted_launches(fast_ar_kernels) as launched,
        sdpa_kernel(SDPBackend.MATH),
        profile(activities=[ProfilerActivity.CPU]) as found,
    ):
        work()
    roots = [event for event in found.events() or () if event.cpu_parent is None]
    return len(launched) + sum(_kernels(event, whole) for event in roots)


def _kernels(event: Any, whole: frozenset[str]) -> int:
    """The kernels of a profile's operator: those of the operators that it calls, or itself."""
    if event.name in whole:
        return 1
    inner = sum(_kernels(child, whole) for child in event.cpu_children)
    # a conversion to the same type calls nothing, and does nothing
    moves = event.name.startswith("aten::") and event.name not in VIEWS | {"aten::to"}
    return inner or int(moves)


@failing("benchmarks.frame_launches")
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="benchmarks.frame_launches", description=__doc__)
    parser.add_argument("--rows", type=bounded(int, 1, MAX_ROWS), default=8)
    options = parser.parse_args(argv)
    table = []
    for family in FAMILIES:
        for form, kernels, fused in (
            ("PyTorch", False, False),
            ("PyTorch, fused attention", False, True),
            ("Triton kernels", True, True),
        ):
            found = count(family, options.rows, kernels=kernels, fused_attention=fused)
            table.append([family, form, f"{found.layer:g}", found.frame, found.drawn])
    print_facts(environment())
    print(markdown_table(["model", "form", "layer", "frame", "with drawing"], table))


if __name__ == "__main__":
    main()

"""Cost of drawing a row: ``python -m benchmarks.sampler_cost``.

Measures the talker's sampler alone, as a step calls it: logits of a number of streams in, ids and
codes out. Prints kernels per step (launches on a GPU, without views) and microseconds of processor
time. ``--compile`` adds the same with torch.compile, after its compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import (
    bounded,
    environment,
    failing,
    markdown_table,
    median_seconds,
    print_facts,
)
from talker.frames import FRAME_BASE, FrameTable, slots_for
from talker.sampler import DelayedRowSampler, Draw

_BOOKS, _ROWS = 8, 1026
_BOC, _EOC, _STOP = 1024, 1025, 0
_POSITIONS = 4096
#: Operators that move no data, only strides and shapes.
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "slice", "select", "unsqueeze", "squeeze", "expand", "as_strided", "alias",
        "detach", "transpose", "permute", "reshape", "empty", "empty_strided", "empty_like",
        "resize_", "_unsafe_view", "unbind", "lift_fresh", "result_type", "narrow", "new_empty",
    )
)  # fmt: skip


@failing("benchmarks.sampler_cost")
def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a Markdown report."""
    parser = argparse.ArgumentParser(prog="benchmarks.sampler_cost", description=__doc__)
    parser.add_argument("--streams", nargs="+", type=bounded(int, 1), default=[1, 8, 16])
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = [measure("eager", lambda f: f, options.streams)]
    if options.compile:
        rows.append(measure("compiled", torch.compile, options.streams))
    print_facts(environment())
    head = ["sampler", "kernels", *(f"µs at {n}" for n in options.streams), "first call s"]
    print(markdown_table(head, rows))


def measure(
    name: str, make: Callable[..., Callable[..., object]], streams: Sequence[int]
) -> list[object]:
    """Measure one line of the table."""
    sampler = new_sampler()
    step, began = make(sampler.step), time.perf_counter()
    with torch.inference_mode():
        step(*inputs(streams[0]))
        first_s = time.perf_counter() - began
        kernels = count(step, inputs(streams[-1]))
        works = [partial(step, *inputs(n)) for n in streams]
        taken = [median_seconds(work, 15, 20, clock=time.thread_time) for work in works]
        return [name, kernels, *(1e6 * seconds for seconds in taken), first_s]


def new_sampler() -> DelayedRowSampler:
    """Return the family's sampler: 8 codebooks of 1026 rows."""
    table = FrameTable(slots_for(16, _POSITIONS), _BOOKS)
    return DelayedRowSampler(table, _ROWS, _BOC, _EOC, _STOP)


def inputs(streams: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Draw]:
    """Return the arguments of a step in the middle of its streams, with the family's sampling."""
    ones = torch.ones(streams)
    draw = Draw(
        temperature=ones,
        top_k=ones.long() * 50,
        top_p=ones * 0.95,
        seed=torch.arange(streams),
        widest=50,
        same_width=True,
    )
    logits = torch.randn(streams, _BOOKS * _ROWS, generator=torch.Generator().manual_seed(seed)) * 3
    last = torch.arange(streams) + FRAME_BASE
    return logits, last, torch.arange(streams) + 100, torch.zeros(streams).bool(), draw


def moved(
    given: tuple[Tensor, Tensor, Tensor, Tensor, Draw], device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Draw]:
    """Move a step's arguments to another device."""
    *tensors, draw = given
    logits, last, positions, lost = (tensor.to(device) for tensor in tensors)
    return logits, last, positions, lost, draw.moved(lambda column: column.to(device))


def count(step: Callable[..., object], given: tuple[object, ...]) -> int:
    """Count the kernels of one step: the leaves of the profile, without views."""
    step(*given)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step(*given)
    return leaves(seen.events() or ())


def leaves(events: Iterable[Any]) -> int:
    """Count the operators of a profile that move data and call no others."""
    return sum(
        1
        for event in events
        if event.name.startswith(("aten::", "graph_"))
        and event.name not in _VIEWS
        and not any(child.name not in _VIEWS for child in event.cpu_children)
    )


if __name__ == "__main__":
    main()

"""A step of the talker's sampler alone: its arguments, and the kernels that a profile shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from talker.frames import FRAME_BASE, FrameTable, slots_for
from talker.sampler import DelayedRowSampler, Draw, Repetition

_BOOKS = 8
_ROWS = 1026
_BOC = 1024
_EOC = 1025
_STOP = 0
_POSITIONS = 4096
#: Rows that a table looks back at for repetition-aware sampling, its window and the greatest count
#: of a code in it, as Higgs Audio v2 has them.
LOOK_BACK = 16
_REPETITION = (7, 2)
#: Operators that move no data, only strides and shapes.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "slice", "select", "unsqueeze", "squeeze", "expand", "as_strided", "alias",
        "detach", "transpose", "permute", "reshape", "empty", "empty_strided", "empty_like",
        "resize_", "_unsafe_view", "unbind", "lift_fresh", "result_type", "narrow", "new_empty",
        "t", "split", "split_with_sizes", "chunk",
    )
)  # fmt: skip


def new_sampler(look_back: int = 0) -> DelayedRowSampler:
    """Return the sampler of Higgs Audio v3, or with a ``look_back`` of v2: 8 codebooks of 1026
    rows.
    """
    table = FrameTable(slots_for(16, _POSITIONS), _BOOKS, look_back=look_back)
    return DelayedRowSampler(table, _ROWS, _BOC, _EOC, _STOP, _BOOKS if look_back else 1)


def inputs(
    streams: int, seed: int = 0, look_back: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Draw]:
    """Return the arguments of a step in the middle of its streams, with the family's sampling."""
    ones = torch.ones(streams)
    window, most = _REPETITION
    repetition = Repetition(ones.long() * window, ones.long() * most) if look_back else None
    draw = Draw(
        temperature=ones,
        top_k=ones.long() * 50,
        top_p=ones * 0.95,
        seed=torch.arange(streams),
        widest=50,
        same_width=True,
        repetition=repetition,
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


def leaves(events: Iterable[Any]) -> int:
    """Count the operators of a profile that move data and call no others."""
    return sum(
        1
        for event in events
        if event.name.startswith(("aten::", "graph_"))
        and event.name not in VIEWS
        and not any(child.name not in VIEWS for child in event.cpu_children)
    )

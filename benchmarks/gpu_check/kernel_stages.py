"""The step's Triton kernels on a GPU: comparison with PyTorch, and their time."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks import sampler_cost
from benchmarks.report import median_seconds
from talker.step_kernels import StepInputs, StepKernels

_STREAMS, _STEPS = 16, 50


def compare(device: str) -> tuple[int, int]:
    """Return how many of the kernels' codes equal PyTorch's on the same device, and their total
    number.
    """
    ours, theirs = (sampler_cost.new_sampler().to(device) for _ in range(2))
    kernels = StepKernels(ours, _STREAMS)
    equal = total = 0
    last: Any = None
    for number in range(_STEPS):
        logits, first, positions, lost, draw = given(_STREAMS, device, seed=number)
        last = first if last is None else last
        inputs = _inputs(last, positions)
        out = kernels.step(logits.clone(), inputs, draw)
        ids, codes = theirs.step(logits, last, positions, lost, draw)
        equal += int((out.codes == codes).sum())
        total += codes.numel()
        last = torch.where(ids == theirs.stop, 1, ids)
    return equal, total


def seconds(streams: int, device: str) -> float:
    """Return the median seconds of the kernels' step, launches included."""
    rows = sampler_cost.new_sampler().to(device)
    kernels = StepKernels(rows, streams)
    logits, last, positions, _, draw = given(streams, device)
    work = partial(kernels.step, logits, _inputs(last, positions), draw)
    work()
    return median_seconds(work, 20, 20, wait=torch.cuda.synchronize)


def given(streams: int, device: str, seed: int = 0) -> Any:
    """Make a step's arguments on the device."""
    return sampler_cost.moved(sampler_cost.inputs(streams, seed), device)


def _inputs(last: torch.Tensor, positions: torch.Tensor) -> StepInputs:
    device, streams = last.device, len(last)
    at = torch.arange(streams + 1, device=device, dtype=torch.int32)
    ones = torch.ones(streams, dtype=torch.int32, device=device)
    return StepInputs(
        slots=at[:-1],
        last_tokens=at[:-1].long(),
        ends=at,
        input_ids=last.int(),
        positions=positions,
        stale=torch.zeros(streams, dtype=torch.bool, device=device),
        lengths=ones,
        prompts=ones,
        lost=torch.zeros(streams, dtype=torch.bool, device=device),
    )

"""The step's Triton kernels on a GPU: comparison with PyTorch, and their time."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks import sampler_step
from loadtest.program import median_seconds
from talker.step_kernels import DRAW_WARPS, StepInputs, StepKernels

_STREAMS = 16
_STEPS = 50


def compare(device: str, look_back: int = 0) -> tuple[int, int]:
    """Return how many of the kernels' codes equal PyTorch's on the same device, and their total
    number. ``look_back``: see ``sampler_step.new_sampler``.
    """
    ours, theirs = (sampler_step.new_sampler(look_back).to(device) for _ in range(2))
    kernels = StepKernels(ours, _STREAMS)
    equal = 0
    total = 0
    last: Any = None
    for number in range(_STEPS):
        logits, first, positions, lost, draw = given(_STREAMS, device, number, look_back)
        if look_back:  # three likely codes, so that many are drawn again
            logits.view(_STREAMS, ours.num_codebooks, -1)[:, :, :3] += 9
        last = first if last is None else last
        inputs = _inputs(last, positions)
        out = kernels.step(logits.clone(), inputs, draw)
        ids, codes = theirs.step(logits, last, positions, lost, draw)
        equal += int((out.codes == codes).sum())
        total += codes.numel()
        last = torch.where(ids == theirs.stop, 1, ids)
    return equal, total


def seconds(streams: int, device: str, look_back: int = 0, warps: int = DRAW_WARPS) -> float:
    """Return the median seconds of the kernels' step, launches included. ``warps``: of a program
    that draws.
    """
    rows = sampler_step.new_sampler(look_back).to(device)
    kernels = StepKernels(rows, streams, warps=warps)
    logits, last, positions, _, draw = given(streams, device, look_back=look_back)
    work = partial(kernels.step, logits, _inputs(last, positions), draw)
    work()
    return median_seconds(work, 20, 20, wait=torch.cuda.synchronize)


def given(streams: int, device: str, seed: int = 0, look_back: int = 0) -> Any:
    """Make a step's arguments on the device."""
    return sampler_step.moved(sampler_step.inputs(streams, seed, look_back), device)


def _inputs(last: torch.Tensor, positions: torch.Tensor) -> StepInputs:
    device = last.device
    streams = len(last)
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

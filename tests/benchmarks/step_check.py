"""Inspects a talker's step in a separate process, since importing vLLM has side effects."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import frame_launches
from benchmarks.step_launches import (
    MODELS,
    StandInModel,
    batch_of,
    count,
    counted_launches,
    sampler_of,
)


def fake_step(*, kernels: bool) -> dict[str, object]:
    """Run a step on fake tensors. They have no values, so reading one on the host raises."""
    model, batch = StandInModel(), batch_of(4)
    from talker import step_kernels

    sampler = sampler_of(model, kernels=kernels)
    width = model.num_codebooks * model.codebook_rows
    with (
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        counted_launches(step_kernels) as launched,
    ):
        for name, value in vars(batch).items():
            if isinstance(value, torch.Tensor):
                setattr(batch, name, mode.from_tensor(value))
        if not kernels:
            model.embed(batch.input_ids)
        out = sampler(torch.empty(4, width), batch)
    return {
        "ids": list(out.sampled_token_ids.shape),
        "codes": list(out.logprobs_tensors.logprob_token_ids.shape),
        "launched": launched,
    }


def frames(*, kernels: bool) -> dict[str, object]:
    """Count the kernels of each family's frames."""
    return {
        family: asdict(frame_launches.count(family, 8, kernels=kernels, fused_attention=True))
        for family in frame_launches.FAMILIES
    }


def main() -> None:
    """Print the results for both forms of the step as JSON."""
    found = {
        name: {
            "counts": [count(8, kernels=kernels, family=family) for family in MODELS],
            "fake": fake_step(kernels=kernels),
            "frames": frames(kernels=kernels),
        }
        for name, kernels in (("kernels", True), ("torch", False))
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

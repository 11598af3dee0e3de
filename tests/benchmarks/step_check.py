"""Inspects a talker's step in a separate process, since importing vLLM has side effects."""

from __future__ import annotations

import json

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.step_launches import StandInModel, batch_of, count, counted_launches, sampler_of


def fake_step(*, kernels: bool) -> dict[str, object]:
    """Run a step on fake tensors. They have no values, so reading one on the host raises."""
    model, batch = StandInModel(), batch_of(4)
    sampler = sampler_of(model, kernels=kernels)
    width = model.num_codebooks * model.codebook_rows
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, counted_launches() as launched:
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


def main() -> None:
    """Print the results for both forms of the step as JSON."""
    found = {
        name: {"count": count(8, kernels=kernels), "fake": fake_step(kernels=kernels)}
        for name, kernels in (("kernels", True), ("torch", False))
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

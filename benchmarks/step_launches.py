"""Kernels that a talker's step launches outside its graph: ``python -m benchmarks.step_launches``.

Runs the V2 adapter and the frame embeddings as on a GPU, with a stand-in for vLLM's batch, once in
PyTorch and once with the step's Triton kernels. Counts the operators that move data, and the
launches of Triton kernels, which are not run, so neither a GPU nor Triton is needed. Launches by
vLLM itself between two graphs (inputs, slots, the head, copies to the host) are not included;
``make gpu-check`` counts all of them on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import bounded, environment, failing, markdown_table, print_facts
from benchmarks.sampler_cost import leaves, new_sampler
from talker.frames import FRAME_BASE, RowEmbedding

# What needs vLLM is imported when it is used: importing it takes seconds, and --help needs none.
if TYPE_CHECKING:
    from talker import state_v2

_HIDDEN, _TEXT_ROWS, _SLOTS = 64, 100, 16


def _talker() -> Any:
    from talker.families.higgs_v3.model import HiggsMultimodalQwen3ForConditionalGeneration

    return HiggsMultimodalQwen3ForConditionalGeneration


class StandInModel:
    """The part of the talker's model that the adapter and the embeddings use."""

    def __init__(self) -> None:
        self.rows = new_sampler()
        self.table = self.rows.table
        self.num_codebooks, self.codebook_rows = self.rows.num_codebooks, self.rows.codebook_rows
        self.code_embedding = RowEmbedding(self.num_codebooks, self.codebook_rows, _HIDDEN)
        words = nn.Embedding(_TEXT_ROWS, _HIDDEN)
        self.model = SimpleNamespace(embed_tokens=words, embed_input_ids=words)
        self.stale = torch.zeros(_SLOTS, dtype=torch.bool)
        self.tap = None
        self.embeds = torch.zeros(_SLOTS, _HIDDEN)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """See the family's model."""
        embedded: Tensor = _talker().embed_codes(self, codes)
        return embedded

    def resolve_rows(self, ids: Tensor, frames: Any) -> tuple[Tensor, Tensor]:
        """Resolve ids: only frame ids stand for rows."""
        return frames.is_frame, frames.codes

    def embed(self, ids: Tensor) -> None:
        """Embed a step in PyTorch, into the graph's buffer."""
        self.embeds[: len(ids)] = _talker().embed_input_ids(self, ids)


def batch_of(streams: int) -> SimpleNamespace:
    """Make vLLM's input batch of a step in which every request adds one row."""
    at = torch.arange(streams + 1, dtype=torch.int32)
    return SimpleNamespace(
        idx_mapping=at[:-1],
        idx_mapping_np=np.arange(streams, dtype=np.int32),
        logits_indices=at[:-1].long(),
        query_start_loc=at,
        input_ids=at[:-1] + FRAME_BASE,
        positions=torch.arange(streams) + 100,
        seq_lens=at[:-1] + 101,
        num_tokens=streams,
    )


def sampler_of(model: StandInModel, *, kernels: bool) -> state_v2.TalkerSampler:
    """Return the adapter's sampler, with requests in all slots."""
    from vllm import SamplingParams

    from talker import state_v2, step_kernels

    prompts = SimpleNamespace(gpu=torch.ones(_SLOTS, dtype=torch.int32))
    made = step_kernels.StepKernels(model.rows, _SLOTS) if kernels else None
    names = {slot: f"request {slot}" for slot in range(_SLOTS)}
    states = SimpleNamespace(prefill_len=prompts, index_to_req_id=names)
    sampler = state_v2.TalkerSampler(model, states, _SLOTS, torch.device("cpu"), made)
    for slot in range(_SLOTS):
        sampler.add_request(slot, SamplingParams(temperature=1.0, top_k=50, top_p=0.95, seed=7))
    return sampler


class _Launch:
    """Replaces a Triton kernel: counts its launches, and runs nothing."""

    def __init__(self, counter: list[str], name: str) -> None:
        self._counter, self._name = counter, name

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **options: self._counter.append(self._name)


@contextlib.contextmanager
def counted_launches() -> Iterator[list[str]]:
    """Collect the names of the Triton kernels launched inside the block, without running them."""
    from talker import step_kernels

    launched: list[str] = []
    names = ("_draw_kernel", "_keep_kernel", "_embed_kernel")
    before = {name: getattr(step_kernels, name) for name in names}
    for name in names:
        setattr(step_kernels, name, _Launch(launched, name))
    try:
        yield launched
    finally:
        for name, kernel in before.items():
            setattr(step_kernels, name, kernel)


def count(streams: int, *, kernels: bool) -> dict[str, int]:
    """Count the launches of one step: the embeddings, the sampler, and both."""
    from talker import step_kernels

    model, batch = StandInModel(), batch_of(streams)
    sampler = sampler_of(model, kernels=kernels)
    logits = torch.randn(streams, model.num_codebooks * model.codebook_rows)

    def embed() -> None:
        if kernels:
            weights = model.code_embedding.weight, model.model.embed_tokens.weight
            step_kernels.embed(batch.input_ids, model.table, *weights, model.embeds, model.stale)
        else:
            model.embed(batch.input_ids)

    found = {"embeddings": _count(embed), "sampler": _count(lambda: sampler(logits, batch))}
    return found | {"both": sum(found.values())}


@torch.inference_mode()
def _count(work: Callable[[], object]) -> int:
    with counted_launches() as launched:
        work()  # runs what is done once per batch
        launched.clear()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            work()
        operators = leaves(seen.events() or ())
    return operators + len(launched)


@failing("benchmarks.step_launches")
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="benchmarks.step_launches", description=__doc__)
    parser.add_argument("--streams", type=bounded(int, 1, _SLOTS), default=8)
    options = parser.parse_args(argv)
    rows = [
        [name, *count(options.streams, kernels=kernels).values()]
        for name, kernels in (("PyTorch's form", False), ("Triton kernels", True))
    ]
    print_facts(environment())
    print(markdown_table(["way", "embeddings", "sampler", "both"], rows))


if __name__ == "__main__":
    main()

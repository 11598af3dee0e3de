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
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.sampler_step import LOOK_BACK, leaves, new_sampler
from loadtest.program import bounded, environment, failing, markdown_table, print_facts
from talker.frames import FRAME_BASE, RowEmbedding
from talker.sampler import RAS_KEY

# What needs vLLM is imported when it is used: importing it takes seconds, and --help needs none.
if TYPE_CHECKING:
    from talker import state_v2

_HIDDEN = 64
_TEXT_ROWS = 100
_SLOTS = 16


def _talker() -> Any:
    from talker.families.higgs_v3.model import HiggsMultimodalQwen3ForConditionalGeneration

    return HiggsMultimodalQwen3ForConditionalGeneration


class StandInModel:
    """The part of Higgs Audio v3's model that the adapter and the embeddings use."""

    def __init__(self, look_back: int = 0) -> None:
        self.rows = new_sampler(look_back)
        #: The frame table, which holds the last rows.
        self.table = self.rows.table
        self.num_codebooks = self.rows.num_codebooks
        self.codebook_rows = self.rows.codebook_rows
        self.code_embedding = RowEmbedding(self.num_codebooks, self.codebook_rows, _HIDDEN)
        words = nn.Embedding(_TEXT_ROWS, _HIDDEN)
        self.model = SimpleNamespace(embed_tokens=words, embed_input_ids=words)
        #: Positions of a step whose rows the table has lost.
        self.stale = torch.zeros(_SLOTS, dtype=torch.bool)
        #: Nothing records attention.
        self.tap = None
        #: Input vectors of a step, by position.
        self.embeds = torch.zeros(_SLOTS, _HIDDEN)

    def embed_text(self, ids: Tensor) -> Tensor:
        """See the family's model."""
        embedded: Tensor = _talker().embed_text(self, ids)
        return embedded

    def embed_codes(self, codes: Tensor) -> Tensor:
        """See the family's model."""
        embedded: Tensor = _talker().embed_codes(self, codes)
        return embedded

    def embed_frames(self, codes: Tensor, frames: Any) -> Tensor:
        """See the family's model."""
        embedded: Tensor = _talker().embed_frames(self, codes, frames)
        return embedded

    def resolve_rows(self, ids: Tensor, frames: Any) -> tuple[Tensor, Tensor]:
        """Resolve ids: only frame ids stand for rows."""
        return frames.is_frame, frames.codes

    def note_ids(self, ids: Tensor) -> None:
        """See the family's model."""

    def embed(self, ids: Tensor) -> None:
        """Embed a step in PyTorch, into the graph's buffer."""
        self.embeds[: len(ids)] = _talker().embed_input_ids(self, ids)


class StandInV2(StandInModel):
    """The same of Higgs Audio v2: repetition-aware sampling, and a route for each position."""

    def __init__(self) -> None:
        from talker.families.higgs_v2 import dual_ffn, model

        super().__init__(LOOK_BACK)
        self._family: Any = model.HiggsAudioV2ForConditionalGeneration
        self._audio_out = 1
        self._boc = self.rows.boc
        #: Of a GPU, where no position's index is needed.
        self.route = dual_ffn.Route(_SLOTS, is_split=False)

    def resolve_rows(self, ids: Tensor, frames: Any) -> tuple[Tensor, Tensor]:
        """See the family's model."""
        resolved: tuple[Tensor, Tensor] = self._family.resolve_rows(self, ids, frames)
        return resolved

    def note_ids(self, ids: Tensor) -> None:
        """See the family's model."""
        self._family.note_ids(self, ids)


MODELS = {"Higgs Audio v3": StandInModel, "Higgs Audio v2": StandInV2}


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
    step = step_kernels.StepKernels(model.rows, _SLOTS) if kernels else None
    names = {slot: f"request {slot}" for slot in range(_SLOTS)}
    states = SimpleNamespace(prefill_len=prompts, index_to_req_id=names)
    sampler = state_v2.TalkerSampler(model, states, _SLOTS, torch.device("cpu"), step)
    extra = {RAS_KEY: (7, 2)} if model.table.look_back_rows else None
    asked = SamplingParams(temperature=1.0, top_k=50, top_p=0.95, seed=7, extra_args=extra)
    for slot in range(_SLOTS):
        sampler.add_request(slot, asked)
    return sampler


class _Launch:
    """Replaces a Triton kernel: counts its launches, and runs nothing."""

    def __init__(self, counter: list[str], name: str) -> None:
        self._counter = counter
        self._name = name

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **options: self._counter.append(self._name)


@contextlib.contextmanager
def counted_launches(module: ModuleType) -> Iterator[list[str]]:
    """Collect the names of the module's Triton kernels that are launched inside the block, without
    running them.
    """
    launched: list[str] = []
    before = {name: kernel for name, kernel in vars(module).items() if name.endswith("_kernel")}
    for name in before:
        setattr(module, name, _Launch(launched, name))
    try:
        yield launched
    finally:
        for name, kernel in before.items():
            setattr(module, name, kernel)


def count(streams: int, *, kernels: bool, family: str = "Higgs Audio v3") -> dict[str, int]:
    """Count the launches of one step: the embeddings, the sampler, and both."""
    from talker import step_kernels

    model = MODELS[family]()
    batch = batch_of(streams)
    sampler = sampler_of(model, kernels=kernels)
    logits = torch.randn(streams, model.num_codebooks * model.codebook_rows)

    def embed() -> None:
        if kernels:
            weights = model.code_embedding.weight, model.model.embed_tokens.weight
            model.note_ids(batch.input_ids)
            step_kernels.embed(batch.input_ids, model.table, *weights, model.embeds, model.stale)
        else:
            model.embed(batch.input_ids)

    found = {"embeddings": _count(embed), "sampler": _count(lambda: sampler(logits, batch))}
    return found | {"both": sum(found.values())}


@torch.inference_mode()
def _count(work: Callable[[], object]) -> int:
    from talker import step_kernels

    with counted_launches(step_kernels) as launched:
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
        [family, name, *count(options.streams, kernels=kernels, family=family).values()]
        for family in MODELS
        for name, kernels in (("PyTorch's form", False), ("Triton kernels", True))
    ]
    print_facts(environment())
    print(markdown_table(["family", "way", "embeddings", "sampler", "both"], rows))


if __name__ == "__main__":
    main()

"""The sampler of Model Runner V2's adapter, in a scripted runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOOKS, MOST = 2, 64


class Runner:
    """A V2 runner and its model, as far as the sampler reads them."""

    def __init__(self, slots: int) -> None:
        from talker.state_v2 import TalkerSampler

        self.stale = torch.zeros(MOST, dtype=torch.bool)
        model: Any = SimpleNamespace(
            stale=self.stale, tap=None, num_codebooks=BOOKS, codebook_rows=8,
            table=SimpleNamespace(look_back_rows=0), rows=self,
        )  # fmt: skip
        prompts = torch.zeros(slots, dtype=torch.int32)
        self.index_to_req_id: dict[int, str] = {}
        self.prefill_len = SimpleNamespace(gpu=prompts)
        self.sampler = TalkerSampler(model, self, slots, torch.device("cpu"))
        self.lost: list[bool] = []

    def step(
        self, logits: Any, last_ids: Any, positions: Any, lost: Any, draw: Any
    ) -> tuple[Any, Any]:
        """Stands for ``RowSampler.step``."""
        self.lost = lost.tolist()
        return torch.zeros(len(logits), dtype=torch.long), torch.zeros(len(logits), BOOKS)

    def add(self, index: int, name: str) -> None:
        """Admit a request at a slot."""
        from vllm import SamplingParams

        self.index_to_req_id[index] = name
        self.sampler.add_request(index, SamplingParams(seed=1, top_k=5))

    def run(self, stale: tuple[int, ...] = (), **tokens: int) -> list[bool]:
        """Run a step with so many tokens of each request. Returns which are lost."""
        self.stale.zero_()
        self.stale[list(stale)] = True
        slots = {name: index for index, name in self.index_to_req_id.items()}
        mapping = torch.tensor([slots[name] for name in tokens], dtype=torch.int32)
        ends = torch.tensor([0, *tokens.values()]).cumsum(0)
        batch = SimpleNamespace(
            idx_mapping=mapping, idx_mapping_np=mapping.numpy(), logits_indices=ends[1:] - 1,
            query_start_loc=ends, input_ids=torch.zeros(MOST, dtype=torch.long),
            positions=torch.arange(MOST), num_tokens=int(ends[-1]), seq_lens=ends[1:],
        )  # fmt: skip
        self.sampler(torch.zeros(len(tokens), 8 * BOOKS), batch)
        return self.lost


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_request_stays_lost_when_it_is_taken_up_after_preemption(slot: int) -> None:
    runner = Runner(slots=3)
    runner.add(0, "a")
    runner.add(1, "b")
    assert runner.run(stale=(3,), a=1, b=4) == [False, True]
    del runner.index_to_req_id[1]  # b is preempted between two chunks
    assert runner.run(a=1) == [False]
    if slot == 0:
        del runner.index_to_req_id[0]
        runner.add(1, "a")  # both were preempted, and get each other's slots
    runner.add(slot, "b")
    assert runner.run(a=1, b=2) == [False, True]  # its first chunk was cached
    del runner.index_to_req_id[slot]
    runner.add(slot, "c")
    assert runner.run(a=1, c=2) == [False, False]


def test_number_of_kept_marks_is_limited() -> None:
    from talker.state_v2 import MAX_MARKS

    runner = Runner(slots=2)
    for number in range(MAX_MARKS + 10):
        runner.add(number % 2, f"r{number}")
    assert len(runner.sampler._left) == MAX_MARKS


def test_dummy_requests_of_a_warm_up_leave_no_mark() -> None:
    """vLLM 0.33 admits them at slots whose requests have no name."""
    from vllm import SamplingParams

    runner = Runner(slots=2)
    for index in range(2):
        runner.sampler.add_request(index, SamplingParams())
    runner.add(0, "a")
    assert runner.run(stale=(1,), a=2) == [True]
    assert not len(runner.sampler._left)

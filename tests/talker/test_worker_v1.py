"""The sampler of the V1 runner's adapter, in a scripted runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from talker.worker_v1 import TalkerSampler

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOOKS, MOST = 2, 64


class Runner:
    """A V1 runner and its model, as far as the sampler reads them."""

    def __init__(self, *names: str) -> None:
        params = SimpleNamespace(seed=1, temperature=1.0, top_k=5, top_p=0.9, extra_args=None)
        self.requests = {name: SimpleNamespace(sampling_params=params) for name in names}
        self.model = SimpleNamespace(
            stale=torch.zeros(MOST, dtype=torch.bool), tap=None, num_codebooks=BOOKS,
            codebook_rows=8, table=SimpleNamespace(look_back_rows=0), rows=self,
        )  # fmt: skip
        self.lost: list[bool] = []

    def step(
        self, logits: Any, last_ids: Any, positions: Any, lost: Any, draw: Any
    ) -> tuple[Any, Any]:
        """Stands for ``RowSampler.step``."""
        self.lost = lost.tolist()
        return torch.zeros(len(logits)), torch.zeros(len(logits), BOOKS)

    def run(self, sampler: TalkerSampler, stale: tuple[int, ...] = (), **tokens: int) -> list[bool]:
        """Run a step with so many tokens of each request. Returns which are lost."""
        self.model.stale.zero_()
        self.model.stale[list(stale)] = True
        metadata = SimpleNamespace(generators={})
        self.input_batch = SimpleNamespace(req_ids=list(tokens), sampling_metadata=metadata)
        ends = torch.tensor([0, *tokens.values()]).cumsum(0)
        self.query_start_loc = SimpleNamespace(gpu=ends)
        self.input_ids = SimpleNamespace(gpu=torch.zeros(MOST, dtype=torch.long))
        self.positions = torch.arange(MOST)
        sampler(torch.zeros(len(tokens), 8 * BOOKS), metadata)
        return self.lost


def test_request_stays_lost_until_it_ends_even_if_preempted() -> None:
    from talker.worker_v1 import TalkerSampler

    runner = Runner("a", "b")
    sampler = TalkerSampler(runner)
    assert runner.run(sampler, stale=(3,), a=1, b=4) == [False, True]
    assert runner.run(sampler, a=1) == [False]  # b is preempted between two chunks
    assert runner.run(sampler, a=1, b=2) == [False, True]  # its first chunk was cached
    assert runner.run(sampler, b=1) == [True]
    del runner.requests["b"]
    runner.run(sampler, a=1)
    runner.requests["b"] = runner.requests["a"]
    assert runner.run(sampler, a=1, b=1) == [False, False]

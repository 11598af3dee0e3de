"""``RowEmbedding`` as the output head: trailing silent codebooks are left out of the product."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from talker.frames import RowEmbedding


class Multiplied(TorchFunctionMode):
    """Record the number of rows of each matrix that is passed to ``linear``."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.linear:
            self.rows.append(len(args[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("silent", "read"), [((), 40), ((2, 3), 20), ((1,), 40), (range(4), 0)])
def test_logits_skip_trailing_silent_codebooks(silent: tuple[int, ...], read: int) -> None:
    torch.manual_seed(1)
    table = RowEmbedding(4, 10, 16)
    with torch.no_grad():
        for book in silent:
            table.weight[10 * book : 10 * (book + 1)] = 0
    hidden = torch.randn(3, 16)
    plain = functional.linear(hidden, table.weight)
    assert torch.equal(table.logits(hidden), plain)  # before the silent rows are known
    table.find_silent_rows()
    with Multiplied() as seen:
        assert torch.equal(table.logits(hidden), plain)
    assert seen.rows == [read]

"""A fake of CUDA graphs on the CPU: it records a piece of work op by op, and plays it again.

What makes a graph a graph holds here too: a replay runs no Python of the work, reads and writes
the very memory that was there when it was recorded, and allocates nothing. So work that looks
at a number on the host, or makes a tensor of one, is refused, and a replay that forgot to write
its input anew returns the old samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What a stream that is being captured cannot do: bring numbers to the host or from it.
_FORBIDDEN = ("_local_scalar_dense", "lift_fresh", "nonzero", "item", "equal")


class Tape(TorchDispatchMode):
    """Notes every op with the tensors that it read and those that it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        made = func(*args, **(kwargs or {}))
        self.ops.append((func, args, kwargs or {}, made))
        return made

    def replay(self) -> None:
        """Run each op again, into the memory of its first result."""
        for func, args, kwargs, made in self.ops:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeRecorder:
    """Implements ``codec.graphs.Recorder`` on the CPU.

    ``fail_at`` is the number of a capture that fails as CUDA's do. ``captured`` counts them,
    ``log`` tells what was played, ``lengths`` of how many operations each capture is, and ``waits``
    how often somebody waited.
    """

    device = torch.device("cpu")

    def __init__(self, fail_at: int | None = None) -> None:
        self._fail_at = fail_at
        self.captured = self.waits = 0
        self.log: list[int] = []
        self.lengths: list[int] = []

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.captured == self._fail_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.captured += 1
        work()
        with Tape() as tape:
            work()
        self.lengths.append(len(tape.ops))
        return tape.replay

    def play(self, *steps: Callable[[], object]) -> None:
        for step in steps:
            step()
        self.waits += 1
        self.log.append(len(steps))

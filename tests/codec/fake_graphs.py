"""A fake of CUDA graphs on the CPU: it records work operation by operation, and replays it.

Like a graph, a replay runs no Python of the work, and reads and writes the memory that was used
when it was recorded. So work is refused if it reads a value on the host or makes a tensor of one,
and a replay without new input returns the old samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations that cannot be captured, since they move values to the host or from it.
_FORBIDDEN = ("_local_scalar_dense", "lift_fresh", "nonzero", "item", "equal")


class Tape(TorchDispatchMode):
    """Records every operation with its arguments and its results."""

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
        """Run each operation again, into the memory of its recorded result."""
        for func, args, kwargs, made in self.ops:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeRecorder:
    """Implements ``codec.graphs.Recorder`` on the CPU.

    ``fail_at`` is the number of a capture that fails as on a full GPU. ``captured`` counts the
    captures, ``lengths`` has the number of operations of each, ``log`` the number of steps of each
    ``play``, and ``waits`` counts the waits for the device.
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

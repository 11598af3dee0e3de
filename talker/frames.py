"""Frame ids and the table that holds what they stand for.

vLLM carries one integer per step. The talker's integer is a *frame id*: ``FRAME_BASE`` plus
a counter that goes round after two billion rows. A ring-shaped table on the device has, at
``slot(id)``, the row's codes and the delay state after it. Whoever meets a frame id among the
input ids (the next step, a chunk of a prefill, a re-prefill after preemption) finds all it
needs there, so there is no per-request state to save on preemption or to free on abort, and
two different rows never look alike to the prefix cache.

A ring forgets. Every slot therefore carries the epoch in which it was written (how often the
ring had gone round, plus one; 0 means never), and a look-up whose epoch differs is *stale*:
the caller must fail that request instead of speaking another request's codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Above every text id of any vocabulary.
FRAME_BASE = 1 << 20
#: Frame ids stay within int32.
FRAME_SPAN = (1 << 31) - 1 - FRAME_BASE
_EPOCHS = (1 << 15) - 1
#: Columns after the codes: the delay state's two numbers, and the epoch.
_STATE, _EPOCH, _EXTRA = slice(0, 2), 2, 3


@dataclass(frozen=True, slots=True)
class FrameState:
    """What input ids stand for, row by row; all tensors are ``[N]`` but ``codes`` ``[N, K]``.

    Codes of text ids mean nothing.
    """

    is_frame: Tensor
    is_stale: Tensor
    codes: Tensor


class FrameTable(nn.Module):
    """The ring: ``[n_slots, K + 3]`` int16, and one row more. ``n_slots`` must be a power of two.

    The row after the ring is the state of a request that has not begun: zeros.
    """

    cells: Tensor

    def __init__(self, n_slots: int, num_codebooks: int) -> None:
        super().__init__()
        if n_slots < 1 or n_slots & (n_slots - 1):
            raise ValueError(f"n_slots must be a power of two, not {n_slots}")
        self.n_slots, self.num_codebooks = n_slots, num_codebooks
        self._shift = n_slots.bit_length() - 1
        cells = torch.zeros(n_slots + 1, num_codebooks + _EXTRA, dtype=torch.int16)
        self.register_buffer("cells", cells, persistent=False)

    def look_up(self, ids: Tensor) -> FrameState:
        """Resolve input ids ``[N]``, text and frame ids mixed."""
        is_frame = ids >= FRAME_BASE
        counter = torch.where(is_frame, ids.long() - FRAME_BASE, 0)
        cells = self.cells[counter & (self.n_slots - 1)]
        extra = cells[:, self.num_codebooks :]
        return FrameState(
            is_frame=is_frame,
            is_stale=is_frame & (extra[:, _EPOCH] != self._epoch(counter)),
            codes=cells[:, : self.num_codebooks].long(),
        )

    def states(self, ids: Tensor) -> Tensor:
        """The sampler's two numbers after the rows that ``ids`` ``[N]`` stand for: ``[N, 2]``.

        Those of a request that has not begun where an id is text.
        """
        slots = torch.where(
            ids >= FRAME_BASE, (ids - FRAME_BASE) & (self.n_slots - 1), self.n_slots
        )
        return self.cells[:, self.num_codebooks :][slots, _STATE].long()

    def write(self, counter: int, codes: Tensor, states: Tensor) -> None:
        """Store rows ``[N, K]`` and states ``[N, 2]`` from ``counter`` on."""
        count, slot = codes.shape[0], counter & (self.n_slots - 1)
        here = min(count, self.n_slots - slot)
        books = self.num_codebooks
        cells = self.cells[slot : slot + here]
        cells[:, :books] = codes[:here]
        cells[:, books:][:, _STATE] = states[:here]
        cells[:, books + _EPOCH] = self._epoch(counter)
        if here < count:  # the ring goes round
            self.write(counter + here, codes[here:], states[here:])

    def _epoch(self, counter: Any) -> Any:
        return (counter >> self._shift) % _EPOCHS + 1


def lost_requests(stale: Tensor, ends: Tensor) -> Tensor:
    """Which requests met a stale frame in this step.

    ``stale`` ``[N]`` marks tokens; ``ends`` ``[B + 1]`` are the requests' bounds in the flat
    list, starting with 0. Returns ``[B]`` bool.
    """
    sums = functional.pad(stale.int().cumsum(0), (1, 0))
    return sums[ends[1:]] > sums[ends[:-1]]


def slots_for(max_num_seqs: int, max_frames: int) -> int:
    """A ring that requests do not outlive: eight times all that can be live, rounded up.

    Preempted and paused requests wait with their frame ids while others go on; what waits
    until the ring has gone round is lost, and told so.
    """
    return 1 << (8 * max_num_seqs * max_frames - 1).bit_length()

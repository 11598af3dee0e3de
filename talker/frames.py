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

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Above every text id of any vocabulary.
FRAME_BASE = 1 << 20
#: Frame ids stay within int32.
FRAME_SPAN = (1 << 31) - 1 - FRAME_BASE
_EPOCHS = (1 << 15) - 1
#: Columns after the codes: the delay state's two numbers, and the epoch.
_DELAY, _RAMP, _EPOCH, _EXTRA = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class FrameState:
    """What input ids stand for, row by row; all tensors are ``[N]`` but ``codes`` ``[N, K]``.

    ``delay`` and ``ramp`` are those of the sampler (see there). Text ids have the state of a
    request that has not begun, and codes that mean nothing.
    """

    is_frame: Tensor
    is_stale: Tensor
    codes: Tensor
    delay: Tensor
    ramp: Tensor


class FrameTable(nn.Module):
    """The ring: ``[n_slots, K + 3]`` int16. ``n_slots`` must be a power of two."""

    cells: Tensor

    def __init__(self, n_slots: int, num_codebooks: int) -> None:
        super().__init__()
        if n_slots < 1 or n_slots & (n_slots - 1):
            raise ValueError(f"n_slots must be a power of two, not {n_slots}")
        self.n_slots, self.num_codebooks = n_slots, num_codebooks
        self._shift = n_slots.bit_length() - 1
        cells = torch.zeros(n_slots, num_codebooks + _EXTRA, dtype=torch.int16)
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
            delay=torch.where(is_frame, extra[:, _DELAY].long(), 0),
            ramp=torch.where(is_frame, extra[:, _RAMP].long(), -1),
        )

    def write(self, counter: Tensor, codes: Tensor, delay: Tensor, ramp: Tensor) -> None:
        """Store rows: ``counter``, ``delay``, ``ramp`` are ``[N]``, ``codes`` is ``[N, K]``."""
        extra = torch.stack([delay, ramp, self._epoch(counter)], 1)
        cells = torch.cat([codes, extra], 1).to(self.cells.dtype)
        self.cells[counter & (self.n_slots - 1)] = cells

    def _epoch(self, counter: Tensor) -> Tensor:
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

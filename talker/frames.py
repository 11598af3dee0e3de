"""Frame ids, and the table that maps them to codes.

vLLM carries one integer per step. The talker's integer is a *frame id*: ``FRAME_BASE`` plus a
counter that wraps after two billion rows. A ring-shaped table on the device holds, at ``slot(id)``,
the row's codes and the sampler's state after it. Any step that reads a frame id among its input ids
(the next step, a chunk of a prefill, a re-prefill after preemption) finds all it needs there. So
there is no per-request state to save on preemption or to free on abort, and different rows never
look alike to the prefix cache.

The ring overwrites old rows. Every slot therefore holds the epoch in which it was written (the
number of the ring's completed rounds, plus one; 0 means never). A look-up whose epoch differs is
*stale*: the caller must fail that request instead of speaking another request's codes.
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
#: In a LookBack: the stream has no such row.
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class FrameState:
    """The rows of input ids; all tensors are ``[N]`` but ``codes`` ``[N, K]`` and the sampler's
    ``states`` after them ``[N, S]``.

    Codes and states of text ids are meaningless.
    """

    is_frame: Tensor
    is_stale: Tensor
    codes: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True)
class LookBack:
    """The newest W rows of B streams, newest first.

    ``counters`` ``[B, W]`` and ``codes`` ``[B, W, K]`` are NO_ROW where a stream has no such row.
    ``is_lost`` ``[B]``: the table has forgotten one of them.
    """

    counters: Tensor
    codes: Tensor
    is_lost: Tensor


class FrameTable(nn.Module):
    """The ring: ``[n_slots + 1, K + S + 1]`` int16, with a row's codes, the sampler's S state
    numbers after the row, and the epoch. ``n_slots`` must be a power of two.

    The last row, after the ring, is the state of a request that has not begun: zeros. With a
    ``look_back`` of W rows each slot also has the counters of the W - 1 rows before it in its
    stream, four bytes each. The last input id alone then leads to the last W rows in two gathers,
    and no request needs a state of its own.
    """

    cells: Tensor
    links: Tensor

    def __init__(
        self, n_slots: int, num_codebooks: int, num_states: int = 2, look_back: int = 0
    ) -> None:
        super().__init__()
        if n_slots < 1 or n_slots & (n_slots - 1):
            raise ValueError(f"n_slots must be a power of two, not {n_slots}")
        self.n_slots = n_slots
        self.num_codebooks = num_codebooks
        self.num_states = num_states
        self.look_back_rows = look_back
        self._shift = n_slots.bit_length() - 1
        self._states = slice(num_codebooks, num_codebooks + num_states)
        cells = torch.zeros(n_slots + 1, num_codebooks + num_states + 1, dtype=torch.int16)
        self.register_buffer("cells", cells, persistent=False)
        size = (n_slots + 1 if look_back else 0, max(0, look_back - 1))
        links = torch.full(size, NO_ROW, dtype=torch.int32)
        self.register_buffer("links", links, persistent=False)

    def look_up(self, ids: Tensor) -> FrameState:
        """Resolve input ids ``[N]``, text and frame ids mixed."""
        is_frame = ids >= FRAME_BASE
        counter = torch.where(is_frame, ids.long() - FRAME_BASE, 0)
        cells = self.cells[counter & (self.n_slots - 1)]
        return FrameState(
            is_frame=is_frame,
            is_stale=is_frame & (cells[:, -1] != self._epoch(counter)),
            codes=cells[:, : self.num_codebooks].long(),
            states=cells[:, self._states],
        )

    def states(self, ids: Tensor) -> Tensor:
        """The sampler's S state numbers after the rows of ``ids`` ``[N]``: ``[N, S]``.

        For a text id, the state of a request that has not begun.
        """
        slots = torch.where(
            ids >= FRAME_BASE, (ids - FRAME_BASE) & (self.n_slots - 1), self.n_slots
        )
        return self.cells[:, self._states][slots].long()

    def look_back(self, ids: Tensor) -> LookBack:
        """The last rows of the streams whose last input ids are ``ids`` ``[B]``."""
        newest = torch.where(ids >= FRAME_BASE, ids.long() - FRAME_BASE, NO_ROW)
        slot = torch.where(newest >= 0, newest & (self.n_slots - 1), self.n_slots)
        counters = torch.cat([newest[:, None], self.links[slot].long()], 1)
        is_row = counters >= 0
        cells = self.cells[torch.where(is_row, counters & (self.n_slots - 1), self.n_slots)]
        codes = cells[..., : self.num_codebooks].long().masked_fill_(~is_row[..., None], NO_ROW)
        stale = is_row & (cells[..., -1] != self._epoch(counters))
        return LookBack(counters, codes, stale.any(1))

    def write(
        self, counters: Tensor, codes: Tensor, states: Tensor, before: LookBack | None = None
    ) -> None:
        """Store rows ``[N, K]`` and states ``[N, S]`` under ``counters`` ``[N]`` int64, which lie
        within one round of the ring. ``before`` are the rows before them, for a table that looks
        back.

        One indexed write: the counters are on the device, and the host need not know them.
        """
        slots = counters & (self.n_slots - 1)
        epochs = self._epoch(counters)[:, None]
        self.cells[slots] = torch.cat([codes, states, epochs], 1).to(torch.int16)
        if before is not None:
            self.links[slots] = before.counters[:, : self.look_back_rows - 1].to(torch.int32)

    def _epoch(self, counter: Any) -> Any:
        return (counter >> self._shift) % _EPOCHS + 1


def lost_requests(stale: Tensor, ends: Tensor) -> Tensor:
    """Mark the requests that met a stale frame in this step.

    ``stale`` ``[N]`` marks tokens; ``ends`` ``[B + 1]`` are the requests' bounds in the flat list,
    starting with 0. Returns ``[B]`` bool.
    """
    sums = functional.pad(stale.int().cumsum(0), (1, 0))
    return sums[ends[1:]] > sums[ends[:-1]]


def slots_for(max_num_seqs: int, max_frames: int) -> int:
    """Size of a ring that outlasts requests: eight times the rows that can be live, rounded up.

    Preempted and paused requests wait with their frame ids while others go on. A request that waits
    until the ring has wrapped is lost, and reported as such.
    """
    return power_of_two(8 * max_num_seqs * max_frames)


def row_bytes(num_codebooks: int, num_states: int, look_back: int) -> int:
    """Bytes of a slot in a FrameTable of these sizes."""
    return 2 * (num_codebooks + num_states + 1) + 4 * max(0, look_back - 1)


def power_of_two(number: int) -> int:
    """Round ``number`` up to a power of two."""
    return 1 << (number - 1).bit_length()


class RowEmbedding(nn.Embedding):
    """A fused table of all codebooks, ``[K * V, D]``: a row's embedding is the sum of its codes'.

    It is replicated on every tensor-parallel rank: 42 MB at 8 x 1026 x 2560 in bf16. It is not one
    of vLLM's layers, so quantisation leaves it alone.
    """

    code_offsets: Tensor

    def __init__(self, num_codebooks: int, codebook_rows: int, hidden_size: int) -> None:
        super().__init__(num_codebooks * codebook_rows, hidden_size)
        offsets = torch.arange(num_codebooks) * codebook_rows
        self.register_buffer("code_offsets", offsets, persistent=False)
        self._used_rows = len(self.weight)

    def find_silent_rows(self) -> None:
        """Find the index from which on all rows of the table are zero, like those of inert
        codebooks. On a CPU reading the weights takes most of a step's time, and these need not be
        read.
        """
        used = self.weight.any(1).nonzero()
        self._used_rows = int(used[-1]) + 1 if len(used) else 0

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[B, K * V]`` from ``[B, D]``, for a head tied to this table."""
        used = self._used_rows if hidden.device.type == "cpu" else len(self.weight)
        computed = functional.linear(hidden, self.weight[:used])
        logits: Tensor = functional.pad(computed, (0, len(self.weight) - used))
        return logits

    def forward(self, codes: Tensor) -> Tensor:
        """Embed codes ``[N, K]`` as ``[N, D]``."""
        return functional.embedding(codes.long() + self.code_offsets, self.weight).sum(-2)

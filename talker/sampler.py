"""One sampling step: logits of all requests in, one row of codes per request out.

``RowSampler`` has what all families share: ids, the frame table and the output format. A subclass
draws the rows: ``DelayedRowSampler`` for families in the delay pattern.

The delay pattern, for four codebooks and a text that takes three frames ``a b c``; ``.`` is BOC,
``#`` is EOC, ``?`` is a code that belongs to no frame and is never decoded::

    row         0  1  2  3  4  5  6
    codebook 0  a  b  c  #  #  #  #
    codebook 1  .  a  b  c  ?  #  #
    codebook 2  .  .  a  b  c  ?  #
    codebook 3  .  .  .  a  b  c  ?
    started     1  2  3  4  4  4  4     codebooks that have started, including this row
    over        0  0  0  1  2  3  4     codebooks that have ended; at 4 the stream ends

From the row with the first EOC on, one more codebook ends in each row. The row that ends this ramp
carries the stop id in place of a frame id, so no extra step is needed.

A reference clip has EOC in the places of ``?`` (``streaming.delay.apply_delay``). Here a code is
drawn, as vLLM-Omni does for Higgs Audio v3. The embedded voice was trained on its own rows with
such codes (``embedded/training/scripts.py``), so it is fed rows like those of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from talker.families.delayed import DelayedShape
from talker.frames import FRAME_BASE, FRAME_SPAN, FrameTable, LookBack
from talker.noise import log_uniform

#: Key of a request's repetition-aware sampling in vLLM's ``SamplingParams.extra_args``: its window
#: and the maximum count of a code.
RAS_KEY = "talkwire_ras"
#: Mixed into a seed, so that the second draw has different noise.
REPETITION_MARK = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True)
class Repetition:
    """Repetition-aware sampling of each row of a batch; tensors are ``[B]``.

    A code that occurs ``most`` times or more among the last ``window`` codes of its codebook is
    drawn again. A window of 0 turns this off; no window exceeds the table's look-back. Rows before
    the stream's first are not counted.
    """

    window: Tensor
    most: Tensor

    def repeats(self, recent: Tensor, codes: Tensor) -> Tensor:
        """Mark the ``codes`` ``[B, K]`` that repeat, ``[B, K]`` bool; ``recent`` ``[B, W, K]`` are
        the rows before, newest first.
        """
        ages = torch.arange(recent.shape[1], device=codes.device)
        is_near = (ages < self.window[:, None])[..., None]
        return ((recent == codes[:, None]) & is_near).sum(1) >= self.most[:, None]


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampling parameters of each row of a batch; tensors are ``[B]``.

    A greedy row has ``top_k`` 1 and any temperature but 0. Two values known to the host save work
    on the device: the widest ``top_k``, and whether all are equal. ``repetition`` is for a sampler
    whose table looks back; None turns it off for all rows.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    widest: int
    same_width: bool
    repetition: Repetition | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> Draw:
        """Return a copy with ``move`` applied to each tensor."""
        repetition = self.repetition
        if repetition is not None:
            repetition = Repetition(move(repetition.window), move(repetition.most))
        return replace(
            self,
            temperature=move(self.temperature),
            top_k=move(self.top_k),
            top_p=move(self.top_p),
            seed=move(self.seed),
            repetition=repetition,
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows of a step: ``codes`` ``[B, K]``, the states after them ``[B, S]``, and whether each is
    the last of its stream ``[B]``.
    """

    codes: Tensor
    states: Tensor
    is_over: Tensor


class RowSampler(nn.Module):
    """Draws rows and stores them in the frame table.

    The counter behind frame ids is on the device and advances by the batch size in every step, so
    it is equal on all ranks of a tensor-parallel group. No step depends on a number that the host
    would have to know, so a step can be captured as a CUDA graph.

    On a GPU the number of kernel launches limits a step. This implementation runs on CPUs and
    defines the results; ``python -m benchmarks.sampler_cost`` counts its kernels.
    """

    counter: Tensor

    books: Tensor
    indices: Tensor
    offsets: Tensor
    lost_codes: Tensor

    def __init__(self, table: FrameTable, codebook_rows: int, stop: int) -> None:
        super().__init__()
        self.table = table
        self.num_codebooks, self.codebook_rows = table.num_codebooks, codebook_rows
        self.stop = stop
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64), persistent=False)
        books = torch.arange(1, self.num_codebooks + 1)
        self.register_buffer("books", books, persistent=False)
        self.register_buffer("indices", books - 1, persistent=False)
        self.register_buffer("offsets", (books - 1) * codebook_rows, persistent=False)
        self.register_buffer("lost_codes", self.lost_row + books - 1, persistent=False)

    @property
    def lost_row(self) -> int:
        """The first code that no codebook has. A row that starts with it (offsets included) reports
        that the request's frames are no longer in the table.
        """
        return self.num_codebooks * self.codebook_rows

    def step(
        self, logits: Tensor, last_ids: Tensor, positions: Tensor, lost: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        """Draw one row per request.

        ``logits`` ``[B, ...]`` may be changed. ``last_ids`` and ``positions`` ``[B]`` are the input
        id that the logits belong to and its position; ``lost`` ``[B]`` marks requests whose input
        met a stale frame. Returns ids ``[B]`` and offset codes ``[B, K]`` int32: codebook k's code
        plus ``k * codebook_rows``, so that all codes of a row differ.
        """
        batch, before = logits.shape[0], None
        if self.table.look_back_rows:
            before = self.table.look_back(last_ids)
            lost = lost | before.is_lost
        states = self.table.states(last_ids)
        drawn = self.draw_rows(logits, states, before, positions, draw)

        counters = self._count(batch)
        self.table.write(counters, drawn.codes, drawn.states, before)

        ids = counters + FRAME_BASE
        ids.masked_fill_(lost | drawn.is_over, self.stop)
        codes = torch.where(lost[:, None], self.lost_codes, drawn.codes + self.offsets)
        return ids, codes.to(torch.int32)

    def _count(self, batch: int) -> Tensor:
        """The counters of the step's rows, ``[B]``; they wrap before an id would exceed int32."""
        first = self.counter.masked_fill(self.counter > FRAME_SPAN - batch, 0)
        counters = torch.arange(batch, device=first.device) + first
        self.counter.copy_(first + batch)
        return counters

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """Draw the rows of a step. ``states`` ``[B, S]`` are those after the previous rows;
        ``before`` are these rows themselves, for a table that looks back.
        """
        raise NotImplementedError


class DelayedRowSampler(RowSampler):
    """Draws rows of the delay pattern. ``logits`` are ``[B, K * codebook_rows]``.

    Each of the first ``end_codebooks`` codebooks may draw EOC. All codebooks below it then end in
    the same row; if several draw EOC, the last one counts. In the ramp none draws it again, so no
    frame that is played holds a special code. With a table that looks back, repeated codes are
    drawn again if their request asks for it.
    """

    def __init__(
        self,
        table: FrameTable,
        codebook_rows: int,
        boc: int,
        eoc: int,
        stop: int,
        end_codebooks: int = 1,
    ) -> None:
        super().__init__(table, codebook_rows, stop)
        if not 1 <= end_codebooks <= self.num_codebooks:
            raise ValueError(f"end_codebooks must be from 1 to {self.num_codebooks}")
        self.boc, self.eoc, self.end_codebooks = boc, eoc, end_codebooks

    @classmethod
    def from_rules(
        cls, n_slots: int, shape: DelayedShape, rules: Mapping[str, Any]
    ) -> DelayedRowSampler:
        """Create a sampler with its own table. ``rules``: ``end_codebooks``, and for
        repetition-aware sampling ``look_back``, the longest window.
        """
        assert shape.stop_id is not None
        table = FrameTable(n_slots, shape.num_codebooks, look_back=rules.get("look_back", 0))
        return cls(
            table,
            shape.codebook_rows,
            shape.boc,
            shape.eoc,
            shape.stop_id,
            rules.get("end_codebooks", 1),
        )

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """See RowSampler. A state is the number of codebooks beyond the first that have started,
        and the number of those that have ended.
        """
        batch = logits.shape[0]
        started, over = states[:, :1], states[:, 1:]
        logits = logits.view(batch, self.num_codebooks, self.codebook_rows).float()
        # assigned in place: the logits may be changed
        logits[:, :, self.boc] = float("-inf")
        logits[:, self.end_codebooks :, self.eoc] = float("-inf")
        if self.end_codebooks > 1:  # in the ramp the codebooks that go on speak their last frames
            logits[:, :, self.eoc].masked_fill_(over > 0, float("-inf"))
        codes = choose_codes(logits, positions, self.books, draw)
        if before is not None and draw.repetition is not None:
            again = draw.repetition.repeats(before.codes, codes) & (codes < self.boc)
            codes = draw_again(logits, codes, again, positions, self.books, draw.seed)
        codes.masked_fill_(self.indices > started, self.boc)
        if self.end_codebooks > 1:
            said = torch.where(codes == self.eoc, self.books, 0).amax(1, keepdim=True)
            over_after = torch.where(over > 0, (over + 1).clamp_(max=self.num_codebooks), said)
            codes.masked_fill_(self.books <= torch.where(over > 0, over, said), self.eoc)
            after = torch.cat([(started + 1).clamp_(max=self.num_codebooks), over_after], 1)
        else:
            codes.masked_fill_(self.books <= over, self.eoc)
            after = next_state(codes, states, self.eoc)
        return Drawn(codes, after, after[:, 1] == self.num_codebooks)


def draw_again(
    logits: Tensor, codes: Tensor, again: Tensor, positions: Tensor, books: Tensor, seed: Tensor
) -> Tensor:
    """Return ``codes`` ``[B, K]``, drawn from ``logits`` ``[B, K, V]``, with those marked in
    ``again`` ``[B, K]`` drawn again from all allowed codes (no top-k, no top-p) at temperature 1.

    The second draw has its own noise from the same seed, so it makes greedy speech reproducible
    too. On a CPU it is skipped if nothing repeats. On a GPU this test would wait for the device.
    """
    if not logits.is_cuda and not again.any():
        return codes
    every = torch.arange(logits.shape[-1], device=codes.device).expand_as(logits)
    noise = log_uniform(seed ^ REPETITION_MARK, positions, books, every)
    return torch.where(again, logits.softmax(-1).div_(noise).argmin(-1), codes)


def choose_codes(
    logits: Tensor, positions: Tensor, books: Tensor, draw: Draw, stride: int | None = None
) -> Tensor:
    """Draw codes ``[B, K]`` from logits ``[B, K, V]`` by top-k, top-p and Gumbel-max. ``stride``:
    see ``log_uniform``.

    Noise is computed only for the candidates that top-k leaves. The largest
    ``log(probability) + gumbel`` is the smallest ``probability / log(uniform)``, which takes two
    logarithms less, and a probability of 0 excludes a code.
    """
    if draw.widest == 1:
        return logits.argmax(-1)
    width = min(draw.widest, logits.shape[-1])
    value, code = logits.topk(width, -1)  # sorted: top-p reads the order
    value.div_(draw.temperature[:, None, None])
    if not draw.same_width:
        rank = torch.arange(width, device=logits.device)
        value.masked_fill_(rank >= draw.top_k[:, None, None], float("-inf"))
    chance = value.softmax(-1)
    ahead = chance.cumsum(-1).sub_(chance)
    chance.masked_fill_(ahead >= draw.top_p[:, None, None], 0.0)
    noise = log_uniform(draw.seed, positions, books, code, stride)
    best = chance.div_(noise).argmin(-1, keepdim=True)
    return code.gather(-1, best).squeeze(-1)


def draw_of(params: Sequence[Any], codebook_rows: int, watches_repetition: bool) -> Draw:
    """Read the sampling parameters of a batch from its requests' own SamplingParams, on a CPU.

    They are not read from the runner's metadata, since V1's clips top-k to the *text* vocabulary,
    which is smaller than a codebook in small checkpoints. V2's warm-up requests have neither a
    top-k nor a seed: they draw from all codes, with any seed.
    """
    # vLLM drops top_k if the temperature is 0; such a row needs only its best code
    top_k = [(p.top_k if p.top_k > 0 else codebook_rows) if p.temperature else 1 for p in params]
    repetition = None
    if watches_repetition:
        given = [(p.extra_args or {}).get(RAS_KEY, (0, 1)) for p in params]
        repetition = Repetition(*torch.tensor(given).unbind(1))
    return Draw(
        temperature=torch.tensor([p.temperature or 1.0 for p in params]),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor([p.top_p for p in params]),
        seed=torch.tensor([p.seed or 0 for p in params]),
        widest=max(top_k),
        same_width=min(top_k) == max(top_k),
        repetition=repetition,
    )


def next_state(codes: Tensor, before: Tensor, eoc: int) -> Tensor:
    """Return the state ``[B, 2]`` after the row ``codes`` ``[B, K]``: the number of codebooks
    beyond the first that have started, and of those that have ended, one more if codebook 0 has
    EOC.
    """
    more = torch.stack([torch.ones_like(codes[:, 0]), codes[:, 0] == eoc], 1)
    return more.add_(before).clamp_(max=codes.shape[1])

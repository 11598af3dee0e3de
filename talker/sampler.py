"""One sampling step: logits of all requests in, one row of codes per request out.

``RowSampler`` is what all families share: ids, the frame table and what travels. How a row is
drawn is a subclass's: ``DelayedRowSampler`` for families in the delay pattern.

The delay pattern, for four codebooks and a text that takes three frames ``a b c``; ``.`` is
BOC, ``#`` is EOC, ``?`` is a code that belongs to no frame and is never decoded::

    row         0  1  2  3  4  5  6
    codebook 0  a  b  c  #  #  #  #
    codebook 1  .  a  b  c  ?  #  #
    codebook 2  .  .  a  b  c  ?  #
    codebook 3  .  .  .  a  b  c  ?
    started     1  2  3  4  4  4  4     codebooks that have started, up to the row's
    over        0  0  0  1  2  3  4     codebooks that have said EOC; at 4 the stream is over

From the row that says EOC on, EOC follows one codebook per row. The row that ends the ramp carries
the stop id in place of a frame id, so no extra step is needed.

A reference clip has EOC in the places of ``?`` (``streaming.delay.apply_delay``). Here a code is
drawn, as vLLM-Omni does for Higgs Audio v3, and the embedded voice has learned its own rows with
such codes (``embedded/training/scripts.py``): what is fed back is what it knows.
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

#: Where a request's repetition-aware sampling travels in vLLM's ``SamplingParams.extra_args``: its
#: window and how often a code may occur in it.
RAS_KEY = "talkwire_ras"
#: Mixed into a seed, so that a second draw has noise of its own.
REPETITION_MARK = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True)
class Repetition:
    """Repetition-aware sampling of each row of a batch; tensors are ``[B]``.

    A code that occurs ``most`` times or more among the last ``window`` of its codebook is drawn
    once more. A window of 0 is none, and no window is longer than the table looks back. A code
    that the stream has not said counts for nothing.
    """

    window: Tensor
    most: Tensor

    def repeats(self, recent: Tensor, codes: Tensor) -> Tensor:
        """Which of ``codes`` ``[B, K]`` repeat, ``[B, K]`` bool; ``recent`` ``[B, W, K]`` are the
        rows before, newest first.
        """
        ages = torch.arange(recent.shape[1], device=codes.device)
        is_near = (ages < self.window[:, None])[..., None]
        return ((recent == codes[:, None]) & is_near).sum(1) >= self.most[:, None]


@dataclass(frozen=True, slots=True)
class Draw:
    """How each row of a batch is drawn; tensors are ``[B]``.

    A greedy row is one of ``top_k`` 1; its temperature is anything but 0. The host knows two
    things that spare the device work: the widest ``top_k``, and whether all are as wide.
    ``repetition``: for a sampler whose table looks back; None is none for any row.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    widest: int
    same_width: bool
    repetition: Repetition | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> Draw:
        """The same with what ``move`` makes of each tensor."""
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
    """Rows of a step: ``codes`` ``[B, K]``, the state after each ``[B, S]``, and whether it is the
    stream's last ``[B]``.
    """

    codes: Tensor
    states: Tensor
    is_over: Tensor


class RowSampler(nn.Module):
    """Draws rows and keeps them in the frame table.

    The counter behind frame ids lives on the device and advances by the batch size in every
    step, so it stays alike on all ranks of a tensor-parallel group. Nothing in a step depends on
    a number that the host would have to know, so a step can be captured as a CUDA graph.

    On a GPU a step is bound by how many kernels it launches. This is the form for a CPU, and the
    definition: ``python -m benchmarks.sampler_cost`` counts its kernels.
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
        """The first code that no codebook has: a row that starts with it (offsets included)
        says that the request's frames are no longer in the table.
        """
        return self.num_codebooks * self.codebook_rows

    def step(
        self, logits: Tensor, last_ids: Tensor, positions: Tensor, lost: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        """Draw one row per request.

        ``logits`` ``[B, ...]`` is the model's own to change; ``last_ids``, ``positions`` ``[B]``
        are the input id that the logits belong to and its place; ``lost`` ``[B]`` marks requests
        whose input met a stale frame. Returns ids ``[B]`` and offset codes ``[B, K]`` int32:
        codebook k's code plus ``k * codebook_rows``, so that all codes of a row differ.
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
        """The counters of the step's rows, ``[B]``; from 0 again before an id would leave int32."""
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
        """Draw the rows of a step. ``states`` ``[B, S]`` are those after the rows before,
        ``before`` the rows themselves for a table that looks back.
        """
        raise NotImplementedError


class DelayedRowSampler(RowSampler):
    """Draws rows of the delay pattern. ``logits`` are ``[B, K * codebook_rows]``.

    Of the first ``end_codebooks`` codebooks each may say EOC. Where a higher one says it, all
    below it are over with the same row: the last of several counts, and in the ramp none says it
    again, so no frame that is played holds a special code. With a table that looks back, codes
    that have repeated are drawn again as each request wants it.
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
        """A sampler with a table of its own. ``rules``: ``end_codebooks``, and for repetition-aware
        sampling ``look_back``, the longest window.
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
        """See RowSampler; a state is how many codebooks have started beyond the first, and how
        many are over.
        """
        batch = logits.shape[0]
        started, over = states[:, :1], states[:, 1:]
        logits = logits.view(batch, self.num_codebooks, self.codebook_rows).float()
        # assignment to slices in place: the logits are nobody else's
        logits[:, :, self.boc] = float("-inf")
        logits[:, self.end_codebooks :, self.eoc] = float("-inf")
        if self.end_codebooks > 1:  # in the ramp the codebooks that go on speak their frames
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
    """``codes`` ``[B, K]`` drawn from ``logits`` ``[B, K, V]``, with those that are marked in
    ``again`` ``[B, K]`` drawn from all that may be said (no top-k, no top-p) at temperature 1.

    The second draw has noise of its own from the same seed, so greedy speech repeats itself too.
    On a CPU nothing is drawn where nothing repeats. On a GPU to ask would be to wait.
    """
    if not logits.is_cuda and not again.any():
        return codes
    every = torch.arange(logits.shape[-1], device=codes.device).expand_as(logits)
    noise = log_uniform(seed ^ REPETITION_MARK, positions, books, every)
    return torch.where(again, logits.softmax(-1).div_(noise).argmin(-1), codes)


def choose_codes(
    logits: Tensor, positions: Tensor, books: Tensor, draw: Draw, stride: int | None = None
) -> Tensor:
    """Top-k, top-p and Gumbel-max: ``[B, K, V]`` logits -> ``[B, K]`` codes. ``stride``: see
    ``log_uniform``.

    The noise is only computed for the candidates that top-k leaves. The largest of
    ``log(chance) + gumbel`` is the smallest of ``chance / log(uniform)``, which takes two
    logarithms less and lets a chance of 0 stand for what may not be said.
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
    """Read the draw of a batch from its requests' own SamplingParams; on a CPU.

    Not from the runner's metadata: V1's clips top-k to the *text* vocabulary, which is smaller
    than a codebook in small checkpoints. The requests with which V2 warms itself up have neither a
    top-k nor a seed: they draw from all codes, with any seed.
    """
    # vLLM forgets top_k where the temperature is 0; such a row needs its best code alone
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
    """How many codebooks have started beyond the first, and how many are over, ``[B, 2]``, after
    the row ``codes`` ``[B, K]``: one more is over whenever the first one says EOC.
    """
    more = torch.stack([torch.ones_like(codes[:, 0]), codes[:, 0] == eoc], 1)
    return more.add_(before).clamp_(max=codes.shape[1])

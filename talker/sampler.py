"""One sampling step: logits of all requests in, one row of codes per request out.

The delay pattern, for four codebooks and a text that takes three frames ``a b c``; ``.`` is
BOC, ``#`` is EOC, ``?`` is a code that belongs to no frame and is never decoded::

    row         0  1  2  3  4  5  6
    codebook 0  a  b  c  #  #  #  #
    codebook 1  .  a  b  c  ?  #  #
    codebook 2  .  .  a  b  c  ?  #
    codebook 3  .  .  .  a  b  c  ?
    delay       1  2  3  3  3  3  3     how many codebooks beyond the first have started
    ramp       -1 -1 -1  3  2  1  0     rows still to come after EOC; at 0 the stream is over

Codebook 0 alone may say EOC, and from then on EOC follows one codebook per row. The row that
ends the ramp carries the stop id in place of a frame id, so no extra step is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from talker.frames import FRAME_BASE, FRAME_SPAN, FrameState, FrameTable
from talker.noise import gumbel


@dataclass(frozen=True, slots=True)
class Draw:
    """How each row of a batch is drawn; tensors are ``[B]``.

    The host knows three things that spare the device work: the widest ``top_k``, whether all
    are as wide, and whether every row is greedy (temperature 0).
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    widest: int
    same_width: bool
    all_greedy: bool


class RowSampler(nn.Module):
    """Draws rows and keeps them in the frame table.

    The counter behind frame ids lives on the host and advances by the batch size in every
    step, so it stays alike on all ranks of a tensor-parallel group.
    """

    def __init__(self, table: FrameTable, codebook_rows: int, boc: int, eoc: int, stop: int):
        super().__init__()
        self.table = table
        self.num_codebooks, self.codebook_rows = table.num_codebooks, codebook_rows
        self.boc, self.eoc, self.stop = boc, eoc, stop
        self._counter = 0

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

        ``logits`` ``[B, K * codebook_rows]``; ``last_ids``, ``positions`` ``[B]`` are the
        input id that the logits belong to and its place; ``lost`` ``[B]`` marks requests
        whose input met a stale frame. Returns ids ``[B]`` and offset codes ``[B, K]`` int32:
        codebook k's code plus ``k * codebook_rows``, so that all codes of a row differ.
        """
        batch = logits.shape[0]
        before = self.table.look_up(last_ids)
        logits = logits.view(batch, self.num_codebooks, self.codebook_rows).float()
        # assignment to slices in place: the logits are nobody else's
        logits[:, :, self.boc] = float("-inf")
        logits[:, 1:, self.eoc] = float("-inf")
        book = torch.arange(self.num_codebooks, device=logits.device)
        codes = choose_codes(logits, positions, draw)
        codes = force_special(codes, before, book, self.boc, self.eoc)
        delay, ramp = next_state(codes, before, self.eoc)

        if self._counter + batch > FRAME_SPAN:
            self._counter = 0
        counter = torch.arange(self._counter, self._counter + batch, device=logits.device)
        self._counter += batch
        self.table.write(counter, codes, delay, ramp)

        ids = torch.where(lost | (ramp == 0), self.stop, counter + FRAME_BASE)
        codes = torch.where(lost[:, None], self.lost_row + book, codes + book * self.codebook_rows)
        return ids, codes.to(torch.int32)


def choose_codes(logits: Tensor, positions: Tensor, draw: Draw) -> Tensor:
    """Top-k, top-p and Gumbel-max: ``[B, K, V]`` logits -> ``[B, K]`` codes.

    The noise is only computed for the candidates that top-k leaves.
    """
    if draw.all_greedy:
        return logits.argmax(-1)
    width = min(draw.widest, logits.shape[-1])
    value, code = logits.topk(width, -1)  # sorted: top-p reads the order
    hot = draw.temperature[:, None, None] > 0
    scaled = value / torch.where(hot, draw.temperature[:, None, None], 1.0)
    if not draw.same_width:
        rank = torch.arange(width, device=logits.device)
        scaled = scaled.masked_fill(rank >= draw.top_k[:, None, None], float("-inf"))
    chance = scaled.softmax(-1)
    ahead = chance.cumsum(-1) - chance
    scaled = scaled.masked_fill(ahead >= draw.top_p[:, None, None], float("-inf"))
    noisy = torch.where(hot, scaled + gumbel(draw.seed, positions, code), value)
    return code.gather(-1, noisy.argmax(-1, keepdim=True)).squeeze(-1)


def force_special(codes: Tensor, before: FrameState, book: Tensor, boc: int, eoc: int) -> Tensor:
    """Put BOC where a codebook has not started and EOC where it is over; ``[B, K]``."""
    num_codebooks = codes.shape[1]
    codes = torch.where(book > before.delay[:, None], boc, codes)
    over = (before.ramp >= 0)[:, None] & (book < (num_codebooks - before.ramp)[:, None])
    return torch.where(over, eoc, codes)


def next_state(codes: Tensor, before: FrameState, eoc: int) -> tuple[Tensor, Tensor]:
    """``delay`` and ``ramp`` ``[B]`` after the row ``codes`` ``[B, K]``."""
    last = codes.shape[1] - 1
    starts = (before.ramp < 0) & (codes[:, 0] == eoc)
    ramp = torch.where(before.ramp >= 0, before.ramp - 1, torch.where(starts, last, -1))
    return (before.delay + 1).clamp(max=last), ramp

"""One sampling step: logits of all requests in, one row of codes per request out.

The delay pattern, for four codebooks and a text that takes three frames ``a b c``; ``.`` is
BOC, ``#`` is EOC, ``?`` is a code that belongs to no frame and is never decoded::

    row         0  1  2  3  4  5  6
    codebook 0  a  b  c  #  #  #  #
    codebook 1  .  a  b  c  ?  #  #
    codebook 2  .  .  a  b  c  ?  #
    codebook 3  .  .  .  a  b  c  ?
    started     1  2  3  4  4  4  4     codebooks that have started, up to the row's
    over        0  0  0  1  2  3  4     codebooks that have said EOC; at 4 the stream is over

Codebook 0 alone may say EOC, and from then on EOC follows one codebook per row. The row that
ends the ramp carries the stop id in place of a frame id, so no extra step is needed.

A reference clip has EOC in the places of ``?`` (``streaming.delay.apply_delay``). Here a code is
drawn, as vLLM-Omni does for Higgs Audio v3, and the embedded voice has learned its own rows with
such codes (``embedded/training/scripts.py``): what is fed back is what it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from talker.frames import FRAME_BASE, FRAME_SPAN, FrameTable
from talker.noise import log_uniform


@dataclass(frozen=True, slots=True)
class Draw:
    """How each row of a batch is drawn; tensors are ``[B]``.

    A greedy row is one of ``top_k`` 1; its temperature is anything but 0. The host knows two
    things that spare the device work: the widest ``top_k``, and whether all are as wide.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    widest: int
    same_width: bool


class RowSampler(nn.Module):
    """Draws rows and keeps them in the frame table.

    The counter behind frame ids lives on the host and advances by the batch size in every
    step, so it stays alike on all ranks of a tensor-parallel group.

    On a GPU a step is bound by how many kernels it launches, so there are as few as eager
    PyTorch allows: ``python -m benchmarks.sampler_cost`` counts them.
    """

    books: Tensor
    indices: Tensor
    offsets: Tensor
    lost_codes: Tensor

    def __init__(self, table: FrameTable, codebook_rows: int, boc: int, eoc: int, stop: int):
        super().__init__()
        self.table = table
        self.num_codebooks, self.codebook_rows = table.num_codebooks, codebook_rows
        self.boc, self.eoc, self.stop = boc, eoc, stop
        self._counter = 0
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

        ``logits`` ``[B, K * codebook_rows]``; ``last_ids``, ``positions`` ``[B]`` are the
        input id that the logits belong to and its place; ``lost`` ``[B]`` marks requests
        whose input met a stale frame. Returns ids ``[B]`` and offset codes ``[B, K]`` int32:
        codebook k's code plus ``k * codebook_rows``, so that all codes of a row differ.
        """
        batch = logits.shape[0]
        before = self.table.states(last_ids)
        logits = logits.view(batch, self.num_codebooks, self.codebook_rows).float()
        # assignment to slices in place: the logits are nobody else's
        logits[:, :, self.boc] = float("-inf")
        logits[:, 1:, self.eoc] = float("-inf")
        codes = choose_codes(logits, positions, self.books, draw)
        codes.masked_fill_(self.indices > before[:, :1], self.boc)
        codes.masked_fill_(self.books <= before[:, 1:], self.eoc)
        after = next_state(codes, before, self.eoc)

        if self._counter + batch > FRAME_SPAN:
            self._counter = 0
        first, self._counter = self._counter, self._counter + batch
        self.table.write(first, codes, after)

        first += FRAME_BASE
        ids = torch.arange(first, first + batch, device=logits.device)
        ids.masked_fill_(lost | (after[:, 1] == self.num_codebooks), self.stop)
        codes = torch.where(lost[:, None], self.lost_codes, codes + self.offsets)
        return ids, codes.to(torch.int32)


def choose_codes(logits: Tensor, positions: Tensor, books: Tensor, draw: Draw) -> Tensor:
    """Top-k, top-p and Gumbel-max: ``[B, K, V]`` logits -> ``[B, K]`` codes.

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
    best = chance.div_(log_uniform(draw.seed, positions, books, code)).argmin(-1, keepdim=True)
    return code.gather(-1, best).squeeze(-1)


def next_state(codes: Tensor, before: Tensor, eoc: int) -> Tensor:
    """How many codebooks have started beyond the first, and how many are over, ``[B, 2]``, after
    the row ``codes`` ``[B, K]``: one more is over whenever the first one says EOC.
    """
    more = torch.stack([torch.ones_like(codes[:, 0]), codes[:, 0] == eoc], 1)
    return more.add_(before).clamp_(max=codes.shape[1])

"""Noise from a counter instead of a generator.

Noise is a hash of (seed, position, codebook, code). It is the same on every device, in every batch
and after every preemption, so a seed gives the same speech and a repeated prefill the same rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: 23 bits, not 24: with 24 the largest uniform rounds to 1 in float32, its noise is infinite,
#: and a masked code (-inf + inf = nan) wins the argmax.
NOISE_BITS = 23

# Odd constants that spread seeds and codes over 64 bits, and splitmix64's two multipliers, written
# as the signed numbers that torch's int64 needs.
SEED_STRIDE = 0x5851F42D4C957F2D
CODE_STRIDE = 0x632BE59BD9B4E019
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def log_uniform(
    seeds: Tensor, positions: Tensor, books: Tensor, codes: Tensor, stride: int | None = None
) -> Tensor:
    """The logarithm of a uniform number for each candidate code: ``seeds`` and ``positions``
    ``[B]`` int64, ``books`` 1 to K, ``codes`` ``[B, K, C]`` int64 -> ``[B, K, C]`` float32, below
    0. Its negative is exponential noise; the negative logarithm of that is Gumbel noise.

    ``stride`` is a position's total number of books, for a call that draws only some of them.
    """
    row = torch.add(seeds * SEED_STRIDE, positions, alpha=stride or codes.shape[1])
    book = _mix(row[:, None] + books).add_(CODE_STRIDE)
    hashed = _mix(torch.add(book[..., None], codes, alpha=CODE_STRIDE))
    top = (hashed >> (64 - NOISE_BITS)).bitwise_and_((1 << NOISE_BITS) - 1)
    return top.float().add_(0.5).mul_(1.0 / (1 << NOISE_BITS)).log_()


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser, in place; int64 wraps, and masks make the shifts logical."""
    x.bitwise_xor_((x >> 30).bitwise_and_(0x3FFFFFFFF)).mul_(MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_(0x1FFFFFFFFF)).mul_(MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_(0x1FFFFFFFF))

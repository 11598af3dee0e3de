"""Gumbel noise from a counter instead of a generator.

Noise is a hash of (seed, position, codebook, code): the same on every device, in every batch
and after every preemption, so a seed means something and a repeated prefill repeats itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: 23 bits, not 24: with 24 the largest uniform rounds to 1 in float32, its noise is infinite,
#: and a masked code (-inf + inf = nan) wins the argmax.
NOISE_BITS = 23

# Odd constants that spread seeds and codes over 64 bits, and splitmix64's two multipliers,
# written as the signed numbers that torch's int64 wants.
SEED_STRIDE = 0x5851F42D4C957F2D
CODE_STRIDE = 0x632BE59BD9B4E019
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def gumbel(seeds: Tensor, positions: Tensor, codes: Tensor) -> Tensor:
    """Noise for candidate codes: ``seeds`` and ``positions`` ``[B]`` int64, ``codes``
    ``[B, K, C]`` int64 -> ``[B, K, C]`` float32.
    """
    num_codebooks = codes.shape[1]
    row = seeds * SEED_STRIDE + positions * num_codebooks
    book = _mix(row[:, None] + torch.arange(1, num_codebooks + 1, device=codes.device))
    hashed = _mix(book[..., None] + (codes + 1) * CODE_STRIDE)
    top = (hashed >> (64 - NOISE_BITS)) & ((1 << NOISE_BITS) - 1)
    uniform = (top.float() + 0.5) * (1.0 / (1 << NOISE_BITS))
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 wraps, and masks make the shifts logical."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)

"""Snake with its factor and the next convolution's padding as one Triton kernel.

In PyTorch it takes three to five launches, each of which reads and writes the whole layer:
``alpha x``, the sine, its product with ``alpha / beta`` if beta is learned, the sum, and the
padding. Here each value is read once and written once. ``codec.snake.Snake`` defines the result.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Values per program.
_BLOCK = 1024
#: Largest tensors: places in them are 32-bit numbers.
_MAX_VALUES = (1 << 31) - _BLOCK


def fits(x: Tensor) -> bool:
    """Whether the kernel can compute a layer: float32 on a GPU, contiguous, and not too large."""
    on_device = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    is_small = x.numel() <= _MAX_VALUES // 2
    return on_device and x.dtype == torch.float32 and x.is_contiguous() and is_small


def snake(
    x: Tensor, alpha: Tensor | None, ratio: Tensor | None, pad_left: int = 0, pad_right: int = 0
) -> Tensor:
    """Return ``u + ratio * sin(u)^2`` for ``u = alpha * x``, padded with zeros in time.

    Args:
        x: ``[B, n, C]``; see ``fits``. Without ``alpha`` it is overwritten and returned.
        alpha: ``[C]``; None: ``u`` is ``x``.
        ratio: ``[C]``; None: 1.
        pad_left: number of zeros before each row.
        pad_right: number of zeros after each row.

    Raises:
        ValueError: padding without ``alpha``.
    """
    batch, length, channels = x.shape
    padded = pad_left + length + pad_right
    if alpha is None and padded > length:
        raise ValueError("a Snake in place has no padding")
    out = x if alpha is None else x.new_empty(batch, padded, channels)
    size = out.numel()
    if size > _MAX_VALUES:
        raise ValueError(f"{size} values are too many for the kernel")
    # Triton launches on the current device, which need not be the tensors'
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _snake_kernel[(triton.cdiv(size, _BLOCK),)](
            x,
            out,
            x if alpha is None else alpha,
            x if ratio is None else ratio,
            size,
            length,
            pad_left,
            padded,
            CHANNELS=channels,
            SCALED=alpha is not None,
            LEARNED=ratio is not None,
            PADDED=padded > length,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out


# size is specialised: if it is a multiple of 16, as for the published codecs, values are read and
# written four at a time
@triton.jit(do_not_specialize=["length", "pad_left", "padded"])
def _snake_kernel(
    x_ptr,
    out_ptr,
    alpha_ptr,
    ratio_ptr,
    size,
    length,
    pad_left,
    padded,
    CHANNELS: tl.constexpr,
    SCALED: tl.constexpr,
    LEARNED: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    channel = at % CHANNELS
    if PADDED:
        place = at // CHANNELS
        row = place // padded
        time = place - row * padded - pad_left
        source = (row * length + time) * CHANNELS + channel
        known = inside & (time >= 0) & (time < length)
    else:
        source = at
        known = inside
    u = tl.load(x_ptr + source, mask=known, other=0.0)
    if SCALED:
        u = u * tl.load(alpha_ptr + channel, mask=inside, other=0.0)
    sine = tl.sin(u)
    bent = sine * sine
    if LEARNED:
        bent = bent * tl.load(ratio_ptr + channel, mask=inside, other=0.0)
    tl.store(out_ptr + at, u + bent, mask=inside)

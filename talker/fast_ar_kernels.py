"""The layers of a fast AR as Triton kernels between the matrix products.

In PyTorch a layer launches some twenty kernels besides its four products. Here there are four:

- ``_norm_kernel``: add a product to the residual and normalise the sum (twice in a layer);
- ``_attend_kernel``: queries' and keys' norms, rotary embedding, the cache, and the attention;
- ``_gate_kernel``: the gated product of the inner layer.

``talker.families.fast_ar`` defines the results, and runs where there is no Triton. Values are
rounded to the model's type where PyTorch rounds them, except within the attention.

``adopt`` compares the two forms on the device, with the model's own weights, before the kernels are
used. The tests compare them in Triton's interpreter.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from vllm.triton_utils import HAS_TRITON, tl, triton

from talker.families.fast_ar import FastAR, FastLayer
from talker.frames import power_of_two

log = logging.getLogger(__name__)

#: Greatest number of positions: a program of the attention holds all keys and values of a head.
_MAX_POSITIONS = 32
#: Greatest width of a position, which one program normalises.
_MAX_WIDTH = 1 << 14
#: Columns per program of ``_gate_kernel``.
_COLUMNS = 1024
#: Rows of the comparison by ``adopt``.
_ROWS = 3
#: Difference of the two forms' logits, relative to the logits, up to which the kernels are used.
#: A matrix product sums in the same order in both, so float32 differs by its last bits.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def fits(fast: FastAR) -> bool:
    """Whether the kernels can run ``fast``: a head's size is a power of two, and a head's cache and
    a position each fit into one program.
    """
    part = fast.part
    return (
        part.head_dim == power_of_two(part.head_dim)
        and 16 <= part.head_dim <= 256
        and part.num_heads % part.num_kv_heads == 0
        and fast.num_codebooks <= _MAX_POSITIONS
        and part.hidden_size <= _MAX_WIDTH
        and fast.cache.dtype in TOLERANCES
    )


def adopt(fast: FastAR, like: Tensor) -> bool:
    """Run ``fast`` by the kernels from now on if Triton is there, its shape fits, and they draw
    its logits. Otherwise PyTorch goes on running it, and if they differ or fail a warning says so.

    ``like`` ``[B, D]``: hidden states after the slow AR's norm, of which the type and the device
    are taken.
    """
    if not HAS_TRITON or not fits(fast):
        return False
    try:
        difference = compare(fast, like)
    except Exception as error:  # of many kinds: Triton's, its compilers', the driver's
        log.warning("PyTorch runs the fast AR, since its Triton kernels failed: %r", error)
        return False
    # also false if it is not a number
    if not difference <= TOLERANCES[fast.cache.dtype]:
        log.warning(
            "PyTorch runs the fast AR, since its Triton kernels differ from it by %.2g", difference
        )
        return False
    fast.kernels = run_layers
    return True


@torch.inference_mode()
def compare(fast: FastAR, like: Tensor) -> float:
    """Run a frame of random hidden states and codes in both forms.

    Returns:
        The greatest norm of a row's difference in the logits of any codebook, divided by the norm
        of the logits.
    """
    rows = min(_ROWS, fast.cache.shape[2])
    dice = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, like.shape[1], generator=dice).to(like)
    first = torch.zeros(rows, dtype=torch.int64, device=like.device)

    def logits() -> Tensor:
        """``[K - 1, B, V]``; each call feeds the same codes."""
        seen = []
        dice.manual_seed(1)
        # neither form may live on what the other one has written
        fast.cache.fill_(float("nan"))

        def choose(scores: Tensor, book: int) -> Tensor:
            seen.append(scores)
            return torch.randint(scores.shape[1], (rows,), generator=dice).to(first)

        fast(hidden, first, choose)
        return torch.stack(seen)

    before = fast.kernels
    try:
        fast.kernels = None
        wanted = logits()
        fast.kernels = run_layers
        found = logits()
    finally:
        fast.kernels = before
        fast.cache.zero_()
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


def run_layers(fast: FastAR, x: Tensor, at: int) -> Tensor:
    """See ``FastAR.run_layers``."""
    batch, count, width = x.shape
    residual = x.reshape(batch * count, width)
    product: Tensor | None = None
    eps = fast.part.rms_norm_eps
    for layer, cache in zip(fast.layers, fast.cache, strict=True):
        assert isinstance(layer, FastLayer)
        residual, normed = _add_norm(residual, product, layer.attention_norm.weight, eps)
        attended = _attend(fast, layer, layer.wqkv(normed), cache, at, count)
        residual, normed = _add_norm(residual, layer.wo(attended), layer.ffn_norm.weight, eps)
        product = layer.w2(_gate(layer.w13(normed)))
    assert product is not None
    last = slice(count - 1, None, count)
    return _add_norm(residual[last], product[last], fast.norm.weight, eps)[1]


def _add_norm(
    x: Tensor, product: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``x + product`` and its norm, ``[N, D]`` each."""
    rows, width = x.shape
    normed = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    total = x if product is None else torch.empty_like(normed)
    added = x if product is None else product
    block = power_of_two(width)
    _norm_kernel[(rows,)](
        x,
        x.stride(0),
        added,
        added.stride(0),
        weight,
        total,
        normed,
        WIDTH=width,
        BLOCK=block,
        ADDS=product is not None,
        EPS=eps,
        num_warps=8 if block > _COLUMNS else 4,
    )
    return total, normed


def _attend(
    fast: FastAR, layer: FastLayer, fused: Tensor, cache: Tensor, at: int, count: int
) -> Tensor:
    """Return the heads' outputs ``[N, heads * size]`` from queries, keys and values ``[N, ...]`` of
    ``count`` positions of each row, and write the latter two to ``cache``.
    """
    part = fast.part
    out = fused.new_empty(fused.shape[0], part.num_heads * part.head_dim)
    _attend_kernel[(fused.shape[0] // count, part.num_heads, count)](
        fused,
        layer.q_norm.weight if layer.qk_norms else fused,
        layer.k_norm.weight if layer.qk_norms else fused,
        fast.cos,
        fast.sin,
        cache,
        cache.stride(0),
        out,
        at,
        HEADS=part.num_heads,
        KV_HEADS=part.num_kv_heads,
        HALF=part.head_dim // 2,
        BOOKS=fast.num_codebooks,
        POSITIONS=power_of_two(fast.num_codebooks),
        COUNT=count,
        NORMS=layer.qk_norms,
        EPS=part.rms_norm_eps,
        SCALE=part.head_dim**-0.5,
        num_warps=4,
    )
    return out


def _gate(fused: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` ``[N, I]`` of ``fused`` ``[N, 2 * I]``."""
    rows, width = fused.shape
    inner = width // 2
    out = fused.new_empty(rows, inner)
    _gate_kernel[(rows, -(-inner // _COLUMNS))](
        fused, out, INNER=inner, BLOCK=_COLUMNS, num_warps=4
    )
    return out


@triton.jit
def _norm_kernel(
    x_ptr,
    x_stride,
    product_ptr,
    product_stride,
    weight_ptr,
    total_ptr,
    normed_ptr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    EPS: tl.constexpr,
):
    """Add and normalise one position per program."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        at = product_ptr + row * product_stride + column
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * WIDTH + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + EPS)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = (value * scale * weight).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row * WIDTH + column, normed, mask=inside)


@triton.jit
def _turned(
    x_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    position,
    HALF: tl.constexpr,
    NORMS: tl.constexpr,
    EPS: tl.constexpr,
):
    """Normalise and rotate one head at a position; returns its two halves as they are stored."""
    half = tl.arange(0, HALF)
    kind = x_ptr.dtype.element_ty
    low = tl.load(x_ptr + half).to(tl.float32)
    high = tl.load(x_ptr + HALF + half).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * HALF) + EPS)
        low = low * scale * tl.load(norm_ptr + half).to(tl.float32)
        high = high * scale * tl.load(norm_ptr + HALF + half).to(tl.float32)
        low = low.to(kind).to(tl.float32)
        high = high.to(kind).to(tl.float32)
    # the tables have each pair's cosine twice, and its sine negated and as it is
    cos = tl.load(cos_ptr + position * 2 * HALF + half)
    sin = tl.load(sin_ptr + position * 2 * HALF + HALF + half)
    return (low * cos - high * sin).to(kind), (high * cos + low * sin).to(kind)


@triton.jit(do_not_specialize=["at"])
def _attend_kernel(
    fused_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    cache_stride,
    out_ptr,
    at,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BOOKS: tl.constexpr,
    POSITIONS: tl.constexpr,
    COUNT: tl.constexpr,
    NORMS: tl.constexpr,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Attend with one query head at one of ``COUNT`` new positions, from ``at`` on, per program.

    The heads that share a key each compute it, and one of them writes it to the cache. No program
    reads from the cache what another one writes.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    turn = tl.program_id(2)
    kv_head = head // (HEADS // KV_HEADS)
    SIZE: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * SIZE
    half = tl.arange(0, HALF)
    whole = tl.arange(0, SIZE)
    position = tl.arange(0, POSITIONS)
    new_ptr = fused_ptr + row * COUNT * WIDTH
    keys_ptr = cache_ptr + (row * BOOKS * KV_HEADS + kv_head) * SIZE
    values_ptr = keys_ptr + cache_stride
    known = position[:, None] < at
    line = position[:, None] * (KV_HEADS * SIZE)
    low = tl.load(keys_ptr + line + half[None, :], mask=known, other=0.0).to(tl.float32)
    high = tl.load(keys_ptr + line + HALF + half[None, :], mask=known, other=0.0).to(tl.float32)
    value = tl.load(values_ptr + line + whole[None, :], mask=known, other=0.0).to(tl.float32)
    writes = (turn == 0) & (head % (HEADS // KV_HEADS) == 0)
    for new in tl.static_range(COUNT):
        key_ptr = new_ptr + new * WIDTH + (HEADS + kv_head) * SIZE
        new_low, new_high = _turned(
            key_ptr, k_norm_ptr, cos_ptr, sin_ptr, at + new, HALF, NORMS, EPS
        )
        new_value = tl.load(key_ptr + KV_HEADS * SIZE + whole)
        if writes:
            place = (at + new) * (KV_HEADS * SIZE)
            tl.store(keys_ptr + place + half, new_low)
            tl.store(keys_ptr + place + HALF + half, new_high)
            tl.store(values_ptr + place + whole, new_value)
        here = position[:, None] == at + new
        low = tl.where(here, new_low.to(tl.float32)[None, :], low)
        high = tl.where(here, new_high.to(tl.float32)[None, :], high)
        value = tl.where(here, new_value.to(tl.float32)[None, :], value)
    query_low, query_high = _turned(
        new_ptr + turn * WIDTH + head * SIZE,
        q_norm_ptr,
        cos_ptr,
        sin_ptr,
        at + turn,
        HALF,
        NORMS,
        EPS,
    )
    score = tl.sum(low * query_low.to(tl.float32)[None, :], 1)
    score += tl.sum(high * query_high.to(tl.float32)[None, :], 1)
    score = tl.where(position <= at + turn, score * SCALE, float("-inf"))
    chance = tl.exp(score - tl.max(score, 0))
    chance = chance / tl.sum(chance, 0)
    out = tl.sum(chance[:, None] * value, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + ((row * COUNT + turn) * HEADS + head) * SIZE + whole, out)


@triton.jit
def _gate_kernel(fused_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """Gate ``BLOCK`` columns of one position per program."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INNER
    gate_ptr = fused_ptr + row * 2 * INNER + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + INNER, mask=inside, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    gate = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + row * INNER + column, (gate * up).to(kind), mask=inside)

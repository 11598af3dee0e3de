"""Transformers of codecs: causal attention over a window, run piece by piece with state.

A position sees itself and the ``window - 1`` positions before it, so a stream's state is the keys
and values of that many in each layer. A sequence in one go is a stream of one piece. Positions
count from the stream's beginning.

Everything here runs on the device alone, and its shapes depend on those of the inputs only. So a
batch can be recorded as a CUDA graph, with padding at the ends of shorter rows: later positions
affect no earlier ones, and the new state ends with a row's own last position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

_ROPE_BASE = 10_000.0
#: Maps ``[B, T, dim]`` to the same shape.
PointwiseLayer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """Sizes of a transformer over the last ``window`` positions, each position's own included."""

    dim: int
    layers: int
    heads: int
    head_dim: int
    feed_forward: int
    window: int


@dataclass(frozen=True, slots=True)
class BatchPositions:
    """Where in their streams the next T positions of B streams are: ``[B]`` int64 each, on the
    device.
    """

    #: Position of the first, from the stream's beginning.
    first: Tensor
    #: Number of positions before it of which something is known.
    known: Tensor
    #: How many of the T are the stream's, from the first on; the rest is padding. None: all are.
    count: Tensor | None = None

    def after(self, steps: int) -> BatchPositions:
        """Return the positions ``steps`` later, for the rest of the T."""
        rest = None if self.count is None else (self.count - steps).clamp(min=0)
        return BatchPositions(self.first + steps, self.known + steps, rest)

    def last_of(self, joined: Tensor, dim: int, size: int) -> Tensor:
        """Return of each row the ``size`` values along ``dim`` that end with its own last one.

        Args:
            joined: ``[B, ...]``, along ``dim`` the ``size`` values before and the T new ones.
            dim: the dimension of time.
            size: number of values that a state remembers.
        """
        steps = joined.shape[dim] - size
        if self.count is None:
            return joined.narrow(dim, steps, size)
        at = self.count.clamp(max=steps)[:, None] + torch.arange(size, device=joined.device)
        shape = [1] * joined.dim()
        shape[0], shape[dim] = at.shape
        wanted = list(joined.shape)
        wanted[dim] = size
        return joined.gather(dim, at.view(shape).expand(wanted))


class RmsNorm:
    """Division by the root mean square, with a factor per channel."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * self._weight


class LayerNorm:
    """Mean 0 and deviation 1, then a factor and a bias per channel."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self._weight = weight
        self._bias = bias
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, self._eps)


class SwiGlu:
    """A feed-forward layer whose inner values are gated by SiLU of others."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self._gate = gate
        self._up = up
        self._down = down

    def __call__(self, x: Tensor) -> Tensor:
        """Compute ``[B, T, dim]``."""
        return F.linear(F.silu(F.linear(x, self._gate)) * F.linear(x, self._up), self._down)


class GeluLayer:
    """A feed-forward layer with the exact GELU."""

    def __init__(self, up: Tensor, down: Tensor) -> None:
        self._up = up
        self._down = down

    def __call__(self, x: Tensor) -> Tensor:
        """Compute ``[B, T, dim]``."""
        return F.linear(F.gelu(F.linear(x, self._up)), self._down)


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """Attention and a feed-forward layer, each with a norm before it and a scale per channel after
    it. ``qkv`` is ``[3 * heads * head_dim, dim]``, ``out`` is ``[dim, heads * head_dim]``.
    """

    attention_norm: PointwiseLayer
    qkv: Tensor
    out: Tensor
    attention_scale: Tensor
    ffn_norm: PointwiseLayer
    feed_forward: PointwiseLayer
    ffn_scale: Tensor

    def run(
        self,
        x: Tensor,
        keys_values: Tensor,
        rotate: Callable[[Tensor], Tensor],
        visible: Tensor,
    ) -> Tensor:
        """Compute the next T positions ``[B, T, dim]`` of B streams.

        Args:
            x: the positions' inputs, ``[B, T, dim]``.
            keys_values: those of the P positions before, and room for the T new ones, which are
                written: ``[B, 2, P + T, heads, head_dim]``.
            rotate: the rotary embedding of ``[B, T, heads, head_dim]`` at these positions.
            visible: whether a position sees another, ``[B, 1, T, P + T]``.
        """
        batch, count, _ = x.shape
        fused = F.linear(self.attention_norm(x), self.qkv)
        q, k, v = (part.reshape(batch, count, *keys_values.shape[3:]) for part in fused.chunk(3, 2))
        keys_values[:, 0, -count:] = rotate(k)
        keys_values[:, 1, -count:] = v
        keys, values = keys_values.transpose(2, 3).unbind(1)
        y = F.scaled_dot_product_attention(
            rotate(q).transpose(1, 2), keys, values, attn_mask=visible
        )
        y = F.linear(y.transpose(1, 2).reshape(batch, count, -1), self.out)
        x = x + y * self.attention_scale
        y = self.feed_forward(self.ffn_norm(x))
        return x + y * self.ffn_scale


class WindowTransformer:
    """A transformer whose attention covers the last ``sizes.window`` positions. Thread-safe.

    Args:
        sizes: of the layers.
        layers: ``sizes.layers`` of them.
        norm: after the last layer; None for no norm.
        rotates_pairs: whether the rotary embedding rotates the values ``2i`` and ``2i + 1``, with
            tables rounded to bfloat16. Otherwise it rotates ``i`` and ``i + head_dim / 2``, with
            tables in float32.
        base: of the rotary embedding.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        layers: Sequence[TransformerLayer],
        norm: PointwiseLayer | None,
        *,
        rotates_pairs: bool,
        base: float = _ROPE_BASE,
    ) -> None:
        self._sizes = sizes
        self._layers = layers
        self._norm = norm
        self._rotates_pairs = rotates_pairs
        #: Tells device and type of the states.
        self._like = layers[0].qkv
        pairs = torch.arange(0, sizes.head_dim, 2, device=self._like.device).float()
        self._speeds = 1.0 / base ** (pairs / sizes.head_dim)

    def begin(self) -> Tensor:
        """Return the state of a stream of which nothing is known, zeros ``[layers, 2, window - 1,
        heads, head_dim]``: keys, already rotated, and values.
        """
        sizes = self._sizes
        shape = (sizes.layers, 2, sizes.window - 1, sizes.heads, sizes.head_dim)
        return self._like.new_zeros(shape)

    def run_whole(self, x: Tensor) -> Tensor:
        """Compute whole sequences, ``[B, T, dim]``."""
        begins = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        states = torch.stack([self.begin()] * len(x))
        return self.run(x, states, BatchPositions(begins, begins))[0]

    def run(self, x: Tensor, states: Tensor, at: BatchPositions) -> tuple[Tensor, Tensor]:
        """Compute ``[B, T, dim]``, the positions ``at`` of B streams; return their new states.

        ``states``: ``[B, layers, 2, window - 1, heads, head_dim]``, of which the last ``at.known``
        positions count.
        """
        outputs = []
        for piece in torch.split(x, self._sizes.window, 1):
            y, states = self._run_piece(piece, states, at)
            outputs.append(y)
            at = at.after(piece.shape[1])
        return torch.cat(outputs, 1), states

    def _run_piece(self, x: Tensor, states: Tensor, at: BatchPositions) -> tuple[Tensor, Tensor]:
        count = x.shape[1]
        remembered = self._sizes.window - 1
        rotate = self._rotation(at.first, count, x.dtype)
        # Positions from the piece's beginning: of keys, the remembered ones first, and of queries.
        keys = torch.arange(-remembered, count, device=x.device)
        queries = torch.arange(count, device=x.device)[:, None]
        near = (keys <= queries) & (keys > queries - self._sizes.window)
        visible = near & (keys >= -at.known[:, None, None])  # [B, T, remembered + T]
        shape = list(states.shape)
        shape[3] = remembered + count
        keys_values = states.new_empty(shape)
        keys_values[:, :, :, :remembered] = states
        for index, layer in enumerate(self._layers):
            x = layer.run(x, keys_values[:, index], rotate, visible[:, None])
        y = x if self._norm is None else self._norm(x)
        return y, at.last_of(keys_values, 3, remembered)

    def _rotation(
        self, begins: Tensor, count: int, dtype: torch.dtype
    ) -> Callable[[Tensor], Tensor]:
        """Return the rotation of ``[B, T, heads, head_dim]`` at these positions."""
        positions = begins[:, None] + torch.arange(count, device=begins.device)
        angles = positions.float()[:, :, None, None] * self._speeds
        cos, sin = angles.cos(), angles.sin()
        if not self._rotates_pairs:
            return partial(_rotate_halves, cos.to(dtype), sin.to(dtype))
        return partial(_rotate_pairs, cos.bfloat16().to(dtype), sin.bfloat16().to(dtype))


def _rotate_pairs(cos: Tensor, sin: Tensor, x: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _rotate_halves(cos: Tensor, sin: Tensor, x: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

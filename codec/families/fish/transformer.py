"""The Fish codec's transformers: causal attention over a window, run piece by piece with state.

A position sees itself and the ``window - 1`` positions before it, so a layer's state is the keys
and values of that many. A sequence in one go is a stream of one piece.

Positions count from the stream's beginning. Rotary embeddings rotate the values ``2i`` and
``2i + 1``, with tables rounded to bfloat16, as the model was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.fish.config import TransformerSizes

_ROPE_BASE = 10_000.0
_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class AttentionState:
    """The layers' state of one stream after ``position`` positions.

    ``keys_values`` is ``[layers, 2, window - 1, heads, head_dim]``, with keys already rotated; the
    last ``known`` of its rows are filled. It is never modified.
    """

    position: int
    known: int
    keys_values: Tensor

    @property
    def size_bytes(self) -> int:
        """Memory in use, in bytes."""
        return self.keys_values.numel() * self.keys_values.element_size()


class WindowTransformer:
    """A transformer whose attention covers the last ``sizes.window`` positions. Thread-safe.

    ``weights`` has the tensors under ``name``.
    """

    def __init__(self, sizes: TransformerSizes, weights: Mapping[str, Tensor], name: str) -> None:
        self._sizes = sizes
        self._layers = [_Layer(sizes, weights, f"{name}.layers.{n}") for n in range(sizes.layers)]
        self._norm = weights[f"{name}.norm.weight"]
        pairs = torch.arange(0, sizes.head_dim, 2, device=self._norm.device).float()
        self._speeds = 1.0 / _ROPE_BASE ** (pairs / sizes.head_dim)

    def begin(self, position: int = 0) -> AttentionState:
        """Return the state of a stream with nothing known before ``position``."""
        sizes = self._sizes
        heads = sizes.dim // sizes.head_dim
        shape = (sizes.layers, 2, sizes.window - 1, heads, sizes.head_dim)
        return AttentionState(position, 0, self._norm.new_zeros(shape))

    def run(
        self, x: Tensor, states: Sequence[AttentionState]
    ) -> tuple[Tensor, list[AttentionState]]:
        """Compute ``[B, T, dim]``, the next T positions of B streams; return their new states."""
        outputs = []
        for piece in torch.split(x, self._sizes.window, 1):
            y, states = self._run_piece(piece, states)
            outputs.append(y)
        return torch.cat(outputs, 1), list(states)

    def _run_piece(
        self, x: Tensor, states: Sequence[AttentionState]
    ) -> tuple[Tensor, list[AttentionState]]:
        count, remembered = x.shape[1], self._sizes.window - 1
        begins = torch.tensor([state.position for state in states], device=x.device)
        known = torch.tensor([state.known for state in states], device=x.device)
        rotation = self._rotation(begins, count, x.dtype)
        # Positions from the piece's beginning: of keys, the remembered ones first, and of queries.
        keys = torch.arange(-remembered, count, device=x.device)
        queries = torch.arange(count, device=x.device)[:, None]
        near = (keys <= queries) & (keys > queries - self._sizes.window)
        visible = near & (keys >= -known[:, None, None])  # [B, T, remembered + T]
        kept = []
        for index, layer in enumerate(self._layers):
            past = torch.stack([state.keys_values[index] for state in states])
            x, keys_values = layer.run(x, past, rotation, visible[:, None])
            kept.append(keys_values[:, :, count:])
        stacked = torch.stack(kept, 1)  # [B, layers, 2, remembered, heads, head_dim]
        made = [
            AttentionState(
                state.position + count, min(remembered, state.known + count), stacked[row].clone()
            )
            for row, state in enumerate(states)
        ]
        return _rms_norm(x, self._norm), made

    def _rotation(self, begins: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines ``[B, T, 1, head_dim / 2]``, rounded to bfloat16."""
        positions = begins[:, None] + torch.arange(count, device=begins.device)
        angles = positions.float()[:, :, None, None] * self._speeds
        return angles.cos().bfloat16().to(dtype), angles.sin().bfloat16().to(dtype)


class _Layer:
    """Attention and SwiGLU, each with a norm before it and a scale per channel after it."""

    def __init__(self, sizes: TransformerSizes, weights: Mapping[str, Tensor], at: str) -> None:
        self._head_dim = sizes.head_dim
        self._qkv = weights[f"{at}.attention.wqkv.weight"]
        self._out = weights[f"{at}.attention.wo.weight"]
        self._attention_norm = weights[f"{at}.attention_norm.weight"]
        self._attention_scale = weights[f"{at}.attention_layer_scale.gamma"]
        self._gate, self._down, self._up = (
            weights[f"{at}.feed_forward.w{n}.weight"] for n in (1, 2, 3)
        )
        self._ffn_norm = weights[f"{at}.ffn_norm.weight"]
        self._ffn_scale = weights[f"{at}.ffn_layer_scale.gamma"]

    def run(
        self, x: Tensor, past: Tensor, rotation: tuple[Tensor, Tensor], visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``[B, T, dim]``, and the keys and values ``[B, 2, past + T, heads, head_dim]``."""
        batch, count, dim = x.shape
        fused = F.linear(_rms_norm(x, self._attention_norm), self._qkv)
        q, k, v = (part.reshape(batch, count, -1, self._head_dim) for part in fused.chunk(3, 2))
        own = torch.stack([_turn(k, rotation), v], 1)
        keys_values = torch.cat([past, own], 2)
        keys, values = keys_values.transpose(2, 3).unbind(1)
        y = F.scaled_dot_product_attention(
            _turn(q, rotation).transpose(1, 2), keys, values, attn_mask=visible
        )
        y = F.linear(y.transpose(1, 2).reshape(batch, count, dim), self._out)
        x = x + y * self._attention_scale
        y = _rms_norm(x, self._ffn_norm)
        y = F.linear(F.silu(F.linear(y, self._gate)) * F.linear(y, self._up), self._down)
        return x + y * self._ffn_scale, keys_values


def _turn(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair of neighbours in ``[B, T, heads, head_dim]``."""
    cos, sin = rotation
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _NORM_EPS) * weight

"""The fast AR: from a slow hidden state and a semantic code to the residual codes of a frame.

B rows run together. K codebooks take K - 1 passes: the hidden state and the semantic code are one
pass of two positions, then each drawn code is one. Its KV cache lasts one step, so it is a buffer.
Shapes and addresses are the same in every step, as a CUDA graph needs. Layers are plain modules:
they are replicated on every tensor-parallel rank, and never quantised.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from talker.families.fish_s2 import FishS2Shape
from talker.shape import BackboneShape

#: Draws codes ``[B]`` of a codebook from logits ``[B, V]``.
ChooseCode = Callable[[Tensor, int], Tensor]


class FastLayer(nn.Module):
    """A transformer layer whose attention does not normalise queries and keys."""

    def __init__(self, part: BackboneShape) -> None:
        super().__init__()
        self._head_dim = part.head_dim
        wide, narrow = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
        self._sizes = [wide, narrow, narrow]
        self.wqkv = nn.Linear(part.hidden_size, sum(self._sizes), bias=False)
        self.wo = nn.Linear(wide, part.hidden_size, bias=False)
        self.w1 = nn.Linear(part.hidden_size, part.intermediate_size, bias=False)
        self.w3 = nn.Linear(part.hidden_size, part.intermediate_size, bias=False)
        self.w2 = nn.Linear(part.intermediate_size, part.hidden_size, bias=False)
        self.attention_norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, at: int) -> Tensor:
        """Run ``[B, S, D]`` at positions from ``at`` on; ``cache`` ``[2, B, K, heads, size]`` is
        written.
        """
        batch, count, _ = x.shape
        query, key, value = (
            part.view(batch, count, -1, self._head_dim)
            for part in self.wqkv(self.attention_norm(x)).split(self._sizes, -1)
        )
        end = at + count
        cache[0, :, at:end], cache[1, :, at:end] = rotate(key, cos, sin), value
        seen = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(at)
        out = functional.scaled_dot_product_attention(
            rotate(query, cos, sin).transpose(1, 2),
            cache[0, :, :end].transpose(1, 2),
            cache[1, :, :end].transpose(1, 2),
            attn_mask=seen,
            enable_gqa=True,
        )
        x = x + self.wo(out.transpose(1, 2).reshape(batch, count, -1))
        normed = self.ffn_norm(x)
        fed: Tensor = x + self.w2(functional.silu(self.w1(normed)) * self.w3(normed))
        return fed


class FastAR(nn.Module):
    """``audio_decoder`` of the checkpoint without its ``codebook_embeddings``."""

    cos: Tensor
    sin: Tensor
    cache: Tensor

    def __init__(self, shape: FishS2Shape, most_rows: int, dtype: torch.dtype) -> None:
        super().__init__()
        part = shape.fast
        self.num_codebooks, self._residual_size = shape.num_codebooks, shape.residual_size
        self.embeddings = nn.Embedding(shape.codebook_size, part.hidden_size)
        self.layers = nn.ModuleList(FastLayer(part) for _ in range(part.num_layers))
        self.norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)
        self.output = nn.Linear(part.hidden_size, shape.codebook_size, bias=False)
        pairs = torch.arange(0, part.head_dim, 2, dtype=torch.float32)
        speed = 1.0 / part.rope_theta ** (pairs / part.head_dim)
        angle = torch.arange(self.num_codebooks, dtype=torch.float32)[:, None] * speed
        # trained with these rounded to bfloat16
        self.register_buffer("cos", angle.cos().bfloat16().float()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin().bfloat16().float()[:, None], persistent=False)
        size = (part.num_layers, 2, most_rows, shape.num_codebooks, part.num_kv_heads)
        cache = torch.zeros(*size, part.head_dim, dtype=dtype)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, hidden: Tensor, semantic: Tensor, choose: ChooseCode) -> Tensor:
        """Map ``[B, D]`` after the slow norm and semantic codes ``[B]`` to codes ``[B, K]``."""
        codes, at = [semantic], 0
        x = torch.stack([hidden, self.embeddings(semantic)], 1)
        while len(codes) < self.num_codebooks:
            logits = self._run(x, at)[:, : self._residual_size]
            codes.append(choose(logits, len(codes)))
            at += x.shape[1]
            x = self.embeddings(codes[-1])[:, None]
        return torch.stack(codes, 1)

    def _run(self, x: Tensor, at: int) -> Tensor:
        """Return logits ``[B, V]`` after the last of the positions ``[B, S, D]`` from ``at`` on."""
        batch, count, _ = x.shape
        cos, sin = self.cos[at : at + count], self.sin[at : at + count]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = layer(x, cos, sin, cache[:, :batch], at)
        logits: Tensor = self.output(self.norm(x[:, -1])).float()
        return logits


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of ``[B, S, heads, size]``, in float32."""
    a, b = x.float()[..., 0::2], x.float()[..., 1::2]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return turned.to(x.dtype)

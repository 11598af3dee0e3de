"""The fast AR: from a hidden state and a frame's first code to the frame's other codes.

B rows run together. K codebooks take K - 1 passes: the hidden state and the first code are one pass
of two positions, then each drawn code is one. Its KV cache lasts one step, so it is a buffer.
Shapes and addresses are the same in every step, as a CUDA graph needs. Layers are plain modules:
they are replicated on every tensor-parallel rank, and never quantised.

This form defines the results, and runs on CPUs. On a GPU ``talker.fast_ar_kernels`` runs the layers
in fewer kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from talker.shape import BackboneShape

#: Draws codes ``[B]`` of a codebook from logits ``[B, V]``.
ChooseCode = Callable[[Tensor, int], Tensor]
#: A form of ``FastAR.run_layers``.
RunLayers = Callable[["FastAR", Tensor, int], Tensor]


class FastLayer(nn.Module):
    """A transformer layer; ``qk_norms``: its attention normalises queries and keys."""

    def __init__(self, part: BackboneShape, *, qk_norms: bool) -> None:
        super().__init__()
        self._head_dim = part.head_dim
        #: Heads of the queries, and of the keys.
        self._heads = [part.num_heads, part.num_kv_heads]
        wide = part.num_heads * part.head_dim
        fused = wide + 2 * part.num_kv_heads * part.head_dim
        self.wqkv = nn.Linear(part.hidden_size, fused, bias=False)
        self.wo = nn.Linear(wide, part.hidden_size, bias=False)
        #: w1, whose product is the gate, over w3.
        self.w13 = nn.Linear(part.hidden_size, 2 * part.intermediate_size, bias=False)
        self.w2 = nn.Linear(part.intermediate_size, part.hidden_size, bias=False)
        self.attention_norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)
        self.qk_norms = qk_norms
        if qk_norms:
            self.q_norm = nn.RMSNorm(part.head_dim, part.rms_norm_eps)
            self.k_norm = nn.RMSNorm(part.head_dim, part.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, at: int) -> Tensor:
        """Run ``[B, S, D]`` at positions from ``at`` on; ``cache`` ``[2, B, K, heads, size]`` is
        written. Either ``S`` is 1 or ``at`` is 0, so the attention needs no mask of its own.
        """
        batch, count, _ = x.shape
        heads, kv_heads = self._heads
        fused = self.wqkv(self.attention_norm(x)).view(batch, count, -1, self._head_dim)
        turned, value = torch.split(fused, [heads + kv_heads, kv_heads], 2)
        if self.qk_norms:
            query, key = torch.split(turned, self._heads, 2)
            turned = torch.cat([self.q_norm(query), self.k_norm(key)], 2)
        query, key = torch.split(rotate(turned, cos, sin), self._heads, 2)
        end = at + count
        cache[0, :, at:end], cache[1, :, at:end] = key, value
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            cache[0, :, :end].transpose(1, 2),
            cache[1, :, :end].transpose(1, 2),
            is_causal=count > 1,
            enable_gqa=True,
        )
        x = x + self.wo(out.transpose(1, 2).reshape(batch, count, -1))
        gate, up = self.w13(self.ffn_norm(x)).chunk(2, -1)
        fed: Tensor = x + self.w2(functional.silu(gate) * up)
        return fed


class FastAR(nn.Module):
    """Layers, norm and cache. A family embeds the codes and makes the logits, for which it may have
    one table and head for all codebooks, or one for each; and it may narrow its inputs, which have
    the slow AR's width.

    ``rounds_angles``: cosines and sines are rounded to bfloat16, as the model was trained. ``cos``
    and ``sin`` ``[K, 1, size]`` are those of each position, as ``rotate`` takes them.
    """

    cos: Tensor
    sin: Tensor
    cache: Tensor

    def __init__(
        self,
        part: BackboneShape,
        num_codebooks: int,
        max_rows: int,
        dtype: torch.dtype,
        *,
        qk_norms: bool,
        rounds_angles: bool,
    ) -> None:
        super().__init__()
        self.num_codebooks = num_codebooks
        self.part = part
        #: Runs the layers in place of ``run_layers``, or None.
        self.kernels: RunLayers | None = None
        self.layers = nn.ModuleList(
            FastLayer(part, qk_norms=qk_norms) for _ in range(part.num_layers)
        )
        self.norm = nn.RMSNorm(part.hidden_size, part.rms_norm_eps)
        pairs = torch.arange(0, part.head_dim, 2, dtype=torch.float32)
        speed = 1.0 / part.rope_theta ** (pairs / part.head_dim)
        angle = torch.arange(num_codebooks, dtype=torch.float32)[:, None] * speed
        cos, sin = (
            table.bfloat16().float() if rounds_angles else table
            for table in (angle.cos(), angle.sin())
        )
        self.register_buffer("cos", torch.cat([cos, cos], 1)[:, None], persistent=False)
        self.register_buffer("sin", torch.cat([-sin, sin], 1)[:, None], persistent=False)
        size = (part.num_layers, 2, max_rows, num_codebooks, part.num_kv_heads)
        cache = torch.zeros(*size, part.head_dim, dtype=dtype)
        self.register_buffer("cache", cache, persistent=False)

    def embed(self, codes: Tensor, book: int) -> Tensor:
        """Embed codes ``[B]`` of a codebook in the slow AR's width."""
        raise NotImplementedError

    def narrow(self, x: Tensor) -> Tensor:
        """Map inputs ``[B, S, D]`` from the slow AR's width to the layers'."""
        return x

    def logits(self, x: Tensor, book: int) -> Tensor:
        """Return the logits of a codebook's codes after normed outputs ``[B, D]``."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, first: Tensor, choose: ChooseCode) -> Tensor:
        """Map ``[B, D]`` after the slow norm and first codes ``[B]`` to codes ``[B, K]``."""
        run = self.kernels or FastAR.run_layers
        codes = [first]
        at = 0
        x = torch.stack([hidden, self.embed(first, 0)], 1)
        for book in range(1, self.num_codebooks):
            if book > 1:
                at, x = book, self.embed(codes[-1], book - 1)[:, None]
            out = run(self, self.narrow(x), at)
            codes.append(choose(self.logits(out, book).float(), book))
        return torch.stack(codes, 1)

    def run_layers(self, x: Tensor, at: int) -> Tensor:
        """Run the layers and the norm, and fill the cache.

        Args:
            x: Inputs ``[B, S, D]``, already narrowed.
            at: Position of the first. It is 0 unless ``S`` is 1.

        Returns:
            The normed output ``[B, D]`` of the last position.
        """
        batch, count, _ = x.shape
        cos, sin = self.cos[at : at + count], self.sin[at : at + count]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = layer(x, cos, sin, cache[:, :batch], at)
        normed: Tensor = self.norm(x[:, -1])
        return normed


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + half) of ``[B, S, heads, size]``, in float32.

    ``cos`` and ``sin`` ``[S, 1, size]`` hold the value of each pair at both of its places; of the
    sines the first is negated.
    """
    wide = x.float()
    return (wide * cos + wide.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


def by_halves(weight: Tensor, size: int) -> Tensor:
    """Reorder each head's rows to evens, odds.

    A rotary embedding of neighbouring pairs (2i, 2i + 1) becomes one of the pairs (i, i + half).
    Queries and keys only meet each other, so reordering both changes nothing else.
    """
    heads = weight.reshape(-1, size, *weight.shape[1:])
    return torch.cat([heads[:, 0::2], heads[:, 1::2]], 1).flatten(0, 1)

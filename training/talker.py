"""The talker's network, computed like Qwen3, for training: it also returns attention scores.

Its parameters have the names of ``transformers``' Qwen3Model, so that exporting a checkpoint only
renames them. Sizes are fixed: two cores can train 6.8 million parameters in an evening.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from text.english.sounds import SIGNS

BOOKS, ROWS, BOC, EOC = 8, 1026, 1024, 1025
LETTERS = " abcdefghijklmnopqrstuvwxyz',.?!"
SPECIALS = ("<|endoftext|>", "<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>")
VOCABULARY = {c: i for i, c in enumerate((*LETTERS, *SPECIALS, *SIGNS))}
VOCABULARY_SIZE = 96
_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the backbone. ``guided``: layers whose first query head is trained to attend to the
    letter being spoken.
    """

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    ffn: int = 768
    theta: float = 10_000.0
    guided: tuple[int, ...] = (1, 3)


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-6)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)
        self.q_norm, self.k_norm = _Norm(shape.head), _Norm(shape.head)

    def forward(
        self, x: Tensor, angle: tuple[Tensor, Tensor], guide: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the first head's scores ``[B, T, T]`` before the causal mask if
        ``guide``.
        """
        batch, length, _ = x.shape
        size = self.shape.head
        q = self.q_norm(self.q_proj(x).view(batch, length, -1, size)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, -1, size)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, size).transpose(1, 2)
        q, k = turned(q, angle).to(v.dtype), turned(k, angle).to(v.dtype)
        groups = self.shape.heads // self.shape.kv_heads
        scores = None
        if guide:
            scores = (q[:, 0] @ k[:, 0].transpose(1, 2)).float() / math.sqrt(size)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1)), scores


def turned(x: Tensor, angle: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys ``[..., T, head]`` by their positions' cosines and sines."""
    cosine, sine = angle
    a, b = x.float().chunk(2, -1)
    return torch.cat([a, b], -1) * cosine + torch.cat([-b, a], -1) * sine


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(shape), _MLP(shape)
        self.input_layernorm = _Norm(shape.hidden)
        self.post_attention_layernorm = _Norm(shape.hidden)

    def forward(
        self, x: Tensor, angle: tuple[Tensor, Tensor], guide: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, scores); see _Attention."""
        attended, scores = self.self_attn(self.input_layernorm(x), angle, guide)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), scores


class TalkerNet(nn.Module):
    """Text and code embeddings, a Qwen3 backbone, and a code head tied to the embedding."""

    cosine: Tensor
    sine: Tensor
    offset: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.hidden)
        self.text = nn.Embedding(VOCABULARY_SIZE, shape.hidden)
        self.audio = nn.Parameter(torch.randn(BOOKS * ROWS, shape.hidden) * 0.02)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and name.startswith("layers"):
                last = "o_proj" in name or "down_proj" in name
                nn.init.normal_(parameter, 0, 0.02 / (math.sqrt(2 * shape.layers) if last else 1))
        nn.init.normal_(self.text.weight, 0, 0.05)
        steps = torch.arange(0, shape.head, 2).float() / shape.head
        angle = torch.outer(torch.arange(_POSITIONS).float(), shape.theta**-steps)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
        self.register_buffer("offset", torch.arange(BOOKS) * ROWS, persistent=False)

    def embed(self, text: Tensor, rows: Tensor, is_row: Tensor, books: int) -> Tensor:
        """Embed ids ``[B, T]`` and rows ``[B, T, 8]``, selected by ``is_row``, as
        ``[B, T, hidden]``.
        """
        audio = F.embedding(rows[..., :books] + self.offset[:books], self.audio).sum(-2)
        return torch.where(is_row[..., None], audio, self.text(text))

    def forward(self, x: Tensor, guide: bool) -> tuple[Tensor, list[Tensor]]:
        """Return hidden states ``[B, T, hidden]``, and the guided heads' scores ``[B, T, T]``."""
        angle = (self.cosine[: x.shape[1]], self.sine[: x.shape[1]])
        seen = []
        for number, layer in enumerate(self.layers):
            x, scores = layer(x, angle, guide and number in self.shape.guided)
            if scores is not None:
                seen.append(scores)
        return self.norm(x), seen

    def logits(self, hidden: Tensor, books: int) -> Tensor:
        """Compute logits ``[n, books, 1026]`` from ``[n, hidden]``."""
        return F.linear(hidden, self.audio[: books * ROWS]).view(-1, books, ROWS)

"""Generate speech in batches with the network in training.

It samples as the service does with vLLM (each codebook starts one row after the previous one, and
the first one ends the utterance), and is fast for hundreds of utterances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.pitch import Ints
from training.quantise import ACTIVE, BOOKS
from training.scripts import Script
from training.talker import BOC, EOC, TalkerNet, turned


@dataclass(frozen=True, slots=True)
class Drawing:
    """Sampling parameters, as in ``generation_config.json``; temperature 0 is greedy."""

    temperature: float = 0.3
    top_k: int = 50
    top_p: float = 0.95
    longest: int = 330


@dataclass(frozen=True, slots=True)
class Drawn:
    """Codes ``[T, BOOKS]``, 0 for the inert codebooks, and whether the talker ended the utterance
    itself.
    """

    codes: Ints
    ended: bool


class _Cache:
    """Keys and values of ``[B]`` sequences that are aligned at their ends."""

    def __init__(self, net: TalkerNet, known: Tensor, longest: int) -> None:
        self._net, (count, self._length) = net, known.shape
        shape, room = net.shape, self._length + longest
        size = (count, shape.kv_heads, room, shape.head)
        self._keys = [torch.zeros(size) for _ in net.layers]
        self._values = [torch.zeros(size) for _ in net.layers]
        self._known = torch.cat([known, torch.ones(count, longest, dtype=torch.bool)], 1)
        self._filled = 0

    def last(self, x: Tensor, at: Tensor) -> Tensor:
        """Return the hidden states ``[B, hidden]`` of the last of ``x`` ``[B, n, hidden]``, which
        are at positions ``at`` ``[B, n]``.
        """
        net, length, shape = self._net, x.shape[1], self._net.shape
        angle = (net.cosine[at][:, None], net.sine[at][:, None])
        room = slice(self._filled, self._filled + length)
        seen = self._known[:, None, None, : room.stop].expand(-1, 1, length, -1)
        if length > 1:  # the first call; padding attends to itself, not to nothing
            whole = torch.ones(length, length, dtype=torch.bool)
            seen = seen & whole.tril() | torch.eye(length, dtype=torch.bool)
        layers: list[Any] = list(net.layers)
        for number, layer in enumerate(layers):
            part, normed = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (
                project(normed).view(len(x), length, -1, shape.head)
                for project in (part.q_proj, part.k_proj, part.v_proj)
            )
            q = turned(part.q_norm(q).transpose(1, 2), angle)
            keys, values = self._keys[number], self._values[number]
            keys[:, :, room] = turned(part.k_norm(k).transpose(1, 2), angle)
            values[:, :, room] = v.transpose(1, 2)
            out = F.scaled_dot_product_attention(
                q, keys[:, :, : room.stop], values[:, :, : room.stop], seen, enable_gqa=True
            )
            x = x + part.o_proj(out.transpose(1, 2).reshape(len(x), length, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self._filled = room.stop
        found: Tensor = net.norm(x[:, -1])
        return found


@torch.inference_mode()
def draw(net: TalkerNet, prompts: Sequence[Script], drawing: Drawing, seed: int) -> list[Drawn]:
    """Generate an utterance for each of the prompts, which end with ``<|audio|>``.

    Args:
        net: in float32, on the CPU.
        prompts: of any lengths. Padding and the batch's other prompts only affect the rounding.
        drawing: sampling parameters.
        seed: seed of all draws.

    Returns:
        An utterance for each prompt.
    """
    random = torch.Generator().manual_seed(seed)
    ids, rows, is_row, known = _aligned(prompts)
    at = (known.cumsum(1) - 1).clamp(min=0)
    cache = _Cache(net, known, drawing.longest)
    hidden, at = cache.last(net.embed(ids, rows, is_row, ACTIVE), at), at[:, -1:]
    made = torch.zeros(len(prompts), drawing.longest, ACTIVE, dtype=torch.long)
    ends = torch.full((len(prompts),), drawing.longest)
    for step in range(drawing.longest):
        logits = net.logits(hidden, ACTIVE)
        logits[:, :, BOC] = logits[:, 1:, EOC] = -math.inf
        row = torch.full((len(prompts), ACTIVE), BOC)
        for book in range(min(step + 1, ACTIVE)):
            row[:, book] = _code(logits[:, book], drawing, random)
        ends = torch.where((row[:, 0] == EOC) & (ends > step), step, ends)
        for book in range(ACTIVE):  # the others have one surplus code before EOC
            row[:, book][step >= ends + book + (book > 0)] = EOC
        made[:, step] = row
        if bool((step >= ends + ACTIVE - 1).all()):
            break
        at = at + 1
        heard = F.embedding(row + net.offset[:ACTIVE], net.audio).sum(-2)
        hidden = cache.last(heard[:, None], at)
    most = drawing.longest - (ACTIVE - 1)  # a frame is whole with its last codebook
    ended, counts = ends <= most, ends.clamp(max=most).tolist()
    found = []
    for one, count, done in zip(made, counts, ended, strict=True):
        codes = np.zeros((count, BOOKS), np.int64)
        for book in range(ACTIVE):
            codes[:, book] = one[book : book + count, book].numpy()
        found.append(Drawn(codes, bool(done)))
    return found


def _aligned(prompts: Sequence[Script]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, rows, is_row, and a mask of real positions, padded at the beginning."""
    length = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    rows = torch.zeros(len(prompts), length, ACTIVE, dtype=torch.long)
    is_row, known = (torch.zeros(len(prompts), length, dtype=torch.bool) for _ in range(2))
    for number, prompt in enumerate(prompts):
        there = slice(length - len(prompt), length)
        ids[number, there] = torch.from_numpy(prompt.ids)
        rows[number, there] = torch.from_numpy(np.ascontiguousarray(prompt.rows[:, :ACTIVE]))
        is_row[number, there] = torch.from_numpy(prompt.is_row)
        known[number, there] = True
    return ids, rows, is_row, known


def _code(logits: Tensor, drawing: Drawing, random: torch.Generator) -> Tensor:
    """Draw codes ``[B]`` from logits ``[B, ROWS]``."""
    if not drawing.temperature:
        return logits.argmax(-1)
    best, codes = logits.topk(drawing.top_k, -1)
    share = (best / drawing.temperature).softmax(-1)
    share = share.masked_fill(share.cumsum(-1) - share >= drawing.top_p, 0)
    return codes.gather(-1, torch.multinomial(share, 1, generator=random))[:, 0]

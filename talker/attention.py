"""Word alignment: a tap on the attention of the talker's alignment heads.

While a frame is spoken, some heads of a text-to-speech model attend to the text that it speaks. A
checkpoint names them in generation_config.json as Whisper's do,
``"alignment_heads": [[layer, head], ...]``. The queries and keys of these heads are kept in every
step. The keys go into a table that has the same slots as the KV cache: a key is found by the same
block table as its cached block, and lives as long. So prefix caching, chunked prompts, preemption
and pausing need no special care, whatever layout an attention backend gives the cache. The table
costs ``head_dim`` numbers per head and slot.

Letters: N tokens of a step, R rows with word timings, H heads on this rank, L the longest text, D a
head's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from talker.alignment import AlignmentHead

#: Key of a request's text span in vLLM's ``SamplingParams.extra_args``.
SPAN_KEY = "talkwire_text"


class AttentionTap(nn.Module):
    """Records the attention inputs of ``layers`` for ``heads`` of the whole model. What they attend
    to more than ``near`` ids from the peak is not the text being spoken.

    Under tensor parallelism each rank has the heads that it computes. ``spot`` sums over the ranks,
    so all of them must call it.
    """

    queries: Tensor
    keys: Tensor
    store: Tensor
    shifts: Tensor | None

    def __init__(
        self,
        layers: Sequence[Any],
        heads: Sequence[AlignmentHead],
        near: int,
        max_tokens: int,
        dtype: torch.dtype,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__()
        self._ranks, self._near = ranks, near
        shifts: list[int] = []
        self._scale = layers[0].self_attn.scaling
        for layer in sorted({one.layer for one in heads}):
            attention = layers[layer].self_attn
            first = rank * attention.num_heads
            here = [one for one in heads if one.layer == layer]
            own = [one for one in here if 0 <= one.head - first < attention.num_heads]
            if own:
                numbers = [one.head - first for one in own]
                listener = _Listener(self, attention, numbers, len(shifts))
                attention.attn.register_forward_pre_hook(listener)
                shifts += [one.shift for one in own]
        size = (max_tokens, len(shifts), layers[0].self_attn.head_dim)
        moved = torch.tensor(shifts, dtype=torch.int64)
        self.register_buffer("shifts", moved if any(shifts) else None, persistent=False)
        self.register_buffer("queries", torch.zeros(size, dtype=dtype), persistent=False)
        self.register_buffer("keys", torch.zeros(size, dtype=dtype), persistent=False)
        self.register_buffer("store", torch.zeros(0, *size[1:], dtype=dtype), persistent=False)

    def make_room(self, kv_cache_config: Any) -> None:
        """Allocate as many slots as vLLM's KV cache has. Frees the previous ones."""
        (group,) = kv_cache_config.kv_cache_groups
        slots = kv_cache_config.num_blocks * group.kv_cache_spec.block_size
        shape = (slots, *self.keys.shape[1:])
        self.store = torch.zeros(shape, dtype=self.keys.dtype, device=self.keys.device)

    def remember(self, slots: Tensor) -> None:
        """Store this step's keys in its tokens' KV cache slots, ``slots`` ``[N]`` int64."""
        self.store[slots] = self.keys[: len(slots)]

    def spot(
        self,
        tokens: Tensor,
        tables: Tensor,
        block_size: int,
        start: Tensor,
        count: Tensor,
        longest: int,
    ) -> Tensor:
        """Return each row's position in its text, ``[R]`` float32, in ids from the span's start.

        ``tokens`` ``[R]`` are the rows' last tokens of this step, ``tables`` ``[R, blocks]`` their
        requests' blocks. Their texts are ``count`` ``[R]`` ids from position ``start`` ``[R]`` on,
        ``longest`` at most. Nothing here waits for the device.
        """
        offset = torch.arange(longest, device=tables.device)
        place = start[:, None] + torch.minimum(offset, count[:, None] - 1)
        slots = tables.long().gather(1, place // block_size) * block_size + place % block_size
        scores = torch.einsum(
            "rhd,rlhd->rhl", self.queries[tokens].float(), self.store[slots].float()
        )
        outside = (offset >= count[:, None])[:, None]
        weights = (scores * self._scale).masked_fill(outside, float("-inf")).softmax(-1)
        weight = self._unshifted(weights, offset, count).sum(1)
        if self._ranks > 1:
            from vllm.distributed import tensor_model_parallel_all_reduce

            weight = tensor_model_parallel_all_reduce(weight)
        near = (offset - weight.argmax(1, keepdim=True)).abs() <= self._near
        weight = weight * near
        centre: Tensor = (weight * offset).sum(1) / weight.sum(1)
        return centre

    def _unshifted(self, weights: Tensor, offset: Tensor, count: Tensor) -> Tensor:
        """Move each head's weights ``[R, H, L]`` from where it looks to the id that is spoken. What
        would leave the text stays at its edge.
        """
        if self.shifts is None:
            return weights
        spoken = (offset - self.shifts[:, None]).clamp(min=0)
        spoken = torch.minimum(spoken, count[:, None, None] - 1)
        return torch.zeros_like(weights).scatter_add_(2, spoken, weights)


class _Listener:
    """A forward pre-hook of vLLM's ``Attention`` that copies the heads' queries and keys.

    The copies are part of the compiled or captured step, so they go to buffers with fixed
    addresses.
    """

    def __init__(self, tap: AttentionTap, attention: Any, heads: list[int], first: int) -> None:
        self._tap = tap
        self._size = attention.head_dim
        shared = attention.num_heads // attention.num_kv_heads
        self._places = [(first + i, head, head // shared) for i, head in enumerate(heads)]

    def __call__(self, module: Any, inputs: tuple[Tensor, ...]) -> None:
        queries = inputs[0]
        keys = inputs[1]
        size = self._size
        count = queries.shape[0]
        for place, head, kv_head in self._places:
            self._tap.queries[:count, place].copy_(queries[:, head * size : (head + 1) * size])
            self._tap.keys[:count, place].copy_(keys[:, kv_head * size : (kv_head + 1) * size])


def spans_of(params: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Return the text spans of the requests with word timings: by index among ``params``, the first
    position of the text and its number of ids.
    """
    spans = enumerate((one.extra_args or {}).get(SPAN_KEY) for one in params)
    return {index: (int(span[0]), int(span[1])) for index, span in spans if span is not None}

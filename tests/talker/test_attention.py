"""The tap on the alignment heads against plain attention, on one rank and on two."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from talker.alignment import AlignmentHead
from talker.attention import SPAN_KEY, AttentionTap, spans_of

LAYERS, KV_HEADS, SIZE, BLOCK, BLOCKS, SCALE = 3, 2, 4, 3, 32, 1.7


class Attention(nn.Module):
    """Stands for vLLM's, whose call the tap hooks."""

    def forward(self, queries: Tensor, keys: Tensor) -> None:
        """Attend to nothing."""


def layers(heads: int) -> list[SimpleNamespace]:
    sizes = {"num_heads": heads, "num_kv_heads": KV_HEADS, "head_dim": SIZE, "scaling": SCALE}
    return [
        SimpleNamespace(self_attn=SimpleNamespace(attn=Attention(), **sizes)) for _ in range(LAYERS)
    ]


def flat(values: np.ndarray) -> Tensor:
    """Convert ``[request, token, head, D]`` to the flat tokens and heads that vLLM passes."""
    return torch.from_numpy(values.reshape(values.shape[0] * values.shape[1], -1)).float()


def plain_place(
    queries: np.ndarray, keys: np.ndarray, heads: Sequence[AlignmentHead], shared: int, within: int
) -> tuple[float, bool]:
    """The position of a row in its text, and whether the most attended id leads clearly.

    ``queries`` ``[layer, head, D]`` are the row's, ``keys`` ``[id, layer, head, D]`` the text's.
    """
    weight = np.zeros(len(keys))
    for layer, head, shift in heads:
        scores = keys[:, layer, head // shared] @ queries[layer, head] * SCALE
        chances = np.exp(scores - scores.max())
        for at, chance in enumerate(chances / chances.sum()):
            weight[min(max(0, at - shift), len(weight) - 1)] += chance
    peak = int(weight.argmax())
    near = range(max(0, peak - within), min(len(weight), peak + within + 1))
    is_clear = len(weight) < 2 or np.diff(np.sort(weight)[-2:])[0] > 1e-4
    return sum(weight[at] * at for at in near) / sum(weight[at] for at in near), bool(is_clear)


def with_all_reduce(reduce: Callable[[Tensor], Tensor], spot: Callable[[], Tensor]) -> Tensor:
    """Call ``spot`` where vLLM sums over the ranks by ``reduce``."""
    distributed = ModuleType("vllm.distributed")
    vars(distributed)["tensor_model_parallel_all_reduce"] = reduce
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm.distributed", distributed)
        return spot()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.sampled_from([1, 2]),
    shared=st.sampled_from([1, 2]),
    chunks=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    shifted=st.booleans(),
    near=st.sampled_from([0, 2]),
)
def test_tap_finds_place_in_text_like_plain_attention(
    seed: int, ranks: int, shared: int, chunks: list[int], shifted: bool, near: int
) -> None:
    """Two requests, whose blocks are scattered, are computed chunk by chunk side by side."""
    random, requests, length, here = np.random.default_rng(seed), 2, sum(chunks), KV_HEADS * shared
    every = [(layer, head) for layer in range(LAYERS) for head in range(ranks * here)]
    chosen = random.permutation(len(every))[: random.integers(1, 5)]
    shifts = random.integers(-2, 3, len(chosen)) * shifted
    heads = [
        AlignmentHead(*every[at])._replace(shift=int(by))
        for at, by in zip(chosen, shifts, strict=True)
    ]
    blocks = -(-length // BLOCK)
    tables = random.permutation(BLOCKS)[: requests * blocks].reshape(requests, blocks)
    queries = random.normal(size=(requests, length, LAYERS, ranks * here, SIZE))
    keys = random.normal(size=(requests, length, LAYERS, ranks * KV_HEADS, SIZE))
    starts = random.integers(0, length, requests)
    counts = random.integers(1, length - starts + 1)
    last = torch.arange(1, requests + 1) * chunks[-1] - 1

    def run_rank(rank: int) -> Callable[[], Tensor]:
        """Compute the requests on a rank; return its call of ``spot``."""
        made, done = layers(here), 0
        tap = AttentionTap(made, heads, near, requests * max(chunks), torch.float32, rank, ranks)
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=BLOCK))
        tap.make_room(SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[group]))
        for chunk in chunks:
            at = np.arange(done, done + chunk)
            for number, layer in enumerate(made):
                layer.self_attn.attn(
                    flat(queries[:, at, number, rank * here : (rank + 1) * here]),
                    flat(keys[:, at, number, rank * KV_HEADS : (rank + 1) * KV_HEADS]),
                )
            slots = tables[:, at // BLOCK] * BLOCK + at % BLOCK
            tap.remember(torch.from_numpy(slots.reshape(-1)))
            done += chunk
        spans = torch.from_numpy(starts), torch.from_numpy(counts), int(counts.max())
        return lambda: tap.spot(last, torch.from_numpy(tables).int(), BLOCK, *spans)

    spots = [run_rank(rank) for rank in range(ranks)]
    parts: list[Tensor] = []

    def note(part: Tensor) -> Tensor:
        parts.append(part)
        return part

    for spot in spots:
        with_all_reduce(note, spot)
    assert len(parts) == (ranks if ranks > 1 else 0)
    for place in [with_all_reduce(lambda part: torch.stack(parts).sum(0), spot) for spot in spots]:
        for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
            text = keys[number, start : start + count]
            wanted, is_clear = plain_place(queries[number, -1], text, heads, shared, near)
            if is_clear:
                assert float(place[number]) == pytest.approx(wanted, abs=1e-3)


def test_spans_are_those_of_requests_with_word_timings() -> None:
    extras = [None, {}, {SPAN_KEY: (7, 3)}, {"other": 1}, {SPAN_KEY: [0, 1]}]
    params = [SimpleNamespace(extra_args=extra) for extra in extras]
    assert spans_of(params) == {2: (7, 3), 4: (0, 1)}

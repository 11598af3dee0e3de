"""S2 Pro as a vLLM model: a stock Qwen3 backbone, a small semantic head, and the fast AR.

The rotary embedding of S2 Pro rotates neighbouring pairs (2i, 2i + 1) of a head, that of vLLM's
Qwen3 and of ``FastAR`` the pairs (i, i + half). Reordering the rows of queries and keys, and their
norms' weights, converts one into the other. Only V + 1 of the vocabulary's ids may be drawn,
so the head is those rows of the text embedding instead of a mask over all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from talker.families.fast_ar import by_halves
from talker.families.fish_s2 import FAST, SLOW, FishS2Shape
from talker.families.fish_s2.fast_ar import FishFastAR
from talker.families.fish_s2.sampler import FishS2RowSampler
from talker.model import TalkerModel
from talker.sampler import RowSampler
from talker.shape import BackboneShape

#: Names of a slow layer's weights: the checkpoint's, and vLLM's Qwen3's.
_SLOW_NAMES = {
    "attention.wo.": "self_attn.o_proj.",
    "attention.q_norm.": "self_attn.q_norm.",
    "attention.k_norm.": "self_attn.k_norm.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
}


class FishS2ForConditionalGeneration(TalkerModel):
    """See TalkerModel."""

    hf_to_vllm_mapper = WeightsMapper()

    def make_layers(self, vllm_config: Any, prefix: str, shape: Any) -> None:
        """See TalkerModel."""
        text = self.config.text_config
        self._shape = shape
        self.model = Qwen3Model(
            vllm_config=vllm_config.with_hf_config(text, ["Qwen3ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        head = torch.empty(shape.codebook_size + 1, text.hidden_size)
        self.semantic_head = nn.Parameter(head, requires_grad=False)
        max_rows = vllm_config.scheduler_config.max_num_seqs
        self.fast = FishFastAR(shape, max_rows, vllm_config.model_config.dtype)

    def make_sampler(self, n_slots: int, shape: Any, rules: dict[str, Any]) -> RowSampler:
        """See TalkerModel."""
        max_rows = self.fast.cache.shape[2] if rules.get("graphs") else 0
        look_back = rules.get("look_back", 0)
        usual_top_k = rules.get("usual_top_k", 1)
        return FishS2RowSampler(
            n_slots,
            shape,
            self.fast,
            look_back,
            max_rows,
            usual_top_k,
            uses_kernels=bool(rules.get("kernels")),
        )

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Add the semantic token's embedding and those of all codes, scaled as upstream does."""
        token = self.model.embed_input_ids(codes[:, 0].long() + self._shape.semantic_begin)
        rows: Tensor = self.code_embedding(codes)
        scaled: Tensor = (token + rows.to(token.dtype)) / (self.num_codebooks + 1) ** 0.5
        return scaled

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """``[B, D]`` -> ``[B, V + 1 + D]``: the fast AR also needs the hidden states."""
        logits = functional.linear(hidden_states, self.semantic_head)
        return torch.cat([logits, hidden_states], 1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """See TalkerModel."""
        weights = _with_joined_gates(_renamed(weights, self._shape))
        loaded = AutoWeightsLoader(self).load_weights(weights)
        for module in self.model.modules():
            if hasattr(module, "cos_sin_cache"):  # trained with these rounded to bfloat16
                module.cos_sin_cache.copy_(module.cos_sin_cache.to(torch.bfloat16))
        return loaded


def _renamed(
    weights: Iterable[tuple[str, Tensor]], shape: FishS2Shape
) -> Iterator[tuple[str, Tensor]]:
    """Rename the checkpoint's weights to this model's names."""
    begin = shape.semantic_begin
    size = shape.codebook_size
    for name, weight in weights:
        if name == f"{SLOW}embeddings.weight":
            yield "model.embed_tokens.weight", weight
            end = weight[shape.stop_id : shape.stop_id + 1]  # type: ignore[operator]  # checked
            yield "semantic_head", torch.cat([weight[begin : begin + size], end])
        elif name.startswith(SLOW):
            yield from _slow_weights(name.removeprefix("text_model."), weight, shape.backbone)
        elif name == f"{FAST}codebook_embeddings.weight":
            yield "code_embedding.weight", weight
        elif name.startswith(FAST):  # the codec's file may be in the same folder
            if name.endswith(".wqkv.weight"):
                weight = torch.cat([*_query_key_value(weight, shape.fast)])
            name = name.removeprefix(FAST).replace("attention.w", "w")
            yield f"fast.{name.replace('feed_forward.', '')}", weight


def _with_joined_gates(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Join w1 and w3 of each fast layer, which may stand in two files, as ``w13``."""
    waiting: dict[str, Tensor] = {}
    for name, weight in weights:
        if not name.endswith((".w1.weight", ".w3.weight")):
            yield name, weight
            continue
        waiting[name] = weight
        stem = name[: -len("w1.weight")]
        names = f"{stem}w1.weight", f"{stem}w3.weight"
        if all(one in waiting for one in names):
            yield f"{stem}w13.weight", torch.cat([waiting.pop(one) for one in names])


def _slow_weights(name: str, weight: Tensor, part: BackboneShape) -> Iterator[tuple[str, Tensor]]:
    """Rename and reorder a slow layer's weights for vLLM's Qwen3."""
    fused = "attention.wqkv.weight"
    if name.endswith(fused):
        stem = name.removesuffix(fused) + "self_attn."
        query, key, value = _query_key_value(weight, part)
        yield f"{stem}q_proj.weight", query
        yield f"{stem}k_proj.weight", key
        yield f"{stem}v_proj.weight", value
        return
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        weight = by_halves(weight, part.head_dim)
    for theirs, ours in _SLOW_NAMES.items():
        name = name.replace(f".{theirs}", f".{ours}")
    yield name, weight


def _query_key_value(weight: Tensor, part: BackboneShape) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused matrix, and reorder queries and keys for rotation by halves."""
    size = part.head_dim
    wide, narrow = part.num_heads * size, part.num_kv_heads * size
    query, key, value = torch.split(weight, [wide, narrow, narrow])
    return by_halves(query, size), by_halves(key, size), value

"""Qwen3-TTS' talker as a vLLM model: a stock Qwen3 backbone between two summed tracks and a head.

The two-layer projection of text embeddings is folded into their table while weights are loaded, so
a text id is one row of the backbone's own ``embed_tokens``. The head has only the rows that may be
drawn: the first codebook's codes, and the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from talker.families.qwen3_tts import BODY, FAST, Qwen3TTSShape
from talker.families.qwen3_tts.predictor import CodePredictor
from talker.families.qwen3_tts.sampler import Qwen3TTSRowSampler, text_of
from talker.families.qwen3_tts.track_ids import CODEC, KIND_SHIFT, LOW, OVER_BOS, OVER_PAD
from talker.frames import FrameState
from talker.model import TalkerModel
from talker.sampler import RowSampler

#: Rows of the text table that are projected together, which bounds the memory for it.
_FOLD_ROWS = 8192
#: A predictor layer's names here, and the checkpoint's parts of each.
_FAST_NAMES = {
    "wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "wo": ("self_attn.o_proj",), "w13": ("mlp.gate_proj", "mlp.up_proj"),
    "w2": ("mlp.down_proj",), "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",),
    "attention_norm": ("input_layernorm",), "ffn_norm": ("post_attention_layernorm",),
}  # fmt: skip


class Qwen3TTSForConditionalGeneration(TalkerModel):
    """See TalkerModel."""

    hf_to_vllm_mapper = WeightsMapper()

    def make_layers(self, vllm_config: Any, prefix: str, shape: Any) -> None:
        """See TalkerModel."""
        text = self.config.text_config
        self._shape: Qwen3TTSShape = shape
        self.model = Qwen3Model(
            vllm_config=vllm_config.with_hf_config(text, ["Qwen3ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        width = text.hidden_size
        head = torch.empty(shape.codebook_size + 1, width)
        self.first_head = nn.Parameter(head, requires_grad=False)
        #: Embeddings of the codec vocabulary's special ids; the last row is nothing.
        specials = torch.empty(shape.num_specials + 1, width)
        self.specials = nn.Parameter(specials, requires_grad=False)
        max_rows = vllm_config.scheduler_config.max_num_seqs
        self.fast = CodePredictor(
            shape, self.code_embedding, max_rows, vllm_config.model_config.dtype
        )

    def make_sampler(self, n_slots: int, shape: Any, rules: dict[str, Any]) -> RowSampler:
        """See TalkerModel."""
        max_rows = self.fast.cache.shape[2] if rules.get("graphs") else 0
        return Qwen3TTSRowSampler(n_slots, shape, self.fast, rules, max_rows)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Add the two tracks of a prompt's ids (``talker.families.qwen3_tts.track_ids``)."""
        shape, track = self._shape, self._shape.track
        kind, low = ids >> KIND_SHIFT, ids & LOW
        text = self.model.embed_input_ids(torch.where(kind == CODEC, track.tts_pad, low))
        codec = torch.where(kind == CODEC, low, shape.codebook_size + shape.num_specials)
        codec = torch.where(kind == OVER_PAD, track.codec_pad, codec)
        codec = torch.where(kind == OVER_BOS, track.codec_bos, codec)
        summed: Tensor = text + functional.embedding(codec - shape.codebook_size, self.specials)
        return summed

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Add the embeddings of all codes, and that of the text track, which has ended."""
        return self._with_text(codes, torch.full_like(codes[:, 0], self._shape.track.tts_pad))

    def embed_frames(self, codes: Tensor, frames: FrameState) -> Tensor:
        """Add the embeddings of all codes, and that of the text that goes with each frame."""
        return self._with_text(codes, text_of(frames.states))

    def _with_text(self, codes: Tensor, ids: Tensor) -> Tensor:
        text = self.model.embed_input_ids(ids)
        summed: Tensor = text + self.code_embedding(codes).to(text.dtype)
        return summed

    def embed_multimodal(self, voice_rows: Any, **_: Any) -> list[Tensor]:
        """Embed clips: rows as TalkerModel does; the vector of a speaker ``[1, D]`` stands over the
        text's pad, as it is.
        """
        embedded = []
        for rows in voice_rows:
            if rows.is_floating_point():
                number = torch.full((1,), self._shape.track.tts_pad, device=rows.device)
                row = self.model.embed_input_ids(number) + rows.to(self.embeds.dtype)
            else:
                row = self.embed_codes(rows)
            embedded.append(row.to(self.embeds.dtype))
        return embedded

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """``[B, D]`` -> ``[B, V + 1 + D]``: the predictor also needs the hidden states."""
        logits = functional.linear(hidden_states, self.first_head)
        return torch.cat([logits, hidden_states], 1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """See TalkerModel."""
        device = self.first_head.device
        return AutoWeightsLoader(self).load_weights(_renamed(weights, self._shape, device))


def _renamed(
    weights: Iterable[tuple[str, Tensor]], shape: Qwen3TTSShape, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Rename the checkpoint's weights to this model's names, and join those that are one here."""
    parts: dict[str, Tensor] = {}
    for name, weight in weights:
        if name.startswith((f"{BODY}layers.", f"{BODY}norm.")):
            yield f"model.{name.removeprefix(BODY)}", weight
        elif name.startswith("talker."):
            parts[name.removesuffix(".weight")] = weight
    size, others = shape.codebook_size, range(shape.num_codebooks - 1)
    yield "model.embed_tokens.weight", _folded(parts, device)
    head = parts["talker.codec_head"]
    end = shape.codec["eos_token"]
    yield "first_head", torch.cat([head[:size], head[end : end + 1]])
    codec = parts[f"{BODY}codec_embedding"]
    yield "specials", functional.pad(codec[size:], (0, 0, 0, 1))
    tables = [parts[f"{FAST}model.codec_embedding.{book}"] for book in others]
    yield "code_embedding.weight", torch.cat([codec[:size], *tables])
    yield "fast.heads", torch.stack([parts[f"{FAST}lm_head.{book}"] for book in others])
    yield "fast.norm.weight", parts[f"{FAST}model.norm"]
    projection = f"{FAST}small_to_mtp_projection"
    if projection in parts:
        yield "fast.project.weight", parts[projection]
        yield "fast.project.bias", parts[f"{projection}.bias"]
    for layer in range(shape.predictor.num_layers):
        of = f"{FAST}model.layers.{layer}."
        for ours, theirs in _FAST_NAMES.items():
            joined = torch.cat([parts[f"{of}{name}"] for name in theirs])
            yield f"fast.layers.{layer}.{ours}.weight", joined


def _folded(parts: dict[str, Tensor], device: torch.device) -> Tensor:
    """The text table after its projection, computed in float32."""
    at = "talker.text_projection.linear_fc"
    first, second = parts[f"{at}1"].to(device).float(), parts[f"{at}2"].to(device).float()
    first_bias, second_bias = (parts[f"{at}{n}.bias"].to(device).float() for n in (1, 2))
    table = parts[f"{BODY}text_embedding"]
    folded = []
    for rows in torch.split(table, _FOLD_ROWS):
        inner = functional.linear(rows.to(device).float(), first, first_bias)
        out = functional.linear(functional.silu(inner), second, second_bias)
        folded.append(out.to(table.device, table.dtype))
    return torch.cat(folded)

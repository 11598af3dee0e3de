"""Higgs Audio v3 as a vLLM model: a Qwen3 backbone, and a head that is the code embedding."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from talker.frames import RowEmbedding
from talker.model import TalkerModel
from talker.sampler import DelayedRowSampler, RowSampler


class HiggsMultimodalQwen3ForConditionalGeneration(TalkerModel):
    """See TalkerModel."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "tied.embedding.text_embedding.": "model.embed_tokens.",
            "tied.embedding.modality_embeddings.0.embedding.": "code_embedding.",
            "tied.embedding.modality_embeddings.0.model.": None,  # the codec
            "tied.head.": None,  # copies of the embeddings
            "body.": "model.",
        }
    )

    embeds_sums = True

    def make_layers(self, vllm_config: Any, prefix: str, shape: Any) -> None:
        """See TalkerModel."""
        text = self.config.text_config
        self.model = Qwen3Model(
            vllm_config=vllm_config.with_hf_config(text, ["Qwen3ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        self.code_embedding = RowEmbedding(
            shape.num_codebooks, shape.codebook_rows, text.hidden_size
        )

    def make_sampler(self, n_slots: int, shape: Any, rules: dict[str, Any]) -> RowSampler:
        """See TalkerModel."""
        return DelayedRowSampler.from_rules(n_slots, shape, rules)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """See TalkerModel."""
        embedded: Tensor = self.code_embedding(codes)
        return embedded

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """``[B, D]`` -> ``[B, K * V]``."""
        logits: Tensor = self.code_embedding.logits(hidden_states)
        return logits

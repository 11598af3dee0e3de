"""Higgs Audio v3 as a vLLM model: a Qwen3 backbone, and a head that is the code embedding."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from talker.families.higgs_v3 import HiggsV3
from talker.model import TalkerModel


class HiggsMultimodalQwen3ForConditionalGeneration(TalkerModel):
    """See TalkerModel."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "tied.embedding.text_embedding.": "model.embed_tokens.",
            "tied.embedding.modality_embeddings.0.embedding.": "code_embedding.",
            **dict.fromkeys(HiggsV3.ignored),
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

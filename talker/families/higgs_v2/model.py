"""Higgs Audio v2 as a vLLM model: a Llama backbone of DualFFN layers and an audio head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.platforms import current_platform

from talker.families.higgs_v2 import HiggsV2Converted
from talker.families.higgs_v2.dual_ffn import DualFFNLayer, Route
from talker.frames import FRAME_BASE, FrameState
from talker.model import TalkerModel


class HiggsAudioV2ForConditionalGeneration(TalkerModel):
    """See TalkerModel. Rows in a prompt have the id ``audio_out``; one that no reference replaces
    is AUDIO_INIT. Embedding and head of the codes are plain modules, so that they are not
    quantised.
    """

    embeds_sums = True
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            **dict.fromkeys(HiggsV2Converted.ignored),
            "audio_codebook_embeddings.": "code_embedding.",
            "model.embed_audio_tokens.embed_audio_tokens.": "code_embedding.",
            "audio_decoder_proj.audio_lm_head.": "audio_lm_head.",
            "embed_tokens.": "model.embed_tokens.",
            "layers.": "model.layers.",
            "norm.": "model.norm.",
        }
    )

    def make_layers(self, vllm_config: Any, prefix: str, shape: Any) -> None:
        """See TalkerModel."""
        text = self.config.text_config
        self.model = LlamaModel(
            vllm_config=vllm_config.with_hf_config(text, ["LlamaForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
            layer_type=DualFFNLayer,
        )
        max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.route = Route(max_tokens, is_split=current_platform.is_cpu())
        for layer in self.model.layers:
            object.__setattr__(layer, "route", self.route)  # not a child of each layer
        self.audio_lm_head = nn.Linear(
            text.hidden_size, shape.num_codebooks * shape.codebook_rows, bias=False
        )
        self._boc = shape.boc
        self._audio_out = shape.audio_out

    def resolve_rows(self, input_ids: Tensor, frames: FrameState) -> tuple[Tensor, Tensor]:
        """See TalkerModel. Also sets the route."""
        is_placeholder = input_ids == self._audio_out
        is_row = frames.is_frame | is_placeholder
        self.route.set(is_row)
        return is_row, frames.codes.masked_fill(is_placeholder[:, None], self._boc)

    def note_ids(self, input_ids: Tensor) -> None:
        """See TalkerModel. Sets the route."""
        self.route.set(input_ids >= FRAME_BASE)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """``[B, D]`` -> ``[B, K * V]``."""
        logits: Tensor = self.audio_lm_head(hidden_states)
        return logits

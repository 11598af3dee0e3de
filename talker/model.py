"""The talker as a vLLM model: a Qwen3 backbone between frame embeddings and a fused head.

Tensor shapes: N tokens of a step (text ids, frame ids and voice rows, all requests in one
flat list), B rows to sample, K codebooks, V codes per codebook, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    _merge_multimodal_embeddings,
    maybe_prefix,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from talker.attention import AttentionTap
from talker.frames import FrameTable, slots_for
from talker.reference_audio import VoiceDummy, VoiceInfo, VoiceProcessor
from talker.runners import refuse_other_runners
from talker.sampler import RowSampler
from talker.shape import CheckpointError

#: Where the engine's settings sit in vLLM's ``additional_config``.
SETTINGS_KEY = "talkwire"


@MULTIMODAL_REGISTRY.register_processor(VoiceProcessor, info=VoiceInfo, dummy_inputs=VoiceDummy)
class HiggsMultimodalQwen3ForConditionalGeneration(nn.Module, SupportsMultiModal):  # type: ignore[misc]
    """Higgs Audio v3's talker. Raises ValueError under a runner it was not built for.

    Pipeline parallelism is out: the frame table is not shared between stages.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "tied.embedding.text_embedding.": "model.embed_tokens.",
            "tied.embedding.modality_embeddings.0.embedding.": "code_embedding.",
            "tied.embedding.modality_embeddings.0.model.": None,  # the codec
            "tied.head.": None,  # copies of the embeddings
            "body.": "model.",
        }
    )
    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads it from the class)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    code_offsets: Tensor
    embeds: Tensor
    stale: Tensor

    @staticmethod
    def get_model_state_cls() -> type:
        """Model Runner V2 asks here for the class that installs our sampler."""
        from talker.state_v2 import TalkerModelState

        return TalkerModelState

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """No text stands for a voice: prompts are built from ids."""
        return None

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        refuse_other_runners(vllm_config)
        self.config = vllm_config.model_config.hf_config
        text, shape = self.config.text_config, self.config.shape
        if shape.stop_id is None:
            raise CheckpointError("the config names no eos_token_id")
        self.num_codebooks, self.codebook_rows = shape.num_codebooks, shape.codebook_rows
        self.model = Qwen3Model(
            vllm_config=vllm_config.with_hf_config(text, ["Qwen3ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        # replicated on every tensor-parallel rank: 42 MB at 8 x 1026 x 2560 in bf16
        self.code_embedding = nn.Embedding(
            shape.num_codebooks * shape.codebook_rows, text.hidden_size
        )
        offsets = torch.arange(shape.num_codebooks) * shape.codebook_rows
        self.register_buffer("code_offsets", offsets, persistent=False)
        self.table = FrameTable(_frame_slots(vllm_config), shape.num_codebooks)
        self.rows = RowSampler(self.table, shape.codebook_rows, shape.boc, shape.eoc, shape.stop_id)
        # Piecewise CUDA graphs want their input at a fixed address, and the sampler reads
        # the marks of the step after the forward pass.
        most = vllm_config.scheduler_config.max_num_batched_tokens
        embeds = torch.zeros(most, text.hidden_size, dtype=vllm_config.model_config.dtype)
        self.register_buffer("embeds", embeds, persistent=False)
        self.register_buffer("stale", torch.zeros(most, dtype=torch.bool), persistent=False)
        self.tap = self._make_tap(vllm_config, most)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def _make_tap(self, vllm_config: Any, most_tokens: int) -> AttentionTap | None:
        """None where the checkpoint names no alignment heads."""
        heads = (vllm_config.additional_config or {}).get(SETTINGS_KEY, {}).get("alignment_heads")
        if not heads:
            return None
        return AttentionTap(
            self.model.layers,
            [(layer, head) for layer, head in heads],
            most_tokens,
            vllm_config.model_config.dtype,
            get_tensor_model_parallel_rank(),
            vllm_config.parallel_config.tensor_parallel_size,
        )

    def embed_codes(self, codes: Tensor) -> Tensor:
        """``[N, K]`` codes -> ``[N, D]``: the sum of a row's code embeddings."""
        return functional.embedding(
            codes.long() + self.code_offsets, self.code_embedding.weight
        ).sum(-2)

    def get_language_model(self) -> Any:
        """The backbone."""
        return self.model

    def embed_multimodal(self, voice_rows: Any, **_: Any) -> list[Tensor]:
        """Voices' rows, each ``[R, K]`` -> ``[R, D]``."""
        return [self.embed_codes(rows).to(self.embeds.dtype) for rows in voice_rows]

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """``[N]`` ids -> ``[N, D]``, and note in ``stale`` which ids the table has forgotten."""
        frames = self.table.look_up(input_ids)
        self.stale[: input_ids.shape[0]] = frames.is_stale
        text = self.model.embed_input_ids(torch.where(frames.is_frame, 0, input_ids))
        audio = self.embed_codes(frames.codes).to(text.dtype)
        embeds = torch.where(frames.is_frame[:, None], audio, text)
        if multimodal_embeddings:
            # vLLM's own merge needs no wait for the device
            embeds = _merge_multimodal_embeddings(embeds, multimodal_embeddings, is_multimodal)
        return embeds

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Hidden states ``[N, D]`` of a step."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embeds[: input_ids.shape[0]]
            inputs_embeds.copy_(self.embed_input_ids(input_ids))
        return self.model(None, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """``[B, D]`` -> ``[B, K * V]``: the head is the code embedding."""
        return functional.linear(hidden_states, self.code_embedding.weight)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """Load a checkpoint's weights; returns the names of what was loaded."""
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)


def _frame_slots(vllm_config: Any) -> int:
    settings = (vllm_config.additional_config or {}).get(SETTINGS_KEY, {})
    scheduler = vllm_config.scheduler_config
    longest = vllm_config.model_config.max_model_len
    return int(settings.get("frame_slots") or slots_for(scheduler.max_num_seqs, longest))

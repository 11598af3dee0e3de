"""The base of all talkers as vLLM models: a backbone between frame embeddings and an audio head.

Tensor shapes: N tokens of a step (text ids, frame ids and reference rows, all requests in one
flat list), B rows to sample, K codebooks, V codes per codebook, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    _merge_multimodal_embeddings,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.platforms import current_platform

from talker.alignment import NEAR, AlignmentHead
from talker.attention import AttentionTap
from talker.cpu_layers import allow_amx, use_cpu_kernels
from talker.frames import FrameState, FrameTable, RowEmbedding, slots_for
from talker.reference_audio import VoiceDummy, VoiceInfo, VoiceProcessor
from talker.sampler import DelayedRowSampler, RowSampler
from talker.settings import SETTINGS_KEY
from talker.shape import CheckpointError
from talker.vllm_setup import refuse_other_runners


@MULTIMODAL_REGISTRY.register_processor(VoiceProcessor, info=VoiceInfo, dummy_inputs=VoiceDummy)
class TalkerModel(nn.Module, SupportsMultiModal):  # type: ignore[misc]  # untyped base
    """Base of the families' models. Raises ValueError under a runner it was not built for, and
    CheckpointError without a stop id.

    A family sets ``hf_to_vllm_mapper`` and makes the backbone. It overrides the sampler if its rows
    are not in the delay pattern, and the embedding or the head if they are not the plain sum of the
    codes' embeddings. The runner adapters use ``rows``, ``stale``, ``tap``, ``num_codebooks`` and
    ``codebook_rows``.

    Pipeline parallelism is not supported, since the frame table is not shared between stages.
    """

    hf_to_vllm_mapper: WeightsMapper
    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads it from the class)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    #: Whether a row's embedding is the plain sum of its codes' in ``code_embedding``, and beyond
    #: prompts only frame ids stand for rows. One kernel can then embed a step
    #: (``talker.step_kernels``).
    embeds_sums = False

    #: The backbone, one of vLLM's classes.
    model: Any
    #: Embeddings of a step's positions.
    embeds: Tensor
    #: Marks positions of a step whose frame is no longer in the table.
    stale: Tensor

    @staticmethod
    def get_model_state_cls() -> type:
        """Return the class with which Model Runner V2 installs our sampler."""
        from talker.state_v2 import TalkerModelState

        return TalkerModelState

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """Return None: prompts are built from ids, so no text stands for a voice."""
        return None

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        refuse_other_runners(vllm_config)
        self.config = vllm_config.model_config.hf_config
        text = self.config.text_config
        shape = self.config.shape
        if shape.stop_id is None:
            raise CheckpointError("the config names no eos_token_id")
        self.num_codebooks = shape.num_codebooks
        self.codebook_rows = shape.codebook_rows
        settings = (vllm_config.additional_config or {}).get(SETTINGS_KEY, {})
        # Piecewise CUDA graphs need their input at a fixed address, and the sampler reads the stale
        # marks after the forward pass.
        max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        embeds = torch.zeros(max_tokens, text.hidden_size, dtype=vllm_config.model_config.dtype)
        self.register_buffer("embeds", embeds, persistent=False)
        self.register_buffer("stale", torch.zeros(max_tokens, dtype=torch.bool), persistent=False)
        if current_platform.is_cpu():
            allow_amx()
            use_cpu_kernels()
        self.code_embedding = RowEmbedding(
            shape.num_codebooks, shape.codebook_rows, text.hidden_size
        )
        self.make_layers(vllm_config, prefix, shape)
        #: Draws the rows.
        self.rows = self.make_sampler(
            _frame_slots(vllm_config, settings), shape, settings.get("sampler_rules") or {}
        )
        #: The codes of frames, by frame id.
        self.table: FrameTable = self.rows.table
        #: Records the attention that word timings need; None without alignment heads.
        self.tap = self._make_tap(vllm_config, settings, max_tokens)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def make_layers(self, vllm_config: Any, prefix: str, shape: Any) -> None:
        """Make ``self.model`` and the family's other layers; ``shape`` is the family's."""
        raise NotImplementedError

    def make_sampler(self, n_slots: int, shape: Any, rules: dict[str, Any]) -> RowSampler:
        """Make the sampler, with a frame table of ``n_slots``; ``rules`` as in
        ``Family.sampler_rules``.
        """
        return DelayedRowSampler.from_rules(n_slots, shape, rules)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Embed a prompt's ids ``[N]`` as ``[N, D]``."""
        embedded: Tensor = self.model.embed_input_ids(ids)
        return embedded

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Embed rows ``[N, K]`` as ``[N, D]``."""
        embedded: Tensor = self.code_embedding(codes)
        return embedded

    def embed_frames(self, codes: Tensor, frames: FrameState) -> Tensor:
        """Embed the rows ``[N, K]`` that ids stand for as ``[N, D]``; ``frames`` has the sampler's
        states beside them.
        """
        return self.embed_codes(codes)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Turn hidden states ``[B, D]`` into the sampler's logits: ``[B, K * V]``, or a family's
        own shape.
        """
        return self.code_embedding.logits(hidden_states)

    def resolve_rows(self, input_ids: Tensor, frames: FrameState) -> tuple[Tensor, Tensor]:
        """Return which of the ids ``[N]`` stand for rows, and the rows' codes ``[N, K]``."""
        return frames.is_frame, frames.codes

    def note_ids(self, input_ids: Tensor) -> None:
        """Learn the ids ``[N]`` of a step without prompts, which are not passed to
        ``embed_input_ids`` since a kernel embeds them.
        """

    def get_language_model(self) -> Any:
        """The backbone."""
        return self.model

    def embed_multimodal(self, voice_rows: Any, **_: Any) -> list[Tensor]:
        """Embed voices' rows, each ``[R, K]`` as ``[R, D]``."""
        return [self.embed_codes(rows).to(self.embeds.dtype) for rows in voice_rows]

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Embed ids ``[N]`` as ``[N, D]``, and mark in ``stale`` the ids that the table has
        forgotten.
        """
        frames = self.table.look_up(input_ids)
        self.stale[: input_ids.shape[0]] = frames.is_stale
        is_row, codes = self.resolve_rows(input_ids, frames)
        text = self.embed_text(torch.where(is_row, 0, input_ids))
        audio = self.embed_frames(codes, frames).to(text.dtype)
        embeds = torch.where(is_row[:, None], audio, text)
        if multimodal_embeddings:
            # unlike vLLM's own merge, this does not wait for the device
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

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """Load a checkpoint's weights; returns the names of those loaded."""
        loaded = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        for module in self.modules():
            if isinstance(module, RowEmbedding):
                module.find_silent_rows()
        return loaded

    def _make_tap(
        self, vllm_config: Any, settings: Mapping[str, Any], max_tokens: int
    ) -> AttentionTap | None:
        """Make the tap. Returns None if the checkpoint has no alignment heads."""
        heads = [AlignmentHead(*head) for head in settings.get("alignment_heads") or ()]
        if not heads:
            return None
        return AttentionTap(
            self.model.layers,
            heads,
            settings.get("alignment_near", NEAR),
            max_tokens,
            vllm_config.model_config.dtype,
            get_tensor_model_parallel_rank(),
            vllm_config.parallel_config.tensor_parallel_size,
        )


def _frame_slots(vllm_config: Any, settings: dict[str, Any]) -> int:
    scheduler = vllm_config.scheduler_config
    longest = vllm_config.model_config.max_model_len
    return int(settings.get("frame_slots") or slots_for(scheduler.max_num_seqs, longest))

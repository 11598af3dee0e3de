"""Reference rows as vLLM's "audio" modality: those of a voice or of an earlier utterance.

Requests reach the engine as finished multimodal inputs (``clips_input``), so vLLM's prompt
rewriting is not used. The processor classes only satisfy its registry and describe the worst case
for memory profiling. The multimodal hash is the rows' digest, so the prefix cache serves a voice's
rows to all requests with that voice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.parse import MultiModalDataItems
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ProcessorInputs,
)

from streaming.spec import Codes, SpeakerVector
from talker.prompts import MAX_CLIPS, MAX_EARLIER_ROWS

_MODALITY = "audio"
_FIELD = "voice_rows"


def clips_input(ids: list[int], clips: Sequence[tuple[Codes | SpeakerVector, int]]) -> Any:
    """Build a prompt with clips in it, in order: each is rows ``[R, K]`` int16, still delayed, or
    the vector of a speaker ``[1, D]`` float32, and its position in the prompt.
    """
    tensors = [torch.from_numpy(np.array(rows, order="C")) for rows, _ in clips]
    return mm_input(
        prompt_token_ids=ids,
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(
            BatchFeature({_FIELD: tensors}),
            {_FIELD: MultiModalFieldConfig.batched(_MODALITY)},
        ),
        mm_hashes={_MODALITY: [_digest(tensor) for tensor in tensors]},
        mm_placeholders={
            _MODALITY: [PlaceholderRange(offset=at, length=len(rows)) for rows, at in clips]
        },
    )


def _digest(rows: torch.Tensor) -> str:
    return hashlib.blake2b(rows.numpy().tobytes(), digest_size=16).hexdigest()


class VoiceInfo(BaseProcessingInfo):  # type: ignore[misc]  # untyped base
    """Limits of voices and an earlier utterance per prompt, each of bounded length."""

    def get_supported_mm_limits(self) -> dict[str, int]:
        """Return the maximum number of clips, MAX_CLIPS."""
        return {_MODALITY: MAX_CLIPS}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Any) -> dict[str, int]:
        """Return the length of the longest voice, in positions."""
        return {_MODALITY: longest_voice(seq_len)}


class VoiceDummy(BaseDummyInputsBuilder[VoiceInfo]):  # type: ignore[misc]  # untyped base
    """Required by the registry; VoiceProcessor makes the worst case itself."""

    def get_dummy_text(self, mm_counts: Any) -> str:
        """Return no text, since prompts are ids."""
        return ""

    def get_dummy_mm_data(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return no raw audio."""
        return {}


class VoiceProcessor(BaseMultiModalProcessor[VoiceInfo]):  # type: ignore[misc]  # untyped base
    """Builds the input for memory profiling, and refuses everything else."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {_FIELD: MultiModalFieldConfig.batched(_MODALITY)}

    def _get_prompt_updates(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def get_dummy_inputs(self, seq_len: int, *_: Any, **__: Any) -> ProcessorInputs:
        """Return the worst case for memory profiling: a prompt that consists of a voice."""
        return ProcessorInputs(
            prompt=[0] * longest_voice(seq_len), mm_data_items=MultiModalDataItems({})
        )

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        """Return the input for profiling; raw audio in a request is an error."""
        if len(inputs.mm_data_items):
            raise NotImplementedError("build requests with talker.reference_audio.clips_input")
        num_codebooks = self.info.get_hf_config().shape.num_codebooks
        rows = np.zeros((len(inputs.prompt), num_codebooks), np.int16)
        return clips_input(list(inputs.prompt), [(rows, 0)])


def longest_voice(seq_len: int) -> int:
    """Maximum length in positions of a voice or an earlier utterance in a prompt of ``seq_len``."""
    return max(1, min(MAX_EARLIER_ROWS, seq_len - 8))

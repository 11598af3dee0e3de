"""Higgs Audio v3 (``bosonai/higgs-audio-v3-tts-4b``): a Qwen3 backbone and a tied audio head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talker.families.backbone import layer_weights, read_backbone, rope_theta
from talker.families.delayed import (
    SPECIAL_CODES,
    DelayedFamily,
    DelayedShape,
    check_special_codes,
)
from talker.families.family import Licence, SamplingDefaults, WeightShapes
from talker.families.higgs_v3.prompts import HiggsV3PromptBuilder
from talker.shape import CheckpointError, TalkerShape, positive_int, section, token_id

#: The published checkpoint was trained with this and leaves ``rope_theta`` null.
_ROPE_THETA = 1_000_000.0
#: Of Qwen3's config class, which does not divide the hidden size among the heads.
_HEAD_DIM = 128
_TEXT_EMBEDDING = "tied.embedding.text_embedding.weight"
_CODE_EMBEDDING = "tied.embedding.modality_embeddings.0.embedding.weight"


class HiggsV3(DelayedFamily):
    """See Family. Follows the layout of ``bosonai/higgs-audio-v3-tts-4b``."""

    model_type = "higgs_multimodal_qwen3"
    title = "Higgs Audio v3"
    example = "bosonai/higgs-audio-v3-tts-4b"
    model_class = "talker.families.higgs_v3.model:HiggsMultimodalQwen3ForConditionalGeneration"
    architectures = ("HiggsMultimodalQwen3ForConditionalGeneration",)
    #: The bundled codec, which the codec worker reads, and copies of the tied embeddings.
    ignored = ("tied.embedding.modality_embeddings.0.model.", "tied.head.")
    builder = HiggsV3PromptBuilder
    licence = Licence(
        "Boson Higgs Audio licence",
        "research and non-commercial use; production, hosted APIs and products need a "
        "commercial licence from Boson AI",
    )
    has_continuity = True
    #: As in vLLM-Omni's pipeline.
    defaults = SamplingDefaults(temperature=1.0, top_p=0.95, top_k=50, max_frames=2048)

    def read_shape(self, config: Mapping[str, Any]) -> DelayedShape:
        """See Family."""
        audio = section(config, "audio_encoder_config")
        if not audio.get("tie_word_embeddings", True):
            raise CheckpointError(
                "audio_encoder_config.tie_word_embeddings: only tied heads are known"
            )
        text = section(config, "text_config")
        if text.get("model_type", "qwen3") != "qwen3":
            raise CheckpointError(f"text_config.model_type is {text['model_type']!r}, not 'qwen3'")
        rows = positive_int(audio, "vocab_size", "audio_encoder_config.")
        boc, eoc = config.get("audio_stream_bos_id"), config.get("audio_stream_eos_id")
        stop = token_id(config, "eos_token_id")
        shape = DelayedShape(
            num_codebooks=positive_int(audio, "num_codebooks", "audio_encoder_config."),
            codebook_size=rows - SPECIAL_CODES,
            codebook_rows=rows,
            stop_id=token_id(text, "eos_token_id", "text_config.") if stop is None else stop,
            backbone=read_backbone(
                {"head_dim": _HEAD_DIM, **text},
                "text_config.",
                max_positions=positive_int(text, "max_position_embeddings"),
                theta=_ROPE_THETA,
                norm_eps=1e-6,
            ),
            boc=rows - 2 if boc is None else boc,
            eoc=rows - 1 if eoc is None else eoc,
        )
        check_special_codes(shape)
        return shape

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain Qwen3 config, with the rotary base filled in if the checkpoint leaves it
        null.
        """
        text = dict(config.get("text_config") or {})
        text.pop("architectures", None)
        theta = rope_theta(text, _ROPE_THETA)
        parameters = {"rope_type": "default"} | (text.get("rope_parameters") or {})
        return {
            "model_type": "qwen3",
            **text,
            "rope_theta": theta,
            "rope_parameters": {**parameters, "rope_theta": theta},
        }

    def expected_weights(self, shape: TalkerShape) -> WeightShapes:
        """See Family."""
        body = shape.backbone
        rows = shape.num_codebooks * shape.codebook_rows
        return {
            _TEXT_EMBEDDING: (body.vocab_size, body.hidden_size),
            _CODE_EMBEDDING: (rows, body.hidden_size),
            "body.norm.weight": (body.hidden_size,),
            **layer_weights("body.", body, qk_norms=True),
        }

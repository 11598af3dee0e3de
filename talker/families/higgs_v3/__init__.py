"""Higgs Audio v3 (``bosonai/higgs-audio-v3-tts-4b``): a Qwen3 backbone and a tied audio head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talker.families.delayed import (
    SPECIAL_CODES,
    DelayedShape,
    check_special_codes,
    end_codebooks,
)
from talker.families.family import Family, Licence, SamplingDefaults, WeightShapes
from talker.families.higgs_v3.prompts import HiggsV3PromptBuilder
from talker.shape import (
    BackboneShape,
    CheckpointError,
    TalkerShape,
    positive_int,
    section,
    stop_id,
)

#: The published checkpoint leaves ``rope_theta`` null and was trained with this.
_ROPE_THETA = 1_000_000.0
_TEXT_EMBEDDING = "tied.embedding.text_embedding.weight"
_CODE_EMBEDDING = "tied.embedding.modality_embeddings.0.embedding.weight"
#: The bundled codec, which the codec worker reads, and copies of the tied embeddings.
_IGNORED = ("tied.embedding.modality_embeddings.0.model.", "tied.head.")


class HiggsV3(Family):
    """See Family. Facts: the layout of ``bosonai/higgs-audio-v3-tts-4b``."""

    model_type = "higgs_multimodal_qwen3"
    title = "Higgs Audio v3"
    example = "bosonai/higgs-audio-v3-tts-4b"
    model_class = "talker.families.higgs_v3.model:HiggsMultimodalQwen3ForConditionalGeneration"
    architectures = ("HiggsMultimodalQwen3ForConditionalGeneration",)
    builder = HiggsV3PromptBuilder
    licence = Licence(
        "Boson Higgs Audio licence",
        "research and non-commercial use; production, hosted APIs and products need a "
        "commercial licence from Boson AI",
    )
    has_continuity = True
    #: Published with vLLM-Omni's pipeline.
    defaults = SamplingDefaults(temperature=1.0, top_p=0.95, top_k=50, max_frames=2048)

    def read_shape(self, config: Mapping[str, Any]) -> DelayedShape:
        """See Family."""
        audio = section(config, "audio_encoder_config")
        if not audio.get("tie_word_embeddings", True):
            raise CheckpointError(
                "audio_encoder_config.tie_word_embeddings: only tied heads are known"
            )
        rows = positive_int(audio, "vocab_size", "audio_encoder_config.")
        boc, eoc = config.get("audio_stream_bos_id"), config.get("audio_stream_eos_id")
        shape = DelayedShape(
            num_codebooks=positive_int(audio, "num_codebooks", "audio_encoder_config."),
            codebook_size=rows - SPECIAL_CODES,
            codebook_rows=rows,
            stop_id=stop_id(config),
            backbone=_read_backbone(section(config, "text_config")),
            boc=rows - 2 if boc is None else boc,
            eoc=rows - 1 if eoc is None else eoc,
        )
        check_special_codes(shape)
        return shape

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A plain Qwen3, with the rotary base filled in where the checkpoint leaves it null."""
        text = dict(config.get("text_config") or {})
        text.pop("architectures", None)
        theta = _rope_theta(text)
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
        expected: WeightShapes = {
            _TEXT_EMBEDDING: (body.vocab_size, body.hidden_size),
            _CODE_EMBEDDING: (rows, body.hidden_size),
            "body.norm.weight": (body.hidden_size,),
        }
        for layer in range(body.num_layers):
            for name, size in _layer_weights(body).items():
                expected[f"body.layers.{layer}.{name}.weight"] = size
        return expected

    def canonical_name(self, name: str) -> str | None:
        """See Family."""
        return None if name.startswith(_IGNORED) else name

    def sampler_rules(self, generation: Mapping[str, Any], shape: TalkerShape) -> dict[str, Any]:
        """Any codebook may say that the speech is over."""
        return {"end_codebooks": end_codebooks(generation, shape, shape.num_codebooks)}


def _rope_theta(text: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, wherever this version of the format keeps it."""
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return float(text.get("rope_theta") or nested.get("rope_theta") or _ROPE_THETA)


def _read_backbone(text: Mapping[str, Any]) -> BackboneShape:
    if text.get("model_type", "qwen3") != "qwen3":
        raise CheckpointError(f"text_config.model_type is {text['model_type']!r}, not 'qwen3'")
    if text.get("attention_bias"):
        raise CheckpointError("text_config.attention_bias: Qwen3 talkers have none")
    heads, hidden = (positive_int(text, name) for name in ("num_attention_heads", "hidden_size"))
    return BackboneShape(
        vocab_size=positive_int(text, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive_int(text, "intermediate_size"),
        num_layers=positive_int(text, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=positive_int(text, "num_key_value_heads"),
        head_dim=positive_int(text, "head_dim") if text.get("head_dim") else hidden // heads,
        max_positions=positive_int(text, "max_position_embeddings"),
        rope_theta=_rope_theta(text),
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
    )


def _layer_weights(body: BackboneShape) -> WeightShapes:
    hidden, inner = body.hidden_size, body.intermediate_size
    queries, keys = body.num_heads * body.head_dim, body.num_kv_heads * body.head_dim
    return {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (body.head_dim,),
        "self_attn.k_norm": (body.head_dim,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }

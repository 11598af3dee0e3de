"""What a talker's config.json says, read without torch or transformers.

The gateway, the plugin inside vLLM and the weight check all resolve ids and sizes here, so
that none of them can disagree. Facts: the layout of ``bosonai/higgs-audio-v3-tts-4b``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODEL_TYPE = "higgs_multimodal_qwen3"
ARCHITECTURE = "HiggsMultimodalQwen3ForConditionalGeneration"
#: The published checkpoint leaves ``rope_theta`` null and was trained with this.
FAMILY_ROPE_THETA = 1_000_000.0
#: BOC and EOC come after the real codes of every codebook.
SPECIAL_CODES = 2


class CheckpointError(Exception):
    """A checkpoint that cannot be served. The text names what is wrong, for operators."""


@dataclass(frozen=True, slots=True)
class BackboneShape:
    """The Qwen3 backbone, as far as weights and positions need it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(frozen=True, slots=True)
class TalkerShape:
    """Codebooks, special codes, the stop id and the backbone.

    ``codebook_size`` counts real codes; a codebook has ``codebook_rows`` rows in the fused
    embedding, the special codes ``boc`` and ``eoc`` among them. ``stop_id`` is the text id
    that ends a generation (``eos_token_id`` at the top of config.json); None when only the
    tokenizer knows it.
    """

    num_codebooks: int
    codebook_rows: int
    boc: int
    eoc: int
    stop_id: int | None
    backbone: BackboneShape

    @property
    def codebook_size(self) -> int:
        """How many real codes a codebook has."""
        return self.codebook_rows - SPECIAL_CODES


def read_shape(config: Mapping[str, Any]) -> TalkerShape:
    """Read a parsed config.json. Raises CheckpointError."""
    if config.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"model_type is {config.get('model_type')!r}, not {MODEL_TYPE!r}")
    audio = _section(config, "audio_encoder_config")
    if not audio.get("tie_word_embeddings", True):
        raise CheckpointError("audio_encoder_config.tie_word_embeddings: only tied heads are known")
    rows = _size(audio, "vocab_size", "audio_encoder_config.")
    boc, eoc = config.get("audio_stream_bos_id"), config.get("audio_stream_eos_id")
    shape = TalkerShape(
        num_codebooks=_size(audio, "num_codebooks", "audio_encoder_config."),
        codebook_rows=rows,
        boc=rows - 2 if boc is None else boc,
        eoc=rows - 1 if eoc is None else eoc,
        stop_id=stop_id(config),
        backbone=_read_backbone(_section(config, "text_config")),
    )
    if {shape.boc, shape.eoc} != {rows - 2, rows - 1}:
        raise CheckpointError(
            f"special codes {shape.boc} and {shape.eoc} are not the last two of {rows}"
        )
    return shape


def rope_theta(text: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, wherever this version of the format keeps it."""
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = text.get("rope_theta") or nested.get("rope_theta") or FAMILY_ROPE_THETA
    return float(theta)


def stop_id(config: Mapping[str, Any]) -> int | None:
    """``eos_token_id``: at the top level, or else in ``text_config``; the first of a list."""
    for section in (config, config.get("text_config") or {}):
        value = section.get("eos_token_id")
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int):
            return value
    return None


def _read_backbone(text: Mapping[str, Any]) -> BackboneShape:
    if text.get("model_type", "qwen3") != "qwen3":
        raise CheckpointError(f"text_config.model_type is {text['model_type']!r}, not 'qwen3'")
    if text.get("attention_bias"):
        raise CheckpointError("text_config.attention_bias: Qwen3 talkers have none")
    heads, hidden = (_size(text, name) for name in ("num_attention_heads", "hidden_size"))
    return BackboneShape(
        vocab_size=_size(text, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(text, "intermediate_size"),
        num_layers=_size(text, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_size(text, "num_key_value_heads"),
        head_dim=_size(text, "head_dim") if text.get("head_dim") else hidden // heads,
        max_positions=_size(text, "max_position_embeddings"),
        rope_theta=rope_theta(text),
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json has no {name}")
    return section


def _size(section: Mapping[str, Any], name: str, prefix: str = "text_config.") -> int:
    value = section.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{prefix}{name} must be a positive integer, not {value!r}")
    return value

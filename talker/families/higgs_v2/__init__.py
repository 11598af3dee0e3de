"""Higgs Audio v2 (``bosonai/higgs-audio-v2-generation-3B-base``): a Llama backbone whose layers
have separate MLPs and norms for text and for audio, and an audio head of its own.

It is published in two formats that hold the same model: boson-ai's own, and transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from talker.families.backbone import layer_weights, read_backbone, rope_theta
from talker.families.delayed import SPECIAL_CODES, DelayedFamily, check_special_codes
from talker.families.family import Licence, SamplingDefaults, WeightShapes
from talker.families.higgs_v2.prompts import HiggsV2PromptBuilder, HiggsV2Shape
from talker.shape import (
    BackboneShape,
    CheckpointError,
    TalkerShape,
    positive_int,
    section,
    token_id,
)

#: Positions that upstream trains and serves; the default in transformers' format is 2,048.
_POSITIONS = 8192
_ROPE_THETA = 500_000.0
#: The model's code has other values too, but no published checkpoint uses them.
_ONLY_KNOWN = {
    "audio_adapter_type": "dual_ffn_fast_forward",
    "use_audio_out_self_attention": 0,
    "use_audio_out_embed_projector": False,
    "audio_embed_avg": False,
    "audio_decoder_proj_num_layers": 0,
    "use_rq_transformer": False,
    "use_delay_pattern": True,
    "encode_audio_in_tokens": True,
    "encode_whisper_embed": False,
}


class HiggsV2(DelayedFamily):
    """See Family. boson-ai's own format."""

    model_type = "higgs_audio"
    title = "Higgs Audio v2"
    example = "bosonai/higgs-audio-v2-generation-3B-base"
    model_class = "talker.families.higgs_v2.model:HiggsAudioV2ForConditionalGeneration"
    architectures: ClassVar[tuple[str, ...]] = (
        "HiggsAudioModel",
        "HiggsAudioForConditionalGeneration",
    )
    builder = HiggsV2PromptBuilder
    licence = Licence(
        "Boson Higgs Audio 2 community licence",
        "the weights have a licence of Boson AI's own: read it before you serve them to others",
    )
    #: Upstream's scripts differ; top-p without a top-k would need a full sort.
    defaults = SamplingDefaults(
        temperature=0.7,
        top_p=0.95,
        top_k=50,
        max_frames=2048,
        ras_win_len=7,
        ras_max_repeat=2,
        ras_longest=16,
    )
    has_continuity = True
    #: Prefix of the backbone's names in the checkpoint.
    _prefix = ""
    _codes = "audio_codebook_embeddings.weight"
    #: The text head is never sampled from, and no audio is encoded.
    ignored: ClassVar[tuple[str, ...]] = (
        "audio_decoder_proj.text_lm_head.", "text_lm_head.", "audio_codebook_weights",
        "audio_tower.", "audio_encoder_proj.",
    )  # fmt: skip

    def read_shape(self, config: Mapping[str, Any]) -> HiggsV2Shape:
        """See Family."""
        for name, known in _ONLY_KNOWN.items():
            if config.get(name, known) != known:
                raise CheckpointError(f"{name} is {config[name]!r}; only {known!r} is known")
        text = section(config, "text_config")
        if text.get("model_type", "llama") != "llama":
            raise CheckpointError(f"text_config.model_type is {text['model_type']!r}, not 'llama'")
        body = _read_backbone(text, "text_config.")
        dual = config.get("audio_dual_ffn_layers")
        if dual is not None and dual != list(range(body.num_layers)):
            raise CheckpointError(f"audio_dual_ffn_layers is {dual}, not all of them")
        size = positive_int(config, "audio_codebook_size", "")
        return _shape(
            config,
            body,
            num_codebooks=positive_int(config, "audio_num_codebooks", ""),
            codebook_size=size,
            audio_out=positive_int(config, "audio_out_token_idx", ""),
        )

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A plain Llama."""
        return _llama(dict(config.get("text_config") or {}))

    def expected_weights(self, shape: TalkerShape) -> WeightShapes:
        """See Family."""
        body = shape.backbone
        at = self._prefix
        rows = (shape.num_codebooks * shape.codebook_rows, body.hidden_size)
        return {
            f"{at}embed_tokens.weight": (body.vocab_size, body.hidden_size),
            f"{at}norm.weight": (body.hidden_size,),
            self._codes: rows,
            "audio_lm_head.weight": rows,
            **layer_weights(at, body, kinds=("", "audio_")),
        }

    def canonical_name(self, name: str) -> str | None:
        """See Family. In either format the audio head may have two names."""
        if name.startswith(self.ignored) or ".rotary_emb." in name:
            return None
        return name.removeprefix("audio_decoder_proj.")


class HiggsV2Converted(HiggsV2):
    """See Family. transformers' format: flat, and ``codebook_size`` counts the special codes."""

    model_type = "higgs_audio_v2"
    example = "a conversion of it by transformers"
    architectures = ("HiggsAudioV2ForConditionalGeneration",)
    _prefix = "model."
    _codes = "model.embed_audio_tokens.embed_audio_tokens.weight"
    ignored = (*HiggsV2.ignored, "model.embed_audio_tokens.audio_tokens_offsets")

    def read_shape(self, config: Mapping[str, Any]) -> HiggsV2Shape:
        """See Family."""
        return _shape(
            config,
            _read_backbone(config, ""),
            num_codebooks=positive_int(config, "num_codebooks", ""),
            codebook_size=positive_int(config, "codebook_size", "") - SPECIAL_CODES,
            audio_out=positive_int(config, "audio_token_id", ""),
        )

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See Family."""
        kept = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
            "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
            "attention_bias", "mlp_bias",
        )  # fmt: skip
        return _llama({name: config[name] for name in kept if name in config})


def _shape(
    config: Mapping[str, Any],
    body: BackboneShape,
    *,
    num_codebooks: int,
    codebook_size: int,
    audio_out: int,
) -> HiggsV2Shape:
    rows = codebook_size + SPECIAL_CODES
    stop = token_id(config, "eos_token_id")
    shape = HiggsV2Shape(
        num_codebooks=num_codebooks,
        codebook_size=codebook_size,
        codebook_rows=rows,
        stop_id=token_id(config, "audio_eos_token_id") if stop is None else stop,
        backbone=body,
        boc=config.get("audio_stream_bos_id", rows - 2),
        eoc=config.get("audio_stream_eos_id", rows - 1),
        audio_out=audio_out,
    )
    check_special_codes(shape)
    return shape


def _read_backbone(text: Mapping[str, Any], prefix: str) -> BackboneShape:
    longest = _longest(text)
    return read_backbone(text, prefix, max_positions=longest, theta=_ROPE_THETA, norm_eps=1e-5)


def _longest(text: Mapping[str, Any]) -> int:
    name = "max_position_embeddings"
    return max(_POSITIONS, positive_int(text, name, "") if text.get(name) else 0)


def _llama(text: dict[str, Any]) -> dict[str, Any]:
    """Arguments of transformers' LlamaConfig."""
    text.pop("architectures", None)
    theta = rope_theta(text, _ROPE_THETA)
    scaling = text.pop("rope_parameters", None) or text.get("rope_scaling") or {}
    given = {name: value for name, value in scaling.items() if value is not None}
    for name in ("rope_scaling", "rope_theta"):
        text.pop(name, None)
    return {
        **text,
        "model_type": "llama",
        "max_position_embeddings": _longest(text),
        "rope_parameters": {"rope_type": "default", **given, "rope_theta": theta},
        # of the text head, which is not loaded
        "tie_word_embeddings": True,
    }

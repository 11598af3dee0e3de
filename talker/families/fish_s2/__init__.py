"""Fish Speech S2 Pro (``fishaudio/s2-pro``). A slow AR with Qwen3's architecture draws a semantic
code per frame, and a fast AR the nine residual ones in the same step. There is no delay: a row is a
frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from talker.families.backbone import qwen3_config
from talker.families.family import Family, Licence, SamplingDefaults, WeightShapes
from talker.families.fish_s2.prompts import FishS2PromptBuilder
from talker.row_ceiling import RowCeiling
from talker.shape import (
    MAX_LAYERS,
    MAX_SIZE,
    BackboneShape,
    CheckpointError,
    TalkerShape,
    positive_int,
    positive_number,
    section,
    token_id,
)

#: Number of codes in the codec's residual codebooks; the fast head has more rows.
_RESIDUAL_CODES = 1024
#: Values of the published model, the only ones that its layers here support.
_ONLY_KNOWN = {
    "text_config": {
        "attention_qk_norm": True, "attention_qkv_bias": False, "attention_o_bias": False,
        "tie_word_embeddings": True,
    },
    "audio_decoder_config": {
        "attention_qk_norm": False, "attention_qkv_bias": False, "attention_o_bias": False,
    },
}  # fmt: skip
#: Prefix of the slow AR's names in the checkpoint.
SLOW = "text_model.model."
#: Prefix of the fast AR's names.
FAST = "audio_decoder."


@dataclass(frozen=True, slots=True, kw_only=True)
class FishS2Shape(TalkerShape):
    """Codebook 0 is semantic; its code ``c`` is the text id ``semantic_begin + c``. ``fast`` is the
    fast AR, and the residual codebooks have ``residual_size`` codes.
    """

    semantic_begin: int
    residual_size: int
    fast: BackboneShape

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """See TalkerShape."""
        return (self.codebook_size, *[self.residual_size] * (self.num_codebooks - 1))


class FishS2(Family):
    """See Family."""

    model_type = "fish_qwen3_omni"
    title = "Fish Speech S2 Pro"
    example = "fishaudio/s2-pro"
    model_class = "talker.families.fish_s2.model:FishS2ForConditionalGeneration"
    # config.json need not name one
    architectures = ("FishQwen3OmniForCausalLM", "FishQwen3OmniForConditionalGeneration")
    builder = FishS2PromptBuilder
    licence = Licence(
        "Fish Audio Research License",
        "research and non-commercial use only; any commercial use, a hosted API or a business's "
        "own among them, needs a written licence (business@fish.audio); whoever offers a service "
        'with it passes the licence on, keeps its notice and shows "Built with Fish Audio"',
    )
    #: Those of upstream's API. Repetition-aware sampling applies to the semantic codes only.
    defaults = SamplingDefaults(
        temperature=0.8,
        top_p=0.8,
        top_k=30,
        max_frames=2048,
        ras_win_len=10,
        ras_max_repeat=1,
        ras_longest=16,
    )
    has_continuity = True
    frames_per_s = 44_100 / 2048
    row_ceiling = RowCeiling.of_slow_speech(frames_per_s)
    # its fused matrices are split and reordered, and scales would have to follow
    loads_quantised = False

    def read_shape(self, config: Mapping[str, Any]) -> FishS2Shape:
        """See Family."""
        for name, known in _ONLY_KNOWN.items():
            part = section(config, name)
            for key, value in known.items():
                if part.get(key, value) != value:
                    raise CheckpointError(f"{name}.{key} is {part[key]!r}; only {value} is known")
        text, audio = config["text_config"], config["audio_decoder_config"]
        body, fast = _read_part(text, "text_config."), _read_part(audio, "audio_decoder_config.")
        # upstream runs both transformers with the slow one's, also in training
        fast = replace(fast, rope_theta=body.rope_theta, rms_norm_eps=body.rms_norm_eps)
        if fast.hidden_size != body.hidden_size:
            raise CheckpointError("audio_decoder_config.dim: only text_config's is known")
        begin = positive_int(config, "semantic_start_token_id", "")
        end = positive_int(config, "semantic_end_token_id", "")
        if end - begin + 1 != fast.vocab_size or end >= body.vocab_size:
            raise CheckpointError(
                f"semantic ids {begin} to {end} are not one for each of {fast.vocab_size} codes"
            )
        return FishS2Shape(
            num_codebooks=positive_int(audio, "num_codebooks", "audio_decoder_config."),
            codebook_size=fast.vocab_size,
            codebook_rows=fast.vocab_size,
            stop_id=token_id(config, "eos_token_id"),
            backbone=body,
            is_delayed=False,
            semantic_begin=begin,
            residual_size=min(_RESIDUAL_CODES, fast.vocab_size),
            fast=fast,
        )

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain Qwen3 config; ``talker.families.fish_s2.model`` reorders the weights for
        it.
        """
        text = config.get("text_config")
        if not text:
            return {"model_type": "qwen3"}
        body = _read_part(text, "text_config.")
        return qwen3_config(body, is_tied=True)

    def num_states(self, shape: TalkerShape) -> int:
        """See Family."""
        return 0

    def expected_weights(self, shape: TalkerShape) -> WeightShapes:
        """See Family."""
        assert isinstance(shape, FishS2Shape)
        fast = shape.fast
        width = shape.backbone.hidden_size
        expected = _part_weights(SLOW, shape.backbone, qk_norms=True)
        expected |= _part_weights(FAST, fast, qk_norms=False)
        expected[f"{FAST}output.weight"] = (fast.vocab_size, fast.hidden_size)
        rows = shape.num_codebooks * shape.codebook_rows
        expected[f"{FAST}codebook_embeddings.weight"] = (rows, width)
        return expected

    def canonical_name(self, name: str) -> str | None:
        """See Family."""
        return name if name.startswith((SLOW, FAST)) else None


def _read_part(part: Mapping[str, Any], prefix: str) -> BackboneShape:
    """Read one of the two transformers."""

    def size(name: str, limit: int = MAX_SIZE) -> int:
        return positive_int(part, name, prefix, limit)

    return BackboneShape(
        vocab_size=size("vocab_size"),
        hidden_size=size("dim"),
        intermediate_size=size("intermediate_size"),
        num_layers=size("n_layer", MAX_LAYERS),
        num_heads=size("n_head"),
        num_kv_heads=size("n_local_heads"),
        head_dim=size("head_dim"),
        max_positions=size("max_seq_len"),
        rope_theta=positive_number(part, "rope_base", 1_000_000.0, prefix),
        rms_norm_eps=positive_number(part, "norm_eps", 1e-6, prefix),
    )


def _part_weights(at: str, part: BackboneShape, *, qk_norms: bool) -> WeightShapes:
    hidden = part.hidden_size
    inner = part.intermediate_size
    size = part.head_dim
    fused = (part.num_heads + 2 * part.num_kv_heads) * size
    expected: WeightShapes = {
        f"{at}embeddings.weight": (part.vocab_size, hidden),
        f"{at}norm.weight": (hidden,),
    }
    for layer in range(part.num_layers):
        of = f"{at}layers.{layer}."
        expected |= {
            f"{of}attention.wqkv.weight": (fused, hidden),
            f"{of}attention.wo.weight": (hidden, part.num_heads * size),
            f"{of}attention_norm.weight": (hidden,),
            f"{of}ffn_norm.weight": (hidden,),
            f"{of}feed_forward.w1.weight": (inner, hidden),
            f"{of}feed_forward.w3.weight": (inner, hidden),
            f"{of}feed_forward.w2.weight": (hidden, inner),
        }
        if qk_norms:
            expected[f"{of}attention.q_norm.weight"] = (size,)
            expected[f"{of}attention.k_norm.weight"] = (size,)
    return expected

"""Backbones whose sizes and weights have transformers' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from talker.families.family import WeightShapes
from talker.shape import (
    MAX_LAYERS,
    MAX_SIZE,
    BackboneShape,
    CheckpointError,
    positive_int,
    positive_number,
)

_ROPE_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
)  # fmt: skip


def rope_theta(text: Mapping[str, Any], default: float) -> float:
    """Return the base of the rotary embedding, wherever this version of the format stores it.

    Raises CheckpointError, also for an invalid scaling.
    """
    used = "rope_parameters" if text.get("rope_parameters") else "rope_scaling"
    nested = text.get(used) or {}
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"{used} must be an object, not {nested!r}")
    for name in _ROPE_NUMBERS:
        positive_number(nested, name, 1.0, f"{used}.")
    inner = positive_number(nested, "rope_theta", default, f"{used}.")
    return positive_number(text, "rope_theta", inner, "")


def read_backbone(
    text: Mapping[str, Any], prefix: str, *, max_positions: int, theta: float, norm_eps: float
) -> BackboneShape:
    """Read the shape of a decoder without biases.

    ``prefix`` is for the errors' texts; ``theta`` and ``norm_eps`` are defaults. Raises
    CheckpointError.
    """
    for name in ("attention_bias", "mlp_bias"):
        if text.get(name):
            raise CheckpointError(f"{prefix}{name}: the published model has none")

    def size(name: str, limit: int = MAX_SIZE) -> int:
        return positive_int(text, name, prefix, limit)

    heads = size("num_attention_heads")
    hidden = size("hidden_size")
    return BackboneShape(
        vocab_size=size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_layers=size("num_hidden_layers", MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads"),
        head_dim=size("head_dim") if text.get("head_dim") else hidden // heads,
        max_positions=max_positions,
        rope_theta=rope_theta(text, theta),
        rms_norm_eps=positive_number(text, "rms_norm_eps", norm_eps, prefix),
    )


def layer_weights(
    at: str, body: BackboneShape, *, kinds: Sequence[str] = ("",), qk_norms: bool = False
) -> WeightShapes:
    """The weights of all layers, with names that begin with ``at``. ``kinds``: the name prefixes of
    each set of norms and MLP in a layer.
    """
    hidden = body.hidden_size
    inner = body.intermediate_size
    queries, keys = body.num_heads * body.head_dim, body.num_kv_heads * body.head_dim
    shapes: WeightShapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    if qk_norms:
        shapes |= {"self_attn.q_norm": (body.head_dim,), "self_attn.k_norm": (body.head_dim,)}
    for kind in kinds:
        shapes |= {
            f"{kind}input_layernorm": (hidden,),
            f"{kind}post_attention_layernorm": (hidden,),
            f"{kind}mlp.gate_proj": (inner, hidden),
            f"{kind}mlp.up_proj": (inner, hidden),
            f"{kind}mlp.down_proj": (hidden, inner),
        }
    return {
        f"{at}layers.{layer}.{name}.weight": size
        for layer in range(body.num_layers)
        for name, size in shapes.items()
    }


def qwen3_config(body: BackboneShape, *, is_tied: bool) -> dict[str, Any]:
    """Return the config of a plain Qwen3, in transformers' form. ``is_tied``: its head is its
    table of embeddings.
    """
    return {
        "model_type": "qwen3",
        "vocab_size": body.vocab_size,
        "hidden_size": body.hidden_size,
        "intermediate_size": body.intermediate_size,
        "num_hidden_layers": body.num_layers,
        "num_attention_heads": body.num_heads,
        "num_key_value_heads": body.num_kv_heads,
        "head_dim": body.head_dim,
        "max_position_embeddings": body.max_positions,
        "rms_norm_eps": body.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": body.rope_theta},
        "tie_word_embeddings": is_tied,
        "attention_bias": False,
    }

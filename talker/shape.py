"""Sizes of a talker as in its config.json, without torch or transformers.

The gateway, the plugin inside vLLM and the weight check all use these values, so they cannot
disagree. Parsing config.json is the family's part (``talker.families``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming.delay import RowLayout

#: No talker has a larger size.
MAX_SIZE = 1 << 20
#: No talker has more layers. The names of all layers' weights are listed before any weight is read.
MAX_LAYERS = 1 << 10


class CheckpointError(Exception):
    """A checkpoint that cannot be served. The text names what is wrong, for operators."""


@dataclass(frozen=True, slots=True)
class BackboneShape:
    """Sizes of the transformer that vLLM runs, as needed for weights and positions."""

    #: Number of text ids.
    vocab_size: int
    #: Width of a position.
    hidden_size: int
    #: Width of the inner layers.
    intermediate_size: int
    num_layers: int
    #: Heads of the queries in each layer.
    num_heads: int
    #: Heads of the keys and values.
    num_kv_heads: int
    #: Width of a head.
    head_dim: int
    #: Longest sequence that it was trained for.
    max_positions: int
    #: Base of the rotary embedding.
    rope_theta: float
    #: Added to the mean square in norms.
    rms_norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerShape:
    """Codebooks, the stop id and the backbone; families add fields of their own.

    ``codebook_size`` counts real codes. A codebook has ``codebook_rows`` rows in the fused
    embedding, special codes included; this is also the codebooks' offset in the codes that travel.
    ``stop_id`` is the text id that ends a generation; None if only the tokenizer knows it.
    ``is_delayed``: rows are in the delay pattern (``streaming.delay``), and the row with the stop
    id is its last. Otherwise a row is a frame, and the step that makes the stop id makes no row.
    """

    num_codebooks: int
    codebook_size: int
    codebook_rows: int
    stop_id: int | None
    backbone: BackboneShape
    is_delayed: bool = True
    vector_size: int = 0

    @property
    def layout(self) -> RowLayout:
        """``is_delayed`` as a RowLayout."""
        return RowLayout.DELAYED if self.is_delayed else RowLayout.WHOLE

    def holds_prompt(self, ids: tuple[int, ...]) -> bool:
        """Whether the model has embeddings for all ids of a prompt."""
        return min(ids) >= 0 and max(ids) < self.backbone.vocab_size

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Number of real codes of each codebook."""
        return (self.codebook_size,) * self.num_codebooks


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object ``name`` of ``config``. Raises CheckpointError."""
    found = config.get(name)
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{name} must be an object, not {found!r}")
    return found


def positive_int(
    values: Mapping[str, Any], name: str, prefix: str = "text_config.", limit: int = MAX_SIZE
) -> int:
    """Return the integer ``name`` of ``values``, from 1 to ``limit``; ``prefix`` is for the error's
    text.

    Raises CheckpointError.
    """
    value = values.get(name)
    if type(value) is not int or not 1 <= value <= limit:
        raise CheckpointError(f"{prefix}{name} must be an integer from 1 to {limit}, not {value!r}")
    return value


def positive_number(values: Mapping[str, Any], name: str, default: float, prefix: str) -> float:
    """Return the positive, finite number ``name`` of ``values``, the default if it is missing or
    null; ``prefix`` is for the error's text.

    Raises CheckpointError.
    """
    value = values.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{prefix}{name} must be a positive number, not {value!r}")
    return float(value)


def token_id(values: Mapping[str, Any], name: str, prefix: str = "") -> int | None:
    """Return the token id ``name`` of ``values``, the first of a list; None if there is none.
    ``prefix`` is for the error's text. Raises CheckpointError.
    """
    value = values.get(name)
    if isinstance(value, list):
        value = value[0] if value else None
    if value is not None and type(value) is not int:
        raise CheckpointError(f"{prefix}{name} must be a token id, not {value!r}")
    return value

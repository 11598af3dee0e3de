"""Sizes of a talker as in its config.json, without torch or transformers.

The gateway, the plugin inside vLLM and the weight check all use these values, so they cannot
disagree. Parsing config.json is the family's part (``talker.families``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming.delay import RowLayout


class CheckpointError(Exception):
    """A checkpoint that cannot be served. The text names what is wrong, for operators."""


@dataclass(frozen=True, slots=True)
class BackboneShape:
    """Sizes of the transformer that vLLM runs, as needed for weights and positions."""

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

    @property
    def layout(self) -> RowLayout:
        """``is_delayed`` as a RowLayout."""
        return RowLayout.DELAYED if self.is_delayed else RowLayout.WHOLE

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Number of real codes of each codebook."""
        return (self.codebook_size,) * self.num_codebooks


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object ``name`` of ``config``. Raises CheckpointError."""
    found = config.get(name)
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json has no {name}")
    return found


def positive_int(values: Mapping[str, Any], name: str, prefix: str = "text_config.") -> int:
    """Return the positive integer ``name`` of ``values``; ``prefix`` is for the error's text.

    Raises CheckpointError.
    """
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{prefix}{name} must be a positive integer, not {value!r}")
    return value


def positive_number(values: Mapping[str, Any], name: str, default: float, prefix: str) -> float:
    """Return the positive number ``name`` of ``values``, the default if it is missing or null;
    ``prefix`` is for the error's text.

    Raises CheckpointError.
    """
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise CheckpointError(f"{prefix}{name} must be a positive number, not {value!r}")
    return float(value)


def stop_id(config: Mapping[str, Any]) -> int | None:
    """``eos_token_id`` from the top level, or else from ``text_config``; the first of a list."""
    for part in (config, config.get("text_config") or {}):
        value = part.get("eos_token_id")
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int):
            return value
    return None

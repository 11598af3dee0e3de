"""Sizes of a talker as its config.json gives them, without torch or transformers.

The gateway, the plugin inside vLLM and the weight check all read the same values, so that none
of them can disagree. How a config.json is read belongs to the family (``talker.families``).
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
    """The transformer that vLLM runs, as far as weights and positions need it."""

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
    """Codebooks, the stop id and the backbone; families add what only they have.

    ``codebook_size`` counts real codes; a codebook has ``codebook_rows`` rows in the fused
    embedding, special codes among them, and that is also how far apart the codebooks are in
    the codes that travel. ``stop_id`` is the text id that ends a generation; None when only
    the tokenizer knows it. ``is_delayed``: frames lie in the delay pattern
    (``streaming.delay``), and the row with the stop id is the last of it; otherwise a row is a
    frame, and the step that makes the stop id makes no row.
    """

    num_codebooks: int
    codebook_size: int
    codebook_rows: int
    stop_id: int | None
    backbone: BackboneShape
    is_delayed: bool = True

    @property
    def layout(self) -> RowLayout:
        """``is_delayed`` in the gateway's terms."""
        return RowLayout.DELAYED if self.is_delayed else RowLayout.WHOLE

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """How many real codes each codebook has."""
        return (self.codebook_size,) * self.num_codebooks


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object ``name`` of ``config``. Raises CheckpointError."""
    found = config.get(name)
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json has no {name}")
    return found


def positive_int(values: Mapping[str, Any], name: str, prefix: str = "text_config.") -> int:
    """The whole number ``name`` of ``values``; ``prefix`` is for the error's text.

    Raises CheckpointError.
    """
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{prefix}{name} must be a positive integer, not {value!r}")
    return value


def stop_id(config: Mapping[str, Any]) -> int | None:
    """``eos_token_id``: at the top level, or else in ``text_config``; the first of a list."""
    for part in (config, config.get("text_config") or {}):
        value = part.get("eos_token_id")
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int):
            return value
    return None

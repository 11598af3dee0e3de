"""Special codes and stream ends shared by the families in the delay pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from talker.shape import CheckpointError, TalkerShape

#: BOC and EOC come after the real codes of every codebook.
SPECIAL_CODES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedShape(TalkerShape):
    """A talker in the delay pattern: ``boc`` and ``eoc`` are its special codes."""

    boc: int
    eoc: int


def check_special_codes(shape: DelayedShape) -> None:
    """Raise CheckpointError unless BOC and EOC are a codebook's last two rows."""
    rows = shape.codebook_rows
    if {shape.boc, shape.eoc} != {rows - 2, rows - 1}:
        raise CheckpointError(
            f"special codes {shape.boc} and {shape.eoc} are not the last two of {rows}"
        )


def end_codebooks(generation: Mapping[str, Any], shape: TalkerShape, default: int) -> int:
    """``end_codebooks`` of generation_config.json: how many codebooks, from the first on, may say
    that the speech is over. Raises CheckpointError.
    """
    value = generation.get("end_codebooks", default)
    if type(value) is not int or not 1 <= value <= shape.num_codebooks:
        raise CheckpointError(
            f"end_codebooks must be from 1 to {shape.num_codebooks}, not {value!r}"
        )
    return value

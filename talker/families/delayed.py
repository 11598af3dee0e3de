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


def repetition_window(generation: Mapping[str, Any], window: int, most: int) -> tuple[int, int]:
    """``ras_win_len`` and ``ras_win_max_num_repeat`` of generation_config.json over the family's
    own; a window of 0 is none, as upstream's null. Raises CheckpointError.
    """
    window_value = generation.get("ras_win_len", window)
    most_value = generation.get("ras_win_max_num_repeat", most)
    window_value = 0 if window_value is None else window_value
    for name, value in (("ras_win_len", window_value), ("ras_win_max_num_repeat", most_value)):
        if type(value) is not int or value > 64:
            raise CheckpointError(f"{name} must be a number up to 64, not {value!r}")
    if window_value > 0 and most_value < 1:
        raise CheckpointError(f"ras_win_max_num_repeat must be at least 1, not {most_value!r}")
    return max(0, window_value), most_value

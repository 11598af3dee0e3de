"""Special codes, stream ends and other common parts of the families in the delay pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from talker.families.family import Family
from talker.shape import CheckpointError, TalkerShape

#: BOC and EOC, which follow the real codes of every codebook.
SPECIAL_CODES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedShape(TalkerShape):
    """A talker in the delay pattern: ``boc`` and ``eoc`` are its special codes."""

    boc: int
    eoc: int


def check_special_codes(shape: DelayedShape) -> None:
    """Raise CheckpointError unless BOC and EOC are a codebook's last two rows."""
    rows = shape.codebook_rows
    if (shape.boc, shape.eoc) not in ((rows - 2, rows - 1), (rows - 1, rows - 2)):
        raise CheckpointError(
            f"special codes {shape.boc} and {shape.eoc} are not the last two of {rows}"
        )


class DelayedFamily(Family):
    """A family in the delay pattern."""

    def sampler_rules(self, generation: Mapping[str, Any], shape: TalkerShape) -> dict[str, Any]:
        """``end_codebooks``: number of codebooks, from the first on, that may draw EOC; all, if
        generation_config.json does not set it. Raises CheckpointError.
        """
        limit = shape.num_codebooks
        value = generation.get("end_codebooks", limit)
        if type(value) is not int or not 1 <= value <= limit:
            raise CheckpointError(f"end_codebooks must be from 1 to {limit}, not {value!r}")
        return {"end_codebooks": value}

"""The committed benchmark results, which must be standard JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.seam import Seam, as_json

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))
assert RESULTS, "there are no results to test"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_have_no_constants_outside_json(path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{path.name} holds {constant}")

    assert json.loads(path.read_text(), parse_constant=refuse)


def test_infinite_snr_of_seam_is_written_as_null() -> None:
    written = as_json(Seam(10, math.inf, 3.0))
    assert written == {
        "lookahead": 10, "snr_db": None, "worst_chunk_db": 3.0, "incomplete": False,
    }  # fmt: skip
    json.dumps(written, allow_nan=False)

"""``CodecSpec``: sizes of codebooks and valid codes."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.spec import UNKNOWN, CodecSpec

HIGGS = CodecSpec(24_000, 960, (1024,) * 3, 10, 10)
FISH = CodecSpec(44_100, 2048, (4096, 1024, 1024), 10, 0, 1016)


def codes(*books: list[int]) -> np.ndarray:
    return np.array(books, np.int16)


def test_are_codes_checks_size_of_each_codebook() -> None:
    assert HIGGS.are_codes(codes([0, 1023], [0, 1023], [5, 5]))
    assert not HIGGS.are_codes(codes([0, 1024], [0, 0], [5, 5]))
    assert FISH.are_codes(codes([4095, 0], [1023, 0], [0, 1023]))
    assert not FISH.are_codes(codes([4096, 0], [1023, 0], [0, 0]))
    assert not FISH.are_codes(codes([4095, 0], [1023, 0], [0, 1024]))


@pytest.mark.parametrize("spec", [HIGGS, FISH])
def test_are_codes_allows_unknown_only_in_lookahead(spec: CodecSpec) -> None:
    window = codes([5, 6, 7], [5, 6, UNKNOWN], [5, UNKNOWN, UNKNOWN])
    assert spec.are_codes(window, lookahead=2)
    assert not spec.are_codes(window, lookahead=1)
    assert not spec.are_codes(window)
    assert not spec.are_codes(window - 1, lookahead=3)


def test_codebook_size_needs_codebooks_of_equal_size() -> None:
    assert (HIGGS.num_codebooks, HIGGS.codebook_size, HIGGS.delay_rows) == (3, 1024, 2)
    with pytest.raises(ValueError, match="differ"):
        _ = FISH.codebook_size


@pytest.mark.parametrize(
    "sizes", [{"codebook_sizes": ()}, {"codebook_sizes": (8, 0)}, {"left_frames": -1},
              {"history_frames": -1}, {"hop_length": 0}, {"inert_codebooks": 2}],
)  # fmt: skip
def test_spec_refuses_impossible_sizes(sizes: dict) -> None:
    good = {"sample_rate": 8000, "hop_length": 4, "codebook_sizes": (8, 8),
            "left_frames": 1, "right_frames": 0}  # fmt: skip
    with pytest.raises(ValueError):
        CodecSpec(**good | sizes)

"""How good streamed speech is at each lookahead, on codes of real speech."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.seam import LOOKAHEADS, Seam, measure
from codec.families.higgs.decoder import HiggsDecoder
from streaming.spec import Codes

CODES = Path(__file__).parent / "data" / "speech_codes.npz"
#: Least signal-to-noise in dB, over all samples and in the worst chunk.
PROMISED = {0: (11, 0), 1: (30, 18), 2: (35, 18), 3: (42, 26), 4: (54, 38), 6: (74, 58)}


@pytest.fixture(scope="module")
def utterances() -> list[Codes]:
    """Two of the eight: ``python -m benchmarks.seam`` measures all."""
    with np.load(CODES, allow_pickle=False) as file:
        return [file[name] for name in ("utterance_0", "utterance_1")]


@pytest.fixture(scope="module")
def seams(decoder: HiggsDecoder, utterances: list[Codes]) -> dict[int, Seam]:
    return {seam.lookahead: seam for seam in measure(decoder, utterances, 10, 5)}


@pytest.mark.parametrize("lookahead", PROMISED)
def test_the_seams_are_as_good_as_documented(seams: dict[int, Seam], lookahead: int) -> None:
    snr_db, worst_chunk_db = PROMISED[lookahead]
    assert seams[lookahead].snr_db > snr_db
    assert seams[lookahead].worst_chunk_db > worst_chunk_db


def test_each_frame_of_lookahead_helps(seams: dict[int, Seam]) -> None:
    figures = [seams[lookahead].snr_db for lookahead in LOOKAHEADS]
    assert figures == sorted(figures)


def test_frames_that_have_only_begun_are_nearly_as_good_to_look_at(
    decoder: HiggsDecoder, utterances: list[Codes], seams: dict[int, Seam]
) -> None:
    """Here a frame ahead lacks one of its four codes that are heard, two ahead lacks two."""
    begun = {s.lookahead: s for s in measure(decoder, utterances, 10, 5, (1, 2), incomplete=True)}
    for lookahead, seam in begun.items():
        complete = seams[lookahead]
        assert seam.snr_db > complete.snr_db - 4
        assert seam.worst_chunk_db > 15
        assert seam.snr_db > seams[0].snr_db + 18
    assert begun[2].snr_db > begun[1].snr_db


def test_the_receptive_field_makes_it_equal(seams: dict[int, Seam]) -> None:
    assert seams[10].snr_db == seams[10].worst_chunk_db == math.inf
    assert seams[8].snr_db < math.inf

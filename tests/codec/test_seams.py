"""Quality of streamed speech at each lookahead, measured on codes of real speech."""

from __future__ import annotations

import math

import numpy as np
import pytest

from codec.families.higgs.decoder import HiggsDecoder
from streaming.spec import Codes
from training.evaluation.seams import LOOKAHEADS, SPEECH, Seam, measure

#: Documented signal-to-noise ratios in dB, over all samples and in the worst chunk, by lookahead;
#: for random weights that look ten frames ahead.
PROMISED = {0: (17, 17), 1: (21, 20), 2: (25, 24), 3: (32, 31), 4: (52, 51), 6: (63, 62)}


@pytest.fixture(scope="module")
def utterances() -> list[Codes]:
    """Two of the eight utterances."""
    with np.load(SPEECH, allow_pickle=False) as file:
        return [file[name] for name in ("utterance_0", "utterance_1")]


@pytest.fixture(scope="module")
def seams(looking_ahead: HiggsDecoder, utterances: list[Codes]) -> dict[int, Seam]:
    return {seam.lookahead: seam for seam in measure(looking_ahead, utterances, 10, 5)}


def test_embedded_decoder_streams_without_seams(
    decoder: HiggsDecoder, utterances: list[Codes]
) -> None:
    """It is causal, so it needs no lookahead."""
    (seam,) = measure(decoder, utterances, 10, 5, (0,))
    assert decoder.spec.right_frames == 0
    assert seam.snr_db == seam.worst_chunk_db == math.inf


@pytest.mark.parametrize("lookahead", PROMISED)
def test_seam_quality_meets_documented_snr(seams: dict[int, Seam], lookahead: int) -> None:
    snr_db, worst_chunk_db = PROMISED[lookahead]
    assert seams[lookahead].snr_db > snr_db
    assert seams[lookahead].worst_chunk_db > worst_chunk_db


def test_seam_snr_rises_with_lookahead(seams: dict[int, Seam]) -> None:
    figures = [seams[lookahead].snr_db for lookahead in LOOKAHEADS]
    assert figures == sorted(figures)


def test_incomplete_lookahead_is_nearly_as_good_as_complete(
    looking_ahead: HiggsDecoder, utterances: list[Codes], seams: dict[int, Seam]
) -> None:
    """The first frame ahead lacks one of its eight codes, the second lacks two."""
    measured = measure(looking_ahead, utterances, 10, 5, (1, 2), incomplete=True)
    begun = {seam.lookahead: seam for seam in measured}
    for lookahead, seam in begun.items():
        complete = seams[lookahead]
        assert seam.snr_db > complete.snr_db - 1
        assert seam.worst_chunk_db > 20
        assert seam.snr_db > seams[0].snr_db + 3
    assert begun[2].snr_db > begun[1].snr_db


def test_seam_is_exact_with_lookahead_of_receptive_field(seams: dict[int, Seam]) -> None:
    assert seams[10].snr_db == seams[10].worst_chunk_db == math.inf
    assert seams[8].snr_db < math.inf

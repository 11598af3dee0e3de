"""The shipped checkpoint, compared with its golden output.

If the checkpoint was changed on purpose, run ``.venv/bin/python tests/embedded/golden.py``.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from codec.families.higgs.checkpoint import open_higgs
from tests.embedded import golden

RENEW = "if that was meant: .venv/bin/python tests/embedded/golden.py"
KEPT = json.loads(golden.GOLDEN.read_text(encoding="utf-8"))


def test_checkpoint_weights_match_pinned_digest() -> None:
    assert golden.weights() == KEPT["weights"], RENEW


def test_embedded_voice_makes_golden_frames() -> None:
    said = golden.speak(KEPT["text"])
    assert said["ids"] == KEPT["ids"], f"front end or tokenizer changed; {RENEW}"
    assert said["rows"] == KEPT["rows"], f"the talker's weights or maths changed; {RENEW}"
    assert np.array(said["levels_db"]) == pytest.approx(KEPT["levels_db"], abs=0.05), (
        f"the codec's weights or maths changed; {RENEW}"
    )


def test_golden_frames_are_speech() -> None:
    """A golden file of silence would not reveal changes."""
    assert max(KEPT["levels_db"]) > -35
    assert len({tuple(row) for row in KEPT["rows"]}) > len(KEPT["rows"]) // 2


def test_utterances_begin_and_end_in_silence() -> None:
    """A decoder that was not trained on the ends of utterances makes a click there."""
    decoder = open_higgs(str(golden.CHECKPOINT)).load_decoder()
    with np.load(golden.SPEECH) as kept:
        spoken = decoder.decode([kept[name] for name in kept.files])
    assert len(spoken) == 8
    for samples in spoken:
        ends = max(np.abs(samples[:120]).max(), np.abs(samples[-120:]).max())
        assert ends < 0.01 * np.abs(samples).max()

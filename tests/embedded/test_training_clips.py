"""Choosing the clips of the voices that ship."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedded.evaluation.metrics import words_of
from embedded.training import clips
from embedded.training.export import VOICES
from embedded.training.scripts import speakable
from embedded.training.warm import quantiser_of
from streaming.delay import revert_delay

FOLDER = Path(clips.__file__).parent
CHECKPOINT = FOLDER.parent / "checkpoint"


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_what_is_tuned_on_is_not_what_is_judged_by() -> None:
    held, tuning = lines(FOLDER.parent / "held_out.txt"), lines(FOLDER / "tuning.txt")
    assert len(tuning) == len(set(tuning)) == 40
    said = {" ".join(words_of(text)) for text in held}
    assert not said & {" ".join(words_of(text)) for text in tuning}


def test_every_voice_speaks_a_clip_that_was_tried() -> None:
    tried = lines(FOLDER / "clips.txt")
    assert all(speakable(text) for text in tried)
    assert {voice.text for voice in VOICES} <= set(tried)


def test_a_candidate_is_its_clip_in_codes() -> None:
    tried = lines(FOLDER / "clips.txt")[:2]
    try:
        found = clips.candidates(VOICES[:2], tried, quantiser_of(CHECKPOINT), 1024)
    except OSError:
        pytest.skip("flite is not installed")
    assert found.names() == ("ross 0", "ross 1", "sally 0", "sally 1")
    assert found.get("nobody") is None
    one = found.get("sally 1")
    assert one is not None
    assert one.transcript == tried[1]
    frames = revert_delay(one.rows)
    assert 25 < len(frames) < 100
    assert not np.array_equal(one.rows, found.get("sally 0").rows)  # type: ignore[union-attr]
    facts = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    assert frames.shape[1] == facts["audio_encoder_config"]["num_codebooks"]

"""Choosing the clips of the voices that ship."""

from __future__ import annotations

from pathlib import Path

from embedded.evaluation.metrics import words_of
from embedded.training import clips
from embedded.training.export import VOICES
from embedded.training.talker import LETTERS

FOLDER = Path(clips.__file__).parent


def test_what_is_tuned_on_is_not_what_is_judged_by() -> None:
    held = (FOLDER.parent / "held_out.txt").read_text(encoding="utf-8").splitlines()
    tuning = clips.lines("tuning")
    assert len(tuning) == len(set(tuning)) == 40
    said = {" ".join(words_of(text)) for text in held}
    assert not said & {" ".join(words_of(text)) for text in tuning}


def test_every_voice_speaks_a_clip_that_was_tried() -> None:
    tried = clips.lines("clips")
    assert all(set(text) <= set(LETTERS) for text in tried)
    assert {voice.text for voice in VOICES} <= set(tried)


def test_table_has_a_row_for_each_clip() -> None:
    tried = clips.lines("clips")
    found = {
        clips.candidate(voice.name, n): (n + 1) / 10 for voice in VOICES for n in range(len(tried))
    }
    rows = clips.table(found).splitlines()
    assert rows[0] == "| clip | " + " | ".join(voice.name for voice in VOICES) + " |"
    assert len(rows) == 2 + len(tried)
    assert rows[2] == f"| {tried[0]} |" + " 0.100 |" * len(VOICES)

"""Choice of the clips for the shipped voices."""

from __future__ import annotations

from pathlib import Path

from training import clips
from training.evaluation.metrics import words_of
from training.export import VOICES
from training.talker import LETTERS

FOLDER = Path(clips.__file__).parent


def test_tuning_sentences_are_not_held_out_sentences() -> None:
    held = (FOLDER / "held_out.txt").read_text(encoding="utf-8").splitlines()
    tuning = clips.lines("tuning")
    assert len(tuning) == len(set(tuning)) == 40
    said = {" ".join(words_of(text)) for text in held}
    assert not said & {" ".join(words_of(text)) for text in tuning}


def test_clip_of_each_voice_is_among_candidates() -> None:
    tried = clips.lines("clips")
    assert all(set(text) <= set(LETTERS) for text in tried)
    assert {voice.text for voice in VOICES} <= set(tried)


def test_table_has_one_row_per_clip() -> None:
    tried = clips.lines("clips")
    found = {
        clips.candidate(voice.name, n): (n + 1) / 10 for voice in VOICES for n in range(len(tried))
    }
    rows = clips.table(found).splitlines()
    assert rows[0] == "| clip | " + " | ".join(voice.name for voice in VOICES) + " |"
    assert len(rows) == 2 + len(tried)
    assert rows[2] == f"| {tried[0]} |" + " 0.100 |" * len(VOICES)

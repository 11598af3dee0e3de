"""Recordings by the teacher, with the gains of the work folder or of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import kokoro, recite, speech
from training.tests.fake_teacher import FakeTeacher, fake_reading

CHECKPOINT = Path(__file__).resolve().parents[2] / "embedded" / "checkpoint"


def arguments(folder: Path, *more: str) -> list[str]:
    sentences = folder / "sentences.txt"
    sentences.write_text("hello.\n", encoding="utf-8")
    own = ["--work", str(folder / "work"), "--out", str(folder / "out")]
    return [*own, "--voices", str(folder), "--sentences", str(sentences), *more]


def test_recite_takes_gains_from_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(recite, "read", fake_reading)
    monkeypatch.setattr(kokoro, "fetch", made.append)
    monkeypatch.setattr(kokoro, "Teacher", lambda *_: FakeTeacher())
    recite.main(arguments(tmp_path, "--from", str(CHECKPOINT)))
    assert made == [tmp_path / "work" / "teacher"]
    assert {file.parent.name for file in (tmp_path / "out").rglob("*.wav")} == {*speech.NAMED}


@pytest.mark.parametrize("more", [(), ("--from", "elsewhere")])
def test_recite_without_gains_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as caught:
        recite.main(arguments(tmp_path, *more))
    assert caught.value.code == 2
    assert "gains.json" in capsys.readouterr().err.splitlines()[-1]


def test_recite_without_teacher_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_folder: Path) -> None:
        raise kokoro.NoTeacher("no package")

    monkeypatch.setattr(kokoro, "fetch", missing)
    with pytest.raises(SystemExit):
        recite.main(arguments(tmp_path, "--from", str(CHECKPOINT)))
    assert capsys.readouterr().err.splitlines()[-1].endswith("no package")

"""``talkwire convert``: its output and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from codec import convert as module
from codec.convert import Converted
from codec.families import fish
from service import Exit
from service.cli import app


def test_convert_reports_missing_pickles(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(tmp_path)])
    assert done.exit_code == Exit.FAILED
    assert "has none of the pickles" in done.stderr
    assert "codec.pth" in done.stderr


def test_convert_prints_licence_and_tensor_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, Path | None, bool]] = []

    def convert(folder: Path, out: Path | None = None, *, overwrite: bool = False) -> Converted:
        asked.append((folder, out, overwrite))
        return Converted(fish.FAMILY, tmp_path / "out" / "codec.safetensors", 541, 6)

    monkeypatch.setattr(module, "convert", convert)
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["convert", str(tmp_path), "--out", str(out), "--overwrite"])
    assert done.exit_code == 0
    assert asked == [(tmp_path, out, True)]
    assert "541 tensors" in done.stdout
    assert "non-commercial use only" in done.stderr

"""The package ``pipecat-talkwire``: types, metadata and example."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import wave
from pathlib import Path

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "pipecat"


def test_package_types_check_against_pipecat(tmp_path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_readme_names_tested_pipecat_version() -> None:
    named = re.search(r"Tested with Pipecat v([\d.]+)\*\*", (PACKAGE / "README.md").read_text())
    assert named
    assert named[1] == importlib.metadata.version("pipecat-ai")
    assert importlib.metadata.version("pipecat-talkwire") == "0.1.0"


def test_example_speaks_typed_lines(speaking: Service, ears: Ears, tmp_path: Path) -> None:
    lines = SENTENCES[2:4]
    out = tmp_path / "answers.wav"
    said = subprocess.run(
        [sys.executable, ROOT / "examples/pipecat_bot.py", "--url", speaking.url, "--out", out],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    with wave.open(str(out)) as file:
        assert file.getframerate() == 24_000
        spoken = file.readframes(file.getnframes())
    assert ears.which(spoken, among=[" ".join(lines)]) == " ".join(lines)

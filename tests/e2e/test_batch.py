"""``talkwire batch`` with the embedded voice, with its own engines and with a service."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.live import Service, run
from tests.e2e.sentences import SENTENCES
from training.evaluation.metrics import intelligibility
from training.evaluation.recogniser import Recogniser

THREE = SENTENCES[:3]


@pytest.mark.long
def test_batch_writes_same_files_with_and_without_service(
    speaking: Service, ears: Recogniser, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(THREE))
    own, served = tmp_path / "own", tmp_path / "served"
    options = ["--temperature", "0", "--concurrency", "2"]
    started = run("batch", str(texts), "--out", str(own), *options)
    assert started.returncode == 0, started.stderr
    asked = run("batch", str(texts), "--out", str(served), "--url", speaking.url, *options)
    assert asked.returncode == 0, asked.stderr
    heard = []
    for line in sorted(started.stdout.splitlines()):
        result = json.loads(line)
        assert result["status"] == "success"
        with wave.open(str(own / result["file"])) as file:
            rate, pcm = file.getframerate(), file.readframes(file.getnframes())
        assert result["audio_s"] == round(len(pcm) / 2 / rate, 3) > 1
        assert (served / result["file"]).read_bytes() == (own / result["file"]).read_bytes()
        heard += ears.hear([(np.frombuffer(pcm, "<i2") / 32768).astype(np.float32)], rate)
    assert intelligibility(THREE, heard).word_error_rate <= 0.5, heard
    again = run("batch", str(texts), "--out", str(own), *options)
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == ["kept"] * 3
    assert "talker" not in again.stderr  # nothing to do, so no engine is started


def test_batch_names_setting_of_unusable_file(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Hello.")
    out = str(tmp_path / "out")
    done = run("batch", str(texts), "--out", out, TALKWIRE_API_KEYS_FILE="none.json")
    assert done.returncode == 1
    assert done.stderr.startswith("talkwire: api_keys_file: cannot read none.json")


def test_batch_with_unusable_settings_exits_with_usage_error(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Hello.")
    done = run("batch", str(texts), "--out", str(tmp_path / "out"), "--config", "none.toml")
    assert done.returncode == 2  # as of "talkwire serve"
    assert done.stderr == "talkwire: cannot read none.toml: No such file or directory\n"

"""Children's folders for temporary files, after parents that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ipc.scratch import scratch_folder

_PARENT = """
import signal
from ipc.scratch import scratch_folder
with scratch_folder() as path:
    print(path, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def parent() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folder_of_killed_parent_is_removed_and_that_of_a_living_one_kept(tmp_path: Path) -> None:
    killed, left = parent()
    (left / "file").write_text("left")
    killed.kill()
    killed.communicate()
    living, kept = parent()
    assert not left.exists()
    with scratch_folder() as mine:
        assert {Path(mine), kept} == set(tmp_path.iterdir())
    living.send_signal(signal.SIGKILL)
    living.communicate()


def test_foreign_files_of_that_name_are_kept(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "talkwire-child-link").symlink_to(outside)
    (tmp_path / "talkwire-child-file").touch()
    before = sorted(tmp_path.iterdir())
    with scratch_folder() as mine:
        assert os.path.isdir(mine)
    assert sorted(tmp_path.iterdir()) == before

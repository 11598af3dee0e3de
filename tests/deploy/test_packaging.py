"""Packaging: the server cannot be built as an archive, and the client has the same version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import service
import talkwire_client

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("archive", ["bdist_wheel", "sdist"])
def test_server_archives_are_refused(archive: str) -> None:
    build = subprocess.run(
        [sys.executable, "setup.py", "-q", archive],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 1
    assert "talkwire is an application" in build.stderr
    assert "clients/python" in build.stderr


def test_client_version_equals_server_version() -> None:
    project = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
    assert project["version"] == talkwire_client.__version__ == service.__version__
    assert [name.partition(">=")[0] for name in project["dependencies"]] == [
        "msgspec",
        "websockets",
    ]

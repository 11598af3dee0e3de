"""The server is an application: no archive of its packages is built."""

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
def test_packaging_of_the_server_is_refused(archive: str) -> None:
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


def test_client_is_of_the_servers_version() -> None:
    project = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
    assert project["version"] == talkwire_client.__version__ == service.__version__
    assert [name.partition(">=")[0] for name in project["dependencies"]] == [
        "msgspec",
        "websockets",
    ]

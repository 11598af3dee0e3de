"""Packaging: archives of the server are refused, versions agree, and what install.sh does."""

from __future__ import annotations

import os
import shutil
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


#: An interpreter that makes environments of itself, and only notes what pip would install there.
_PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv "*)
    for venv; do :; done
    case "$*" in *" --clear "*) rm -r "$venv" ;; esac
    mkdir -p "$venv/bin" && cp "$0" "$venv/bin/python" && touch "$venv/pyvenv.cfg" ;;
  *" install "*) echo "$@" >> "$INSTALLED" ;;
esac
"""


def install(root: Path) -> list[str]:
    """Run ``install.sh service`` there with the interpreter above; return what it installs."""
    installed = root / "installed"
    installed.write_text("")
    subprocess.run(
        [root / "requirements" / "install.sh", "service"],
        env=os.environ
        | {"PYTHON": str(root / "python"), "HARDWARE": "cpu", "INSTALLED": str(installed)},
        check=True,
        capture_output=True,
    )
    return installed.read_text().splitlines()


def test_install_installs_everything_again_if_interpreter_has_gone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    for project in ("pyproject.toml", "clients/python/pyproject.toml"):
        (tmp_path / project).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / project, tmp_path / project)
    python = tmp_path / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    first = install(tmp_path)
    assert any("requirements/cpu.txt" in line for line in first)
    assert install(tmp_path) == []
    (tmp_path / ".venv" / "bin" / "python").unlink()
    assert install(tmp_path) == first
    assert install(tmp_path) == []

"""Packaging: archives of the server are refused, versions agree, and what install.sh does."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

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


def load_machine() -> ModuleType:
    spec = importlib.util.spec_from_file_location("machine", ROOT / "requirements" / "machine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_GLIBC = ("glibc", "2.36")


@pytest.mark.parametrize(
    ("machine", "lacks"),
    [
        (("Linux", "x86_64", (3, 11), _GLIBC), ""),
        (("Linux", "aarch64", (3, 13, 2), ("glibc", "2.28")), ""),
        (("Darwin", "arm64", (3, 9), ("", "")), "on Windows use WSL 2, on a Mac a Linux container"),
        (("Windows", "AMD64", (3, 12), ("", "")), "WSL 2"),
        (("Linux", "armv7l", (3, 11), _GLIBC), "x86-64 or arm64"),
        (("Linux", "x86_64", (3, 9, 6), _GLIBC), "Python 3.9, not 3.11 to 3.13"),
        (("Linux", "x86_64", (3, 14), _GLIBC), "Python 3.14, not 3.11 to 3.13"),
        (("Linux", "x86_64", (3, 11), ("glibc", "2.27")), "not for glibc 2.27"),
        (("Linux", "x86_64", (3, 12), ("", "")), "not for this system's C library"),
    ],
)
def test_machine_that_cannot_run_service_is_told_why(
    machine: tuple[object, ...], lacks: str
) -> None:
    told = load_machine().lack(*machine)
    assert lacks in told
    assert bool(told) is bool(lacks)
    assert "\n" not in told


def test_machine_without_libnuma_is_told_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    machine = load_machine()
    assert machine.main("cpu") == 0
    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert machine.main("cuda") == 0
    assert not capsys.readouterr().out
    assert machine.main("cpu") == machine.NO_NUMA
    (line,) = capsys.readouterr().out.splitlines()
    assert "apt-get install libnuma1" in line
    assert "numactl-libs" in line


#: Interpreters that install.sh must not use, and its reason.
_BAD = {
    "echo 'no version is set: pyenv global' >&2; exit 127": "does not run (no version is",
    "case $1 in requirements/*) echo 'no libnuma here'; exit 3;; esac": "no libnuma here",
    "case $1 in requirements/*) echo 'a Mac'; exit 1;; esac": "talkwire: a Mac\n",
}


@pytest.mark.parametrize(("interpreter", "reason"), _BAD.items())
def test_install_says_in_one_line_why_it_installs_nothing(
    tmp_path: Path, interpreter: str, reason: str
) -> None:
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{interpreter}\n")
    python.chmod(0o755)
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")  # it has no lists, or is offline
    (tmp_path / "apt-get").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "requirements" / "install.sh", "service"],
        env=os.environ | {"PYTHON": str(python), "HARDWARE": "cpu", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert reason in done.stderr
    assert len((done.stdout + done.stderr).splitlines()) == 1
    assert not (tmp_path / ".venv").exists()

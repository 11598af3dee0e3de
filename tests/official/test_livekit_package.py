"""The package ``livekit-plugins-talkwire``: types, metadata and documentation."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from livekit.agents import Plugin
from livekit.plugins import talkwire

PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "livekit"


def test_package_and_example_types_check_against_livekit(tmp_path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_readme_names_tested_livekit_version() -> None:
    named = re.search(
        r"Tested with LiveKit Agents ([\d.]+)\*\*", (PACKAGE / "README.md").read_text()
    )
    assert named
    assert named[1] == importlib.metadata.version("livekit-agents")


def test_plugin_is_registered_with_its_version() -> None:
    (plugin,) = [one for one in Plugin.registered_plugins if one.package == talkwire.__name__]
    assert plugin.version == talkwire.__version__
    assert importlib.metadata.version("livekit-plugins-talkwire") == talkwire.__version__

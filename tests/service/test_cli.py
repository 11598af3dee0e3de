"""``talkwire voices`` and ``--version``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from loadtest.fakes.talker import FakeTalker
from service import Exit, __version__
from service.cli import app
from service.gateway import _program
from service.voices.store import Voice
from tests.service.auth.keyring import entry, write_keys
from tests.service.live import gateway


async def _run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


def test_version_is_an_option_and_a_command() -> None:
    for argument in ("--version", "version"):
        done = CliRunner().invoke(app, [argument])
        assert (done.exit_code, done.stdout) == (0, f"{__version__}\n")


async def test_voices_lists_names_with_descriptions(tmp_path: Path) -> None:
    talker = FakeTalker()
    talker.voices = ("default",)
    keys = write_keys(tmp_path / "keys.json", entry("the-key", "acme"))
    async with gateway(talker, api_keys_file=keys) as server:
        codes = np.zeros((8, 25), np.int16)
        described = Voice("man", "man", codes, language="en", description="Male, low.")
        server.runtime.voices.library.add_built_in([described])
        address = ("--url", server.http.removeprefix("http://"))
        key = ("--api-key", "the-key")
        done = await _run("voices", *address, *key)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "default",
            "man          Male, low.  en  default",
            "smart_voice",
        ]
        told = json.loads((await _run("voices", *address, *key, "--json")).stdout)
        assert [voice["name"] for voice in told] == ["default", "man", "smart_voice"]
        refused = await _run("voices", *address)
        assert refused.exit_code == Exit.REFUSED
        assert "key" in refused.stderr


async def test_voices_without_service_says_so(unused_tcp_port: int) -> None:
    done = await _run("voices", "--url", f"http://127.0.0.1:{unused_tcp_port}")
    assert done.exit_code == Exit.NO_SERVER
    assert "no server answers" in done.stderr


@pytest.mark.parametrize(
    ("called", "path", "told"),
    [
        ("bin/talkwire", "", "bin/talkwire"),
        ("bin/talkwire", "bin", "talkwire"),
        ("a folder/talkwire", "bin", "'a folder/talkwire'"),
        ("bin/pytest", "bin", "talkwire"),
    ],
)
def test_suggested_command_is_what_the_shell_finds(
    called: str, path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "a folder"):
        program = tmp_path / folder / "talkwire"
        program.parent.mkdir()
        program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    monkeypatch.setattr(sys, "argv", [called, "serve"])
    assert _program() == told

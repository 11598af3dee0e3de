"""The package ``pipecat-talkwire``: types, metadata and example."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.pipecat_script import Script

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


async def test_example_ends_at_interrupt_while_nothing_is_typed(tmp_path: Path) -> None:
    listening = asyncio.Event()

    class Heard(Script):
        async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
            listening.set()  # its next line is awaited
            await super().speak(socket, context_id, handle)

    async with serve(Heard().converse, "127.0.0.1", 0) as server, asyncio.timeout(60):
        port = next(iter(server.sockets)).getsockname()[1]
        options = ("--url", f"ws://127.0.0.1:{port}/", "--out", tmp_path / "answers.wav")
        bot = await asyncio.create_subprocess_exec(
            *(sys.executable, ROOT / "examples/pipecat_bot.py", *options),
            stdin=asyncio.subprocess.PIPE,
        )
        try:
            assert bot.stdin is not None
            bot.stdin.write(b"Hello.\n")
            await listening.wait()
            bot.send_signal(signal.SIGINT)
            assert await bot.wait() == 0
        finally:
            if bot.returncode is None:
                bot.kill()
                await bot.wait()

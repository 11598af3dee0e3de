"""Faults around ``talkwire say``: of its file, its player, its text and its standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import wave
from pathlib import Path

import pytest

from service.cli import app
from service.say import SayError, run_say
from talkwire_client import protocol
from talkwire_client.audio import WavWriter
from tests.clients.fake_server import Peer, fake_server

FULL = Path("/dev/full")
SPEECH = b"\x00\x40" * 480

needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


async def _speak(peer: Peer) -> None:
    create = await peer.open_context()
    await peer.expect(protocol.TextAppend)
    await peer.expect(protocol.ContextEnd)
    await peer.audio(0, SPEECH)
    await peer.finish(create.context_id)


async def _ask_nothing(peer: Peer) -> None:
    await peer.socket.wait_closed()


@needs_dev_full
async def test_say_reports_full_disk() -> None:
    async with fake_server(_ask_nothing) as url:
        with pytest.raises(SayError, match="cannot write /dev/full: No space left") as caught:
            await run_say("Hi.", url, FULL)
    assert caught.value.exit_code == 1


@needs_dev_full
def test_wav_file_keeps_samples_written_before_disk_was_full(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"

    def fill_up() -> None:
        with FULL.open("wb") as full, WavWriter(path, 24_000) as wav:
            wav.write(SPEECH)
            os.dup2(full.fileno(), wav._file.fileno())
            wav.write(SPEECH)

    with pytest.raises(OSError, match="No space left"):
        fill_up()
    with wave.open(str(path)) as file:
        assert file.readframes(file.getnframes()) == SPEECH


async def test_say_refuses_to_write_wav_to_pipe() -> None:
    reading, writing = os.pipe()
    try:
        async with fake_server(_ask_nothing) as url:
            with pytest.raises(SayError, match="a WAV file cannot go into a pipe"):
                await run_say("Hi.", url, Path(f"/dev/fd/{writing}"))
    finally:
        os.close(reading)
        os.close(writing)


async def test_say_refuses_text_that_is_not_utf8() -> None:
    with pytest.raises(SayError, match="not UTF-8") as caught:
        await run_say("caf\udce9", "ws://127.0.0.1:1/")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("encoding", "out", "told"),
    [
        ("latin-1", b"a.wav", "  \\u201cHi\xfc\\u201d\n"),
        ("utf-8", b"caf\xe9.wav", "caf\\udce9.wav\n"),
    ],
)
async def test_say_escapes_characters_that_the_terminal_cannot_show(
    encoding: str, out: bytes, told: str, tmp_path: Path
) -> None:
    text = "\u201cHi\xfc\u201d"

    async def speak(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, SPEECH)
        words = [protocol.Word(text, 0, len(text), 0.0, 20.0)]
        await peer.say(protocol.Timestamps(create.context_id, words))
        await peer.finish(create.context_id)

    async with fake_server(speak) as url:
        command = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", "from service.cli import main; main()"),
            *("say", text, "--url", url, "--timestamps", "-"),
            *("--out", os.fsencode(tmp_path) + b"/" + out),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        )
        printed, _ = await command.communicate()
    assert command.returncode == 0
    assert told in printed.decode(encoding)


@needs_dev_full
def test_command_reports_full_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(OSError), FULL.open("w") as full:  # closing it fails as well
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            app(["version"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("talkwire: cannot write standard output: No space")


@pytest.mark.parametrize("command", [["say", "-"], ["batch", "-", "--out", "nowhere"]])
def test_command_reports_closed_standard_input(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as the interpreter does if it is closed
    with pytest.raises(SystemExit) as ended:
        app(command)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "talkwire: standard input is closed\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\n/bin/cat > /dev/null\nexit 1\n", r"the player failed \(exit status 1\)"),
        # as ffplay without a sound card
        (
            "#!/bin/sh\n/bin/cat > /dev/null\necho 'No more combinations, audio open failed' >&2\n",
            "the player could not open a sound device",
        ),
        ("#!/nowhere/sh\n", "the player cannot be started: No such file"),
    ],
)
async def test_say_reports_failed_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    player = tmp_path / "aplay"
    player.write_text(program)
    player.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    script = _speak if "cat" in program else _ask_nothing
    async with fake_server(script) as url:
        with pytest.raises(SayError, match=told) as caught:
            await run_say("Hi.", url, play=True)
    assert caught.value.exit_code == 1

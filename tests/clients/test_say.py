from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import ssl
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from service.say import SayError, run_say
from talkwire_client import Client, play, protocol
from talkwire_client.audio import WavWriter
from talkwire_client.player import player_command
from talkwire_client.protocol import AudioFlags, ErrorCode
from tests.clients.fake_server import LIMITS, Peer, cancelled, fake_server, metrics

SUFFIXES = {"out": ".wav", "timestamps": ".srt"}
SPEECH = struct.pack("<480h", *([0] * 240 + [9000] * 240))


def _read(path: Path) -> tuple[int, int, int, bytes]:
    with wave.open(str(path)) as file:
        pcm = file.readframes(file.getnframes())
        return file.getnchannels(), file.getsampwidth(), file.getframerate(), pcm


async def _speak(peer: Peer) -> None:
    create = await peer.open_context()
    await peer.expect(protocol.TextAppend)
    await peer.expect(protocol.ContextEnd)
    await peer.audio(0, SPEECH, AudioFlags.FIRST)
    await peer.audio(0, SPEECH, AudioFlags.LAST)
    await peer.finish(create.context_id)


async def test_say_writes_file_and_reports_figures(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        assert create.chunking == protocol.ChunkingOptions(
            first_lookahead_frames=3, lookahead_frames=3
        )
        assert create.sampling == protocol.SamplingOptions(temperature=0.5, seed=9)
        assert (create.voice, create.mode) == ("narrator", "whole")
        assert create.max_lead_ms == LIMITS.max_lead_ms
        assert (await peer.expect(protocol.TextAppend)).text == "Hi."
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, SPEECH, AudioFlags.FIRST)
        await peer.audio(0, SPEECH, AudioFlags.LAST)
        await peer.finish(create.context_id)

    out = tmp_path / "out.wav"
    async with fake_server(script) as url:
        result = await run_say(
            "Hi.",
            url,
            out,
            speech={
                "voice": "narrator",
                "temperature": 0.5,
                "seed": 9,
                "mode": "whole",
                "chunking": protocol.ChunkingOptions(first_lookahead_frames=3, lookahead_frames=3),
            },
        )
    assert _read(out) == (1, 2, 24_000, SPEECH * 2)
    heard = result.figures
    assert (heard.audio_s, heard.chunks, result.path) == (0.04, 2, str(out))
    assert heard.ttfa_ms is not None
    assert heard.ttfa_ms >= 10  # 240 silent samples at 24 kHz
    assert result.as_dict()["chunks"] == 2
    assert "0.04 s of speech" in result.as_text()
    assert str(out) in result.as_text()


@pytest.fixture
def fake_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``aplay`` that stores its arguments and input. PATH has no other program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    kept = tmp_path / "played"
    program = folder / "aplay"
    program.write_text(f'#!/bin/sh\necho "$@" > "{kept}.arguments"\nexec /bin/cat > "{kept}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return kept


def _played(kept: Path) -> tuple[str, bytes]:
    return Path(f"{kept}.arguments").read_text(), kept.read_bytes()


def _was_used(kept: Path) -> bool:
    return kept.exists()


async def test_say_plays_and_waits_for_player(fake_player: Path) -> None:
    async with fake_server(_speak) as url:
        result = await run_say("Hi.", url, play=True)
    assert _played(fake_player) == ("-q -t raw -f S16_LE -c 1 -r 24000\n", SPEECH * 2)
    assert result.path is None


async def _say_on_terminal(url: str, *options: str) -> tuple[str, str]:
    """Run ``talkwire say`` with a terminal as standard output: (what it shows, its stderr)."""
    leader, terminal = pty.openpty()
    try:
        command = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", "from service.cli import main; main()", "say", "Hi.", "--url", url, *options),
            stdout=terminal,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await command.communicate()
        assert command.returncode == 0, said
        return os.read(leader, 4096).decode(), said.decode()
    finally:
        os.close(leader)
        os.close(terminal)


@pytest.mark.parametrize("options", [[], ["--out", "{}/speech.wav"], ["--json"]])
async def test_say_on_terminal_plays_unless_something_else_is_requested(
    fake_player: Path, tmp_path: Path, options: list[str]
) -> None:
    async with fake_server(_speak) as url:
        shown, said = await _say_on_terminal(url, *(one.format(tmp_path) for one in options))
    assert _was_used(fake_player) == (options == [])
    assert ("0.04 s of speech" in shown) != (options == ["--json"])
    assert said == ""


async def test_say_tells_that_nobody_hears_it_without_a_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with fake_server(_speak) as url:
        shown, said = await _say_on_terminal(url)
    assert "0.04 s of speech" in shown
    assert said == "talkwire: nothing was played or written: use --play or --out FILE\n"


async def test_say_passes_on_the_servers_warning(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        await peer.say(protocol.ContextCreated(create.context_id, 0, "There is no such voice."))
        await peer.expect(protocol.TextAppend)
        await peer.say(protocol.ContextWarning(create.context_id, "emotion", "It has no joy."))
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, SPEECH)
        await peer.finish(create.context_id)

    async with fake_server(script) as url:
        _, said = await _say_on_terminal(url, "--out", str(tmp_path / "speech.wav"))
    assert said == "talkwire: There is no such voice. It has no joy.\n"


async def test_say_fails_and_cancels_when_player_exits(fake_player: Path) -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        for _ in range(200):  # more than the pipe holds
            await peer.audio(0, SPEECH * 20)
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    program = Path(os.environ["PATH"]) / "aplay"
    program.write_text("#!/bin/sh\nexit 0\n")
    async with fake_server(script) as url:
        with pytest.raises(SayError, match="player stopped") as caught:
            await run_say("Hi.", url, play=True)
    assert caught.value.exit_code == 1


async def test_play_pipes_speech_to_player(fake_player: Path) -> None:
    async with fake_server(_speak) as url, Client(url) as client, client.speak("Hi.") as speech:
        await play(speech)
    assert _played(fake_player) == ("-q -t raw -f S16_LE -c 1 -r 24000\n", SPEECH * 2)


async def test_play_refuses_unplayable_encoding() -> None:
    with pytest.raises(ValueError, match="opus"):
        await play(Client().speak("Hi.", encoding="opus"))


@pytest.mark.parametrize(("usage", "options"), [("-a, --raw", ["--raw"]), ("--rate", [])])
def test_player_command_fits_pipewire_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: str, options: list[str]
) -> None:
    program = tmp_path / "pw-play"
    program.write_text(f"#!/bin/sh\necho '{usage}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    rest = ["--rate", "24000", "--channels", "1", "--format", "s16", "-"]
    assert player_command(24_000) == [str(program), *options, *rest]


async def test_say_without_player_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert player_command(24_000) is None

    async def script(peer: Peer) -> None:
        await peer.socket.wait_closed()

    async with fake_server(script) as url:
        with pytest.raises(SayError, match="no player found"):
            await run_say("Hi.", url, play=True)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Hi.", {"timestamps": Path("words.txt")}),
        ("Hi.", {"out": Path("speech.mp3")}),
        ("Hi.", {"speech": {"mode": "slowly"}}),
        ("Hi.", {"speech": {"temperature": float("nan")}}),
        ("\udc80", {}),
    ],
)
async def test_say_refuses_wrong_usage_without_a_server(text: str, options: dict[str, Any]) -> None:
    with pytest.raises(SayError) as caught:
        await run_say(text, "ws://127.0.0.1:1/", **options)
    assert caught.value.exit_code == 2


async def test_say_suggests_no_start_for_an_address_that_is_not_a_websockets() -> None:
    with pytest.raises(SayError, match=r"not a WebSocket address: ftp://x:8000$") as caught:
        await run_say("Hi.", "ftp://x:8000")
    assert caught.value.exit_code == 3


async def test_say_names_how_to_trust_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    async def distrust(*_: object, **_options: object) -> None:
        error = ssl.SSLCertVerificationError()
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", distrust)
    with pytest.raises(SayError, match=r"self-signed certificate; SSL_CERT_FILE") as caught:
        await run_say("Hi.", "wss://127.0.0.1:1/")
    assert "talkwire serve" not in str(caught.value)


async def test_say_exit_code_depends_on_error(tmp_path: Path) -> None:
    async def refuse(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        code = ErrorCode.UNKNOWN_VOICE
        await peer.say(protocol.Error(code, "No such voice.", "r", context_id=create.context_id))

    async def drop(peer: Peer) -> None:
        await peer.open_context()
        await peer.audio(0, SPEECH)
        await peer.socket.close(1011)

    out = tmp_path / "out.wav"
    with pytest.raises(SayError, match="talkwire serve") as caught:
        await run_say("Hi.", "ws://127.0.0.1:1/")
    assert caught.value.exit_code == 3
    async with fake_server(refuse) as url:
        with pytest.raises(SayError, match="unknown_voice: No such voice") as caught:
            await run_say("Hi.", url, out)
    assert caught.value.exit_code == 4
    assert not out.exists()
    async with fake_server(drop) as url:
        with pytest.raises(SayError, match="1011") as caught:
            await run_say("Hi.", url, out)
    assert caught.value.exit_code == 1
    assert _read(out)[3] == SPEECH  # received audio is kept


@pytest.mark.parametrize("option", ["out", "timestamps"])
async def test_say_reports_unwritable_file_before_speaking(tmp_path: Path, option: str) -> None:
    asked = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(ConnectionClosed):
            asked.append(await peer.receive())
            await peer.socket.close()

    files: dict[str, Any] = {option: tmp_path / "no" / f"file{SUFFIXES[option]}"}
    async with fake_server(script) as url:
        with pytest.raises(SayError, match="cannot write"):
            await run_say("Hi.", url, **files)
    assert asked == []


@pytest.mark.parametrize("option", ["out", "timestamps"])
async def test_say_refuses_folder_as_file_before_speaking(tmp_path: Path, option: str) -> None:
    asked = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(ConnectionClosed):
            asked.append(await peer.receive())
            await peer.socket.close()

    files: dict[str, Any] = {option: tmp_path / f"folder{SUFFIXES[option]}"}
    files[option].mkdir()
    async with fake_server(script) as url:
        with pytest.raises(SayError, match="Is a directory"):
            await run_say("Hi.", url, **files)
    assert asked == []


async def test_say_refuses_unknown_mode() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.wait_closed()

    wrong: Any = {"mode": "loud"}
    async with fake_server(script) as url:
        with pytest.raises(SayError, match="mode") as caught:
            await run_say("Hi.", url, speech=wrong)
    assert caught.value.exit_code == 2


def test_wav_file_is_complete_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with WavWriter(path, 24_000) as wav:
        for number in range(1, 4):
            wav.write(SPEECH)
            assert _read(path) == (1, 2, 24_000, SPEECH * number)
    assert _read(path) == (1, 2, 24_000, SPEECH * 3)


def test_wav_file_without_samples_is_removed_after_error(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with WavWriter(path, 24_000):
        pass
    assert _read(path)[3] == b""
    with pytest.raises(ZeroDivisionError), WavWriter(path, 24_000):
        raise ZeroDivisionError
    assert not path.exists()

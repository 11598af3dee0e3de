"""Playback of PCM with an installed player: PipeWire's, ALSA's, ffmpeg's or SoX's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from talkwire_client.protocol import Encoding

if TYPE_CHECKING:
    from talkwire_client.speech import Speech

#: Command lines that read mono s16le PCM from standard input, in order of preference.
_PLAYERS = (
    "pw-play --rate {rate} --channels 1 --format s16 -",
    "aplay -q -t raw -f S16_LE -c 1 -r {rate}",
    "ffplay -v error -nodisp -autoexit -f s16le -ch_layout mono -sample_rate {rate} -i -",
    "play -q -t raw -e signed -b 16 -c 1 -r {rate} -",
)
#: What ffplay writes before it ends with the exit status 0, if there is no sound card.
_NO_SOUND = b"audio open failed"


class PlayerError(Exception):
    """A player is missing or did not play everything; the text may be shown to users."""


def player_command(sample_rate: int) -> list[str] | None:
    """Find the first player on PATH.

    Returns:
        Its command line; None if there is none.
    """
    for line in _PLAYERS:
        program, *arguments = line.format(rate=sample_rate).split()
        if path := shutil.which(program):
            return [path, *_raw(path), *arguments] if program == "pw-play" else [path, *arguments]
    return None


def _raw(pw_play: str) -> list[str]:
    """Return the option for raw samples; older versions have none and accept them anyway."""
    usage = subprocess.run([pw_play, "--help"], capture_output=True, text=True, check=False)
    return ["--raw"] if "--raw" in usage.stdout + usage.stderr else []


class Player:
    """A running player; made by ``open_player``."""

    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin

    async def write(self, pcm: bytes) -> None:
        """Write samples (signed 16 bits, little-endian); waits while the player's buffer is full.

        Raises:
            PlayerError: The player has stopped.
        """
        try:
            self._stdin.write(pcm)
            await self._stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PlayerError("the player stopped before the speech did") from error


@contextlib.asynccontextmanager
async def open_player(sample_rate: int) -> AsyncIterator[Player]:
    """Run a player of mono 16-bit PCM.

    Leaving waits until it has played everything; an error stops it at once.

    Args:
        sample_rate: In Hz.

    Raises:
        PlayerError: None is installed, it cannot be started, or it fails.
    """
    arguments = player_command(sample_rate)
    if arguments is None:
        raise PlayerError("no player found: install pw-play, aplay, ffplay or play")
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise PlayerError(f"the player cannot be started: {error.strerror}") from error
    assert process.stdin is not None
    assert process.stderr is not None
    relaying = asyncio.create_task(_relay_errors(process.stderr))
    try:
        yield Player(process.stdin)
        process.stdin.close()
        status = await process.wait()
        is_silent = await relaying
        if status:
            raise PlayerError(f"the player failed (exit status {status})")
        if is_silent:
            raise PlayerError("the player could not open a sound device")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        relaying.cancel()


async def _relay_errors(stderr: asyncio.StreamReader) -> bool:
    """Pass on what a player says. Returns whether it could not open a sound device."""
    is_silent = False
    async for line in stderr:
        is_silent = is_silent or _NO_SOUND in line
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # it is full or closed
                sys.stderr.write(line.decode(errors="replace"))
    return is_silent


async def play(speech: Speech) -> None:
    """Play a speech to its end as it arrives.

    Raises:
        PlayerError: It cannot be played.
        ValueError: The speech does not have the encoding ``pcm_s16le``.
        Exception: An exception of iterating over the speech.
    """
    if speech.encoding != Encoding.PCM_S16LE:
        raise ValueError(f"only pcm_s16le can be played, and the speech is {speech.encoding}")
    async with open_player(speech.sample_rate) as player:
        async for chunk in speech:
            await player.write(chunk.data)

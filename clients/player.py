"""Playing PCM through whichever of the usual players is installed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Protocol

#: Command lines that read mono s16le PCM from standard input, in order of preference.
_PLAYERS = (
    "pw-play --rate {rate} --channels 1 --format s16 -",
    "aplay -q -t raw -f S16_LE -c 1 -r {rate}",
    "ffplay -v error -nodisp -autoexit -f s16le -ch_layout mono -sample_rate {rate} -i -",
    "play -q -t raw -e signed -b 16 -c 1 -r {rate} -",
)


class PlayerError(Exception):
    """The player did not play all; the text is fit to be shown to a person."""


class Sink(Protocol):
    """Where PCM goes."""

    async def write(self, pcm: bytes) -> None:
        """Hand samples over; waits while the sink's buffer is full. Raises PlayerError."""


def command(sample_rate: int) -> list[str] | None:
    """The command line of the first player on PATH; None if there is none."""
    for line in _PLAYERS:
        program, *arguments = line.format(rate=sample_rate).split()
        if path := shutil.which(program):
            return [path, *_raw(path), *arguments] if program == "pw-play" else [path, *arguments]
    return None


def _raw(pw_play: str) -> list[str]:
    """PipeWire's player took standard input as raw samples, until it got an option for that."""
    usage = subprocess.run([pw_play, "--help"], capture_output=True, text=True, check=False)
    return ["--raw"] if "--raw" in usage.stdout + usage.stderr else []


class _Player:
    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin

    async def write(self, pcm: bytes) -> None:
        try:
            self._stdin.write(pcm)
            await self._stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PlayerError("the player stopped before the speech did") from error


@contextlib.asynccontextmanager
async def player(arguments: list[str]) -> AsyncIterator[Sink]:
    """Run a player. Leaving waits until it has played all; an error stops it at once.

    Raises PlayerError when it cannot be started, has died, or ends with a status other than 0.
    """
    try:
        process = await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.PIPE)
    except OSError as error:
        raise PlayerError(f"the player cannot be started: {error.strerror}") from error
    assert process.stdin is not None
    try:
        yield _Player(process.stdin)
        process.stdin.close()
        if status := await process.wait():
            raise PlayerError(f"the player failed (exit status {status})")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

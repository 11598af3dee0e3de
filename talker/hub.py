"""Finding a model's folder, once, for all that read it.

A download runs in a process of its own, ``python -m talker.hub MODEL``. It may take minutes, and a
thread that downloads could not be stopped together with the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path

from ipc.child import die_with_parent
from ipc.exit_status import describe_exit
from talker.checkpoint import local_folder, resolve_folder
from talker.shape import CheckpointError

log = logging.getLogger(__name__)
#: Interval of the reports that a download is still running.
_SAY_S = 30.0
#: The exit status that says that the last line printed is the reason.
_NO_MODEL = 3


class ModelFolder:
    """The real folder of a model: the local one, or a snapshot from the hub, which stays the same
    if the hub's branch moves on.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._folder: Path | None = None
        self._is_found = asyncio.Event()

    async def find(self, on_download: Callable[[float], None]) -> Path:
        """Find it. ``on_download`` is called with the seconds so far when a download begins, and
        repeatedly until it ends. Cancelling ends the download. Raises CheckpointError.
        """
        self._folder = local_folder(self._model) or await self._download(on_download)
        self._is_found.set()
        return self._folder

    async def found(self) -> Path:
        """Wait until ``find`` has found it, and return it. Never returns if ``find`` fails."""
        await self._is_found.wait()
        assert self._folder is not None
        return self._folder

    async def _download(self, on_download: Callable[[float], None]) -> Path:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talker.hub", self._model),
            stdin=DEVNULL,
            stdout=PIPE,
            start_new_session=True,  # a terminal's Ctrl-C must only reach the parent
        )
        try:
            printed = await _wait(process, on_download)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        line = printed.decode().strip().rpartition("\n")[2]
        if process.returncode == 0:
            return Path(line)
        if process.returncode == _NO_MODEL:
            raise CheckpointError(line)
        ending = describe_exit(process.returncode or 0)
        raise CheckpointError(f"the download of {self._model} died ({ending})")


async def _wait(process: Process, on_download: Callable[[float], None]) -> bytes:
    """Wait for the process to end. Returns its output."""
    began = time.monotonic()
    talking = asyncio.ensure_future(process.communicate())
    try:
        while not talking.done():
            on_download(time.monotonic() - began)
            await asyncio.wait([talking], timeout=_SAY_S)
    finally:
        talking.cancel()
    return talking.result()[0]


def main(argv: Sequence[str]) -> int:
    """Print the folder, or the reason why there is none. Returns the exit status."""
    die_with_parent()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        print(resolve_folder(argv[0]).resolve())
    except CheckpointError as error:
        print(error)  # the gateway logs it; where it came from is for --log-level debug
        log.debug("the model cannot be had", exc_info=error)
        return _NO_MODEL
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One life of a child process: launched, listened to, watched, and buried with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ipc.framing import Alive, Fatal, FramingError, MessageReader, Progress
from ipc.watchdog import Watchdog, read_vitals

log = logging.getLogger(__name__)
M = TypeVar("M")
_READ_BYTES = 1 << 18
#: How often a running child is looked at.
_LOOK_S = 0.2
#: How long what a dead child said last may take to come out of the socket.
_LAST_WORDS_S = 0.5


class ChildDown(Exception):
    """There is no running child to send to."""


class ChildFailed(Exception):
    """The child cannot start, or was stopped before it did. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How patient the supervisor is, in seconds.

    A silent child that idles is hung after ``still_timeout_s``, one that is at work after
    ``hang_timeout_s``; one that is stopped is found sooner (``ipc.watchdog``).
    """

    start_timeout_s: float = 300.0
    hang_timeout_s: float = 20.0
    still_timeout_s: float = 5.0
    stop_timeout_s: float = 5.0
    #: A child that lived this long starts its back-off anew.
    healthy_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Program(Generic[M]):
    """What to run, and whom to tell what it says; see ``ipc.supervisor.Supervisor``."""

    argv: Sequence[str]
    env: Mapping[str, str]
    inbound: Any
    ready: type[Any]
    on_message: Callable[[M], None]
    on_ready: Callable[[Any], None]
    on_down: Callable[[], None]
    on_progress: Callable[[str, float], None]

    @property
    def name(self) -> str:
        """The module, as the log calls the child."""
        return self.argv[2]


class Life(Generic[M]):
    """A child that is started once."""

    def __init__(self, program: Program[M], watch: Watch) -> None:
        self._program, self._watch = program, watch
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_heard = 0.0
        #: Whether it has said that it can work, and is not gone.
        self.is_up = False

    @property
    def pid(self) -> int | None:
        """Its process id, while there is a process."""
        return self._process.pid if self._process else None

    def write(self, data: bytes) -> None:
        """Queue bytes for it. Raises ChildDown while there is no connection."""
        if self._writer is None:
            raise ChildDown
        self._writer.write(data)

    async def run(self) -> None:
        """From its start to its death. Raises ChildFailed if it says that it cannot start,
        OSError if it cannot be launched.
        """
        with tempfile.TemporaryDirectory(prefix="talkwire-") as folder:
            path = Path(folder) / "link"
            connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
                asyncio.Queue(1)
            )
            server = await asyncio.start_unix_server(
                lambda reader, writer: connected.put_nowait((reader, writer)), path
            )
            path.chmod(0o600)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._program.argv,
                    *("--socket", str(path)),
                    env=self._program.env,
                    stdin=asyncio.subprocess.DEVNULL,
                    # A terminal's Ctrl-C goes to its whole process group, and only the
                    # parent should act on it. (uvloop does not know process_group=.)
                    start_new_session=True,
                )
                self._last_heard = time.monotonic()
                await self._until_gone(connected, self._process)
            finally:
                await self._bury(server)

    async def _until_gone(
        self,
        connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
        process: asyncio.subprocess.Process,
    ) -> None:
        read = asyncio.create_task(self._read(connected))
        exited = asyncio.create_task(process.wait())
        tasks = (read, exited, asyncio.create_task(self._find_hang(process.pid)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if exited.done() and not read.done():
                # An answer, or why it cannot start, may still lie in the socket.
                await asyncio.wait([read], timeout=_LAST_WORDS_S)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, ChildFailed):
                raise result
            if isinstance(result, Exception):
                log.error("watching a child failed", exc_info=result)

    async def _bury(self, server: asyncio.Server) -> None:
        was_up, self.is_up = self.is_up, False
        server.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if was_up:
            self._program.on_down()
        if process is not None:
            await _reap(process)
            # What the child has started itself (it leads a session) must not outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _read(
        self, connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    ) -> None:
        stream, self._writer = await connected.get()
        messages: MessageReader[Any] = MessageReader(self._program.inbound)
        try:
            while data := await stream.read(_READ_BYTES):
                self._last_heard = time.monotonic()
                for message in messages.feed(data):
                    self._dispatch(message)
        except FramingError:
            log.exception("link to child broke", extra={"child": self._program.name})
        except OSError:
            pass  # the child has gone, as it has at the end of its stream

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Progress):
            self._program.on_progress(message.phase, message.seconds)
        elif isinstance(message, Fatal):
            raise ChildFailed(message.message)
        elif isinstance(message, self._program.ready):
            self.is_up = True
            self._program.on_ready(message)
        else:
            self._program.on_message(message)

    async def _find_hang(self, pid: int) -> None:
        """Return when the child hangs."""
        watchdog, mine = Watchdog(), self._watch
        while True:
            await asyncio.sleep(min(_LOOK_S, mine.hang_timeout_s / 4))
            now, is_up = time.monotonic(), self.is_up
            reason = watchdog.look(
                now,
                self._last_heard,
                mine.hang_timeout_s if is_up else mine.start_timeout_s,
                mine.still_timeout_s if is_up else mine.start_timeout_s,
                read_vitals(pid),
            )
            if reason is not None:
                silent_s = round(now - self._last_heard, 3)
                told = {"child": self._program.name, "reason": reason, "silent_s": silent_s}
                log.error("child hangs", extra=told)
                return


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed process to the end, even when cancelled: nobody else would."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await waiting
        raise

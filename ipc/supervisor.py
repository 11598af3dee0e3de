"""The parent's end: starts a child, watches it, starts it again when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ipc.framing import Alive, Fatal, FramingError, MessageReader, Progress, Stop, encode
from ipc.watchdog import Watchdog, read_vitals

log = logging.getLogger(__name__)
M = TypeVar("M")
_READ_BYTES = 1 << 18
_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Deaths in a row before the first start counts as failed.
START_TRIES = 3
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


class Supervisor(Generic[M]):
    """Keeps one child process running: ``python -m module --socket PATH args...``.

    ``ready`` is the message type by which the child says that it can work. Messages that
    are not the link's own go to ``on_message``; ``on_ready`` is called with the ready
    message of each start, ``on_down`` once for each child that was ready, when it is gone
    and before the next start. All callbacks run on the event loop and must not raise.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str],
        *,
        inbound: Any,
        ready: type[Any],
        on_message: Callable[[M], None],
        on_ready: Callable[[Any], None],
        on_down: Callable[[], None],
        on_progress: Callable[[str, float], None] = lambda phase, seconds: None,
        env: dict[str, str] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._argv = [sys.executable, "-m", module, *args]
        self._inbound, self._ready_type = inbound, ready
        self._on_message, self._on_ready = on_message, on_ready
        self._on_down, self._on_progress = on_down, on_progress
        self._env = {**os.environ, **(env or {})}
        self._watch = watch or Watch()
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._first_ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_heard = 0.0
        self._up = False
        self._stopping = False
        self.restarts = 0

    @property
    def is_up(self) -> bool:
        """Whether the child is ready for work."""
        return self._up

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the child and return once it is ready.

        Raises ChildFailed if it says that it cannot start, dies ``START_TRIES`` times in a
        row before it is ready, or is stopped meanwhile.
        """
        self._stopping = False
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"supervise {self._argv[2]}")
        task, ready = self._task, self._first_ready
        try:
            # The task ends when it is stopped, or by a mistake of ours: never wait on that.
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() and not task.cancelled():
                task.result()
            await ready
        finally:
            ready.cancel()

    async def stop(self) -> None:
        """Ask the child to end, then make it."""
        if self._task is None:
            return
        self._stopping = True
        with contextlib.suppress(ChildDown):
            self.send(Stop())
            await asyncio.wait([self._task], timeout=self._watch.stop_timeout_s)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self._settle_start(ChildFailed("stopped before it was ready"))

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message for the child. Raises ChildDown.

        The transport buffers: bound what you have outstanding.
        """
        if self._writer is None or not (self._up or isinstance(message, Stop)):
            raise ChildDown
        self._writer.write(encode(message))

    async def _run(self) -> None:
        """Live again and again, until told to stop or the first start has failed."""
        failures = 0
        while True:
            began, given_up, reason = time.monotonic(), False, "it died before it was ready"
            try:
                await self._live_once()
            except (ChildFailed, OSError) as error:  # OSError: it could not be launched
                given_up, reason = True, str(error)
                log.error("child cannot start: %s", reason, extra={"child": self._argv[2]})
            if self._stopping:
                return
            failures = 0 if time.monotonic() - began > self._watch.healthy_s else failures + 1
            given_up = given_up or failures >= START_TRIES
            if given_up and self._settle_start(ChildFailed(reason)):
                return
            self.restarts += 1
            delay = _BACKOFF_S[min(max(failures - 1, 0), len(_BACKOFF_S) - 1)]
            log.warning("child ended", extra={"child": self._argv[2], "restart_in_s": delay})
            await asyncio.sleep(delay)

    def _settle_start(self, error: ChildFailed | None) -> bool:
        """Tell who waits in ``start`` how it went; say whether anybody still did."""
        if self._first_ready is None or self._first_ready.done():
            return False
        if error is None:
            self._first_ready.set_result(None)
        else:
            self._first_ready.set_exception(error)
        return True

    async def _live_once(self) -> None:
        """One life of the child, from its start to its death."""
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
                    *self._argv,
                    *("--socket", str(path)),
                    env=self._env,
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
        was_up, self._up = self._up, False
        server.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if was_up:
            self._on_down()
        if process is not None:
            await _reap(process)
            # What the child has started itself (it leads a session) must not outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _read(
        self, connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    ) -> None:
        stream, self._writer = await connected.get()
        messages: MessageReader[Any] = MessageReader(self._inbound)
        try:
            while data := await stream.read(_READ_BYTES):
                self._last_heard = time.monotonic()
                for message in messages.feed(data):
                    self._dispatch(message)
        except FramingError:
            log.exception("link to child broke", extra={"child": self._argv[2]})
        except OSError:
            pass  # the child has gone, as it has at the end of its stream

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Progress):
            self._on_progress(message.phase, message.seconds)
        elif isinstance(message, Fatal):
            raise ChildFailed(message.message)
        elif isinstance(message, self._ready_type):
            self._up = True
            self._on_ready(message)
            self._settle_start(None)
        else:
            self._on_message(message)

    async def _find_hang(self, pid: int) -> None:
        """Return when the child hangs."""
        watchdog, mine = Watchdog(), self._watch
        while True:
            await asyncio.sleep(min(_LOOK_S, mine.hang_timeout_s / 4))
            now, is_up = time.monotonic(), self._up
            reason = watchdog.look(
                now,
                self._last_heard,
                mine.hang_timeout_s if is_up else mine.start_timeout_s,
                mine.still_timeout_s if is_up else mine.start_timeout_s,
                read_vitals(pid),
            )
            if reason is not None:
                silent_s = round(now - self._last_heard, 3)
                told = {"child": self._argv[2], "reason": reason, "silent_s": silent_s}
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

"""One run of a child process: launch it, exchange messages, detect hangs, clean up after it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ipc.framing import Alive, Fatal, FramingError, MessageReader, Progress
from ipc.output import OutputLogger
from ipc.scratch import scratch_folder
from ipc.watchdog import Watchdog, read_vitals

log = logging.getLogger(__name__)
M = TypeVar("M")
_READ_BYTES = 1 << 18
#: Seconds between checks of a running child.
_CHECK_S = 0.2
#: Seconds until the second check of a child that seems to hang.
_CONFIRM_S = 0.05
#: Seconds to wait for the messages and output of a child that has ended.
_DRAIN_S = 0.5


class ChildDown(Exception):
    """No child is running."""


class ChildFailed(Exception):
    """The child cannot start, or was stopped before it did. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Timeouts of the supervisor, in seconds.

    A silent child is hung after ``still_timeout_s`` if it is idle, and after ``hang_timeout_s`` if
    it is working. A stopped one is detected sooner (``ipc.watchdog``).
    """

    start_timeout_s: float = 300.0
    hang_timeout_s: float = 20.0
    still_timeout_s: float = 5.0
    stop_timeout_s: float = 5.0
    #: A child that worked for this long resets the back-off.
    healthy_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[M]):
    """A program, ``python -m module args... --socket FD``, and the callbacks for its messages.

    All callbacks run on the event loop and must not raise: an exception in ``on_message`` or
    ``on_ready`` ends the child, an exception in the others is logged.
    """

    module: str
    args: Sequence[str]
    #: The union of its messages.
    inbound: Any
    #: The message which reports that it can work.
    ready: type[Any]
    #: Called with messages other than the link's own.
    on_message: Callable[[M], None]
    #: Called with the ready message.
    on_ready: Callable[[Any], None]
    #: Called once for each child that was ready, after its end and before the next start.
    on_down: Callable[[], None]
    #: Called with each phase of the start, and the seconds since the start.
    on_progress: Callable[[str, float], None] = lambda phase, seconds: None
    #: Added to our own environment.
    env: Mapping[str, str] = field(default_factory=dict)


class ChildProcess(Generic[M]):
    """A child process that is started once."""

    def __init__(self, program: Program[M], watch: Watch) -> None:
        self._program = program
        self._watch = watch
        self._writer: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_received = 0.0
        self._has_come_up = False
        #: Its exit status once it has ended; of a signal that killed it, the negative number.
        self.exit_status: int | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, while there is a process."""
        return self._process.pid if self._process else None

    @property
    def is_up(self) -> bool:
        """Whether it has reported ready and not ended since."""
        return self._has_come_up and self._open_writer is not None

    @property
    def _open_writer(self) -> asyncio.WriteTransport | None:
        """The connection, unless it is closing: the end of a child is known by that first, and
        uvloop refuses to write to a closed one.
        """
        return None if self._writer is None or self._writer.is_closing() else self._writer

    def write(self, data: bytes) -> None:
        """Queue bytes for it. Raises ChildDown while there is no connection."""
        writer = self._open_writer
        if writer is None:
            raise ChildDown
        writer.write(data)

    async def run(self) -> None:
        """Run it from its launch to its end. It has its own folder for temporary files, which is
        deleted afterwards.

        Raises:
            ChildFailed: It cannot be launched, or reports that it cannot start.
        """
        module = self._program.module
        with contextlib.ExitStack() as scratch:
            try:
                folder = scratch.enter_context(scratch_folder())
            except OSError as error:
                raise ChildFailed(f"{module} has no folder for temporary files: {error}") from error
            await self._run({**os.environ, **self._program.env, "TMPDIR": folder})

    async def _run(self, env: Mapping[str, str]) -> None:
        """Run it in ``env``. Raises ChildFailed."""
        module = self._program.module
        output = OutputLogger(module)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise ChildFailed(f"{module} cannot be launched: {error}") from error
        try:
            with theirs:
                process = await self._launch(theirs, output, env)
                self._process = process
        except BaseException as error:
            ours.close()
            await _to_the_end(output.close(0))
            if not isinstance(error, OSError):
                raise
            raise ChildFailed(f"{module} cannot be launched: {error}") from error
        try:
            self._last_received = time.monotonic()
            receiver = _Receiver(self._program.inbound, self._receive, ours)
            self._writer, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: receiver, sock=ours
            )
            await self._until_ended(receiver.ended, process)
        except OSError as error:
            raise ChildFailed(f"{module} cannot be launched: {error}") from error
        finally:
            if self._writer is None:
                ours.close()
            await self._clean_up(process, output, is_ending=receiver.is_at_end)

    async def _launch(
        self, link: socket.socket, output: OutputLogger, env: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        with await output.open() as written:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._program.module, *self._program.args),
                *("--socket", str(link.fileno())),
                env=env,
                pass_fds=(link.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                # A terminal's Ctrl-C goes to its whole process group, and only the parent should
                # act on it. (uvloop does not support process_group=.)
                start_new_session=True,
            )

    async def _until_ended(
        self, read: asyncio.Future[None], process: asyncio.subprocess.Process
    ) -> None:
        exited = asyncio.create_task(process.wait())
        tasks = (read, exited, asyncio.create_task(self._find_hang(process.pid)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if exited.done() and not read.done():
                # The socket may still hold an answer, or the reason why it cannot start.
                await asyncio.wait([read], timeout=_DRAIN_S)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, ChildFailed):
                raise result
            if isinstance(result, FramingError):
                extra = {"child": self._program.module}
                log.error("link to child broke", exc_info=result, extra=extra)
            elif isinstance(result, Exception):
                log.error("watching a child failed", exc_info=result)

    async def _clean_up(
        self, process: asyncio.subprocess.Process, output: OutputLogger, *, is_ending: bool
    ) -> None:
        """Kill the process, if it is not ``is_ending`` by itself, and wait for its end."""
        was_up = self._has_come_up
        self._has_come_up = False
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._process = None
        if not is_ending:
            _kill(process)
        if was_up:
            self._report(self._program.on_down)
        await _to_the_end(self._wait_for_end(process, output))

    async def _wait_for_end(
        self, process: asyncio.subprocess.Process, output: OutputLogger
    ) -> None:
        """Wait for a process that ends or was killed, and kill the processes that it has started. A
        process that is slow to end is killed, but not sooner, since its exit status has the reason.
        """
        try:
            self.exit_status = await asyncio.wait_for(process.wait(), _DRAIN_S)
        except TimeoutError:
            _kill(process)
            self.exit_status = await process.wait()
        # The child's own processes (it leads a session) must not outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await output.close(_DRAIN_S)

    def _receive(self, messages: list[Any]) -> None:
        self._last_received = time.monotonic()
        for message in messages:
            self._dispatch(message)

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Progress):
            self._report(self._program.on_progress, message.phase, message.seconds)
        elif isinstance(message, Fatal):
            raise ChildFailed(message.message)
        elif isinstance(message, self._program.ready):
            self._has_come_up = True
            self._program.on_ready(message)
        else:
            self._program.on_message(message)

    def _report(self, callback: Callable[..., None], *args: object) -> None:
        """Call a callback that only reports: an exception in it must not end child or
        supervisor.
        """
        try:
            callback(*args)
        except Exception:
            log.exception("a callback failed", extra={"child": self._program.module})

    async def _find_hang(self, pid: int) -> None:
        """Return when the child hangs."""
        timeouts = self._watch
        interval_s = min(_CHECK_S, timeouts.hang_timeout_s / 4)
        watchdog = Watchdog(interval_s)
        is_suspect = False
        while True:
            # Messages that have arrived meanwhile are read during this time.
            await asyncio.sleep(_CONFIRM_S if is_suspect else interval_s)
            now = time.monotonic()
            is_up = self._has_come_up
            reason = watchdog.check(
                now,
                self._last_received,
                timeouts.hang_timeout_s if is_up else timeouts.start_timeout_s,
                timeouts.still_timeout_s if is_up else timeouts.start_timeout_s,
                read_vitals(pid),
            )
            if reason is not None and is_suspect:
                silent_s = round(now - self._last_received, 3)
                extra = {"child": self._program.module, "reason": reason, "silent_s": silent_s}
                log.error("child hangs", extra=extra)
                return
            is_suspect = reason is not None


class _Receiver(asyncio.Protocol):
    """Receives a child's messages to the last one.

    When a write to a child that has ended fails, the transport closes without reading what the
    child sent before, so that is read from the ``link`` itself. ``ended`` is done at the end, or
    has the exception that ``receive`` raised.
    """

    def __init__(
        self, inbound: Any, receive: Callable[[list[Any]], None], link: socket.socket
    ) -> None:
        self._messages: MessageReader[Any] = MessageReader(inbound)
        self._receive = receive
        self._link = link
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_at_end(self) -> bool:
        """Whether the child has closed the link."""
        ended = self.ended
        return ended.done() and not ended.cancelled() and ended.exception() is None

    def data_received(self, data: bytes) -> None:
        """Process messages, unless an earlier one ended the child."""
        if self.ended.done():
            return
        try:
            self._receive(self._messages.feed(data))
        except Exception as error:
            self.ended.set_exception(error)

    def connection_lost(self, _: Exception | None) -> None:
        """Process the remaining messages. The transport closes the link only after this call."""
        with contextlib.suppress(OSError):
            while not self.ended.done():
                data = self._link.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    break
                self.data_received(data)
        if not self.ended.done():
            self.ended.set_result(None)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish ``work`` even when cancelled meanwhile, since no other task would."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await working
        raise

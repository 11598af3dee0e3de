"""Supervision of a child process: start it, and restart it when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec

from ipc.child_process import ChildDown, ChildFailed, ChildProcess, Program, Watch
from ipc.exit_status import describe_exit
from ipc.framing import Stop, encode

# Re-exported for users of the supervisor.
__all__ = ["START_TRIES", "ChildDown", "ChildFailed", "Program", "Supervisor", "Watch"]

log = logging.getLogger(__name__)
M = TypeVar("M")
_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Consecutive deaths after which the first start has failed.
START_TRIES = 3


class Supervisor(Generic[M]):
    """Keeps one child process running."""

    def __init__(self, program: Program[M], watch: Watch | None = None) -> None:
        self._on_ready = program.on_ready
        self._program = replace(program, on_ready=self._came_up)
        self._watch = watch or Watch()
        #: The present child, or the last one.
        self._child: ChildProcess[M] | None = None
        #: When the present child became ready; None before.
        self._up_at: float | None = None
        #: Done when ``start`` may return; None before it is called.
        self._first_ready: asyncio.Future[None] | None = None
        #: Runs child after child.
        self._task: asyncio.Task[None] | None = None
        #: Whether ``stop`` was called.
        self._stopping = False
        #: Number of times that a child has ended.
        self.restarts = 0

    @property
    def is_up(self) -> bool:
        """Whether the child is ready for work."""
        return self._child is not None and self._child.is_up

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Start the child and return once it is ready.

        Raises ChildFailed if it reports that it cannot start, dies ``START_TRIES`` times in a row
        before it is ready, or is stopped meanwhile.
        """
        self._stopping = False
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"supervise {self._program.module}")
        task = self._task
        ready = self._first_ready
        try:
            # The task also ends when it is stopped, or by a bug: then ``ready`` may never be set.
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() and not task.cancelled():
                task.result()
            await ready
        finally:
            ready.cancel()

    async def stop(self) -> None:
        """Ask the child to end, and kill it if it does not."""
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

        The transport buffers without limit, so limit what is outstanding.
        """
        if self._child is None or not (self._child.is_up or isinstance(message, Stop)):
            raise ChildDown
        self._child.write(encode(message))

    async def _run(self) -> None:
        """Run child after child, until stopped or until the first start has failed."""
        failures = 0
        module = self._program.module
        while True:
            given_up = False
            reason = f"{module} died before it was ready"
            self._up_at = None
            self._child = ChildProcess(self._program, self._watch)
            try:
                await self._child.run()
            except ChildFailed as error:
                given_up = True
                reason = str(error)
                log.error("child cannot start: %s", reason, extra={"child": module})
            except Exception:
                if self._first_ready is not None and not self._first_ready.done():
                    raise  # from ``start``
                log.exception("supervision failed", extra={"child": module})
            if self._stopping:
                return
            extra: dict[str, object] = {"child": module}
            if (status := self._child.exit_status) is not None:
                extra |= {"exit_status": status, "ending": describe_exit(status)}
                reason = reason if given_up else f"{reason} ({extra['ending']})"
            failures = 0 if self._was_healthy() else failures + 1
            given_up = given_up or failures >= START_TRIES
            if given_up and self._settle_start(ChildFailed(reason)):
                return
            self.restarts += 1
            delay = _BACKOFF_S[min(max(failures - 1, 0), len(_BACKOFF_S) - 1)]
            log.warning("child ended", extra=extra | {"restart_in_s": delay})
            await asyncio.sleep(delay)

    def _was_healthy(self) -> bool:
        """Whether the last child worked for a while; the time for loading does not count."""
        return self._up_at is not None and time.monotonic() - self._up_at > self._watch.healthy_s

    def _came_up(self, message: Any) -> None:
        self._up_at = time.monotonic()
        self._on_ready(message)
        if not self._stopping:  # it has not yet read that it shall end
            self._settle_start(None)

    def _settle_start(self, error: ChildFailed | None) -> bool:
        """Finish ``start``; return whether it was still waiting."""
        if self._first_ready is None or self._first_ready.done():
            return False
        if error is None:
            self._first_ready.set_result(None)
        else:
            self._first_ready.set_exception(error)
        return True

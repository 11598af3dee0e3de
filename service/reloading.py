"""Files of the operator that are read again whenever they change."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
#: Interval of checks for a change; a request (SIGHUP) triggers one at once. A check that takes more
#: than the second number of seconds hangs.
RELOAD_S, HANG_S = 2.0, 10.0
_Content = TypeVar("_Content")
_Read = TypeVar("_Read")
#: Inode, time and size. In a Kubernetes volume the inode changes, elsewhere the time.
State = tuple[int, int, int]


def file_state(path: Path) -> State | None:
    """Return what changes with a file's content; None if it cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Reloader(Generic[_Content]):
    """Reads a file or folder again in ``watch`` whenever it changes, and until it can be read.

    Args:
        what: What it is, in the log.
        path: Where it is.
        read: Reads it; called in a thread. What it raises is logged, and nothing is taken.
        take: Takes what was read.
        state: Returns what changes with its content; called in a thread. By default ``file_state``.
        known: The state of what was read before.
        lock: Is held from the beginning of a read until its result is taken.
    """

    def __init__(
        self,
        what: str,
        path: Path,
        read: Callable[[Path], _Content],
        take: Callable[[_Content], None],
        *,
        state: Callable[[Path], object] | None = None,
        known: object = None,
        lock: asyncio.Lock | None = None,
    ) -> None:
        self._what, self._path = what, path
        self._read, self._take, self._state_of = read, take, state
        self._state = known
        self._lock = lock or asyncio.Lock()
        self._requested = asyncio.Event()
        #: Why the last read failed, if it did.
        self._fault: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether the last read succeeded."""
        return self._fault is None

    def reload_soon(self) -> None:
        """Request that it is read again, even if unchanged."""
        self._requested.set()

    async def watch(self) -> None:
        """Read it again for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_S):
                    await self._requested.wait()
            is_new = self._requested.is_set()
            self._requested.clear()
            try:
                state = await self._in_thread(self._state_of or file_state)
                is_new = is_new or state != self._state
                # a failure may have been of the system, or of permissions, which the state lacks
                if is_new or not self.is_current:
                    self._state = state
                    async with self._lock:
                        content = await self._in_thread(self._read)
                        self._fault = None
                        self._take(content)
            except Exception as error:  # of threads too: it must be read again later
                if is_new or str(error) != self._fault:
                    log.error("%s was not taken: %s", self._what, error)
                self._fault = str(error)

    async def _in_thread(self, work: Callable[[Path], _Read]) -> _Read:
        """Call ``work`` in a thread. A file system that hangs is a fault until it responds."""
        working = asyncio.create_task(asyncio.to_thread(work, self._path))
        done, _ = await asyncio.wait({working}, timeout=HANG_S)
        fault = f"the file system of {self._path} does not respond"
        if not done and self._fault != fault:
            self._fault = fault
            log.error("%s was not taken: %s", self._what, fault)
        return await working

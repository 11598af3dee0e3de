"""The child's end of the link: a reader thread fills an inbox, the main loop works and answers."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import socket
import threading
import time
from typing import Any, Generic, TypeVar

import msgspec

from ipc.framing import Alive, FramingError, MessageReader, Progress, Stop, encode

M = TypeVar("M")
_READ_BYTES = 1 << 18
#: Interval in seconds at which an idle child reports that it is alive.
BEAT_S = 0.25
_STDERR = 2


class LinkClosed(Exception):
    """The parent has ended, or asked the child to end."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG, Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def leave_signals_to_parent() -> None:
    """Ignore SIGINT, SIGTERM and SIGUSR2: a child ends when its parent asks for it, or dies. At
    SIGUSR1 it writes the stacks of its threads to standard error.

    A terminal and some service managers signal the whole group, while the parent still needs its
    children to finish work in progress.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, _STDERR)


class ChildLink(Generic[M]):
    """A child's messages to and from its parent. Use as a context manager.

    ``socket_fd`` is the connected socket passed on by the parent. The inbox needs no limit of its
    own, since the parent limits its outstanding work.
    """

    def __init__(self, socket_fd: int, inbound: Any) -> None:
        die_with_parent()
        leave_signals_to_parent()
        os.set_inheritable(socket_fd, False)
        self._socket = socket.socket(fileno=socket_fd)
        self._reader: MessageReader[M] = MessageReader(inbound)
        self._inbox: queue.SimpleQueue[M | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._last_sent = time.monotonic()
        self._started = self._last_sent
        self._thread = threading.Thread(target=self._read, name="link-reader", daemon=True)
        self._thread.start()

    def __enter__(self) -> ChildLink[M]:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message. Raises LinkClosed if the parent has ended."""
        try:
            with self._lock:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise LinkClosed from error
        self._last_sent = time.monotonic()

    def progress(self, phase: str) -> None:
        """Tell the parent that a phase of the start begins now."""
        self.send(Progress(phase, time.monotonic() - self._started))

    def receive(self, *, wait: bool) -> list[M]:
        """Return the messages received; with ``wait``, block until there is one.

        Reports that the child is alive at least every ``BEAT_S`` seconds, so call it once per turn
        of the main loop. Raises LinkClosed.
        """
        messages: list[M] = []
        while True:
            if time.monotonic() - self._last_sent >= BEAT_S:
                self.send(Alive())
            try:
                block = wait and not messages
                message = self._inbox.get(block, BEAT_S if block else None)
            except queue.Empty:
                if messages or not wait:
                    return messages
                continue
            if message is None or isinstance(message, Stop):
                raise LinkClosed
            messages.append(message)

    def _read(self) -> None:
        try:
            while data := self._socket.recv(_READ_BYTES):
                for message in self._reader.feed(data):
                    self._inbox.put(message)
        except (OSError, FramingError):
            pass  # in both cases the None below ends the main loop
        self._inbox.put(None)

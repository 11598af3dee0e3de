"""Hang detection: distinguish a child that hangs from one that is busy or lacks processor time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: Consecutive checks that must find a child stopped (SIGSTOP).
_STOPPED_CHECKS = 3
#: Seconds for which no processor time may have been used.
_STILL_S = 0.4


@dataclass(frozen=True, slots=True)
class Vitals:
    """The kernel's view of a process: the state of its main thread (one letter, see proc(5)), its
    processor time so far in ticks, and whether it or a child of it is stopped.
    """

    state: str
    ticks: int
    is_stopped: bool = False


def read_vitals(pid: int) -> Vitals | None:
    """Return the vitals of a process; None without such a process, or without /proc."""
    own = _stat(pid)
    if own is None:
        return None
    states = (stat[0] for child in _children(pid) if (stat := _stat(child)))
    return Vitals(*own, is_stopped=own[0] == "T" or "T" in states)


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[11]) + int(fields[12])


def _children(pid: int) -> Iterator[int]:
    """Yield the processes that its main thread has started, and theirs."""
    try:
        found = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return
    for child in map(int, found):
        yield child
        yield from _children(child)


class Watchdog:
    """Judges one child by its last message and by the kernel's view of it.

    A child is hung

    - if it, or a process that it has started, is stopped at several consecutive checks;
    - if it has been silent for ``still_s`` and uses no processor time, although it waits neither
      for the processor nor for a disk: it waits for an event that does not come;
    - if it has been silent for ``timeout_s``, whatever it does.

    At most ``interval_s`` between two checks counts as silence. The rest is a pause of the watching
    process itself (it was stopped, or its event loop was late), in which it could not read
    messages. Messages of that time may be unread at the first check after it, so check a second
    time before acting on a verdict.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._checked_at: float | None = None
        self._stopped_checks = 0
        self._received: float | None = None
        #: Seconds of silence.
        self._silent_s = 0.0
        #: Seconds without processor time during the silence.
        self._still_s = 0.0
        #: Processor time at the last check, if the main thread slept then; else -1.
        self._ticks = -1

    def check(
        self, now: float, received: float, timeout_s: float, still_s: float, vitals: Vitals | None
    ) -> str | None:
        """Judge the child as it is now.

        Args:
            now: Monotonic seconds.
            received: Time of its last message, in monotonic seconds.
            timeout_s: How long it may be silent.
            still_s: How long it may be silent and idle.
            vitals: The kernel's view of it.

        Returns:
            Why it is hung, for the log; None while it is not.
        """
        passed_s = 0.0 if self._checked_at is None else now - self._checked_at
        passed_s = min(passed_s, self._interval_s)
        self._checked_at = now
        self._stopped_checks = self._stopped_checks + 1 if vitals and vitals.is_stopped else 0
        ticks = vitals.ticks if vitals and vitals.state == "S" else -1
        if received != self._received:
            self._received = received
            self._ticks = ticks
            self._silent_s = min(now - received, passed_s)
            self._still_s = 0.0
        else:
            self._silent_s += passed_s
            self._still_s = self._still_s + passed_s if ticks == self._ticks else 0.0
            self._ticks = ticks
        if self._stopped_checks >= _STOPPED_CHECKS:
            return "stopped"
        if self._silent_s > timeout_s:
            return "silent"
        is_still = ticks >= 0 and self._still_s >= _STILL_S
        return "idle" if is_still and self._silent_s > still_s else None

"""When a silent child is to be taken for hung, as opposed to busy or starved of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: Stopped (SIGSTOP) by whoever, at so many looks in a row.
_STOPPED_LOOKS = 3
#: How long processor time must have stood still.
_STILL_S = 0.4


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the kernel says of a process: the state of its main thread (one letter, see
    proc(5)), its processor time so far in ticks, and whether it or a child of it is stopped.
    """

    state: str
    ticks: int
    is_stopped: bool = False


def read_vitals(pid: int) -> Vitals | None:
    """None where there is no such process, or no /proc."""
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
    """Those that its main thread has started, and theirs."""
    try:
        found = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return
    for child in map(int, found):
        yield child
        yield from _children(child)


class Watchdog:
    """Judges one child by what it said last and by what the kernel says of it.

    A child is hung

    - if it, or a process that it has started, is stopped at several looks in a row;
    - if it has been silent for ``still_s`` and uses no processor time, though it waits neither
      for the processor nor for a disk: it waits for something that does not come;
    - if it has been silent for ``patience_s``, whatever it does.

    Silence counts only from the second look on that finds it: whoever looks may have been held
    up himself, and what the child has said may lie unread.
    """

    def __init__(self) -> None:
        self._stopped_looks = 0
        self._heard: float | None = None
        #: When this silence was first seen with the processor time that it has still.
        self._still_since = 0.0
        self._ticks = -1

    def look(
        self, now: float, heard: float, patience_s: float, still_s: float, vitals: Vitals | None
    ) -> str | None:
        """Why the child is hung, for the log; None while it is not. ``heard``: when it said
        something last. Times are monotonic seconds.
        """
        self._stopped_looks = self._stopped_looks + 1 if vitals and vitals.is_stopped else 0
        if self._stopped_looks >= _STOPPED_LOOKS:
            return "stopped"
        is_new, self._heard = heard != self._heard, heard
        ticks = vitals.ticks if vitals and vitals.state == "S" else -1
        if is_new or ticks != self._ticks:
            self._still_since, self._ticks = now, ticks
        silent_s = now - heard
        if not is_new and silent_s > patience_s:
            return "silent"
        is_still = ticks >= 0 and now - self._still_since >= _STILL_S
        return "idle" if is_still and silent_s > still_s else None

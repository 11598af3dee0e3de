"""What the exit status of a process says to an operator."""

from __future__ import annotations

import signal

_MEANINGS = {
    signal.SIGILL: "an instruction that this processor, or its kernel, refuses",
    signal.SIGKILL: "for lack of memory, unless an earlier line says why",
    signal.SIGSEGV: "a fault in native code",
    signal.SIGBUS: "a file or shared memory that it had mapped was cut short, or /dev/shm is full",
    signal.SIGABRT: "a check in native code failed",
    signal.SIGFPE: "a fault in native code",
    signal.SIGXCPU: "its limit of processor time",
}


def describe_exit(status: int) -> str:
    """How a process ended, such as "killed by SIGILL: an instruction that ...".

    Args:
        status: Its exit status; of a signal that killed it, the negative number.
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        killer = signal.Signals(-status)
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"
    meaning = _MEANINGS.get(killer)
    return f"killed by {killer.name}" + (f": {meaning}" if meaning else "")

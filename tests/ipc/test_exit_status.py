"""How the end of a process is told, by processes that end so."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ipc.exit_status import describe_exit


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit", "exit status 0"),
        ("raise SystemExit(3)", "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGILL)", "killed by SIGILL: an instruction that"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL: for lack of memory"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", "killed by signal"),
    ],
)
def test_end_of_process_is_described(code: str, told: str) -> None:
    child = subprocess.run([sys.executable, "-c", f"import os, signal\n{code}"], check=False)
    assert describe_exit(child.returncode).startswith(told)


def test_every_signal_is_described() -> None:
    for number in signal.valid_signals():
        told = describe_exit(-number)
        assert told.startswith(("killed by SIG", f"killed by signal {number}")), told

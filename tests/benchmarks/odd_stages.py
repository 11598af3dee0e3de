"""Stages for the tests of the runner: they succeed, fail a check, raise, crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.gpu_check.arithmetic import Range
from benchmarks.gpu_check.context import Context, Stage


def sound(context: Context) -> None:
    """Succeed, and count the runs."""
    runs = context.work / "runs"
    runs.write_text(runs.read_text() + "x" if runs.is_file() else "x")
    context.add("speed", "ms", 3.0, Range(1.0, 2.0))
    context.add("rate", "1/s", 90.0, Range(None, 100.0), higher=True)


def broken(context: Context) -> None:
    """Fail a check, unless the file ``mended`` exists."""
    context.check((context.work / "mended").exists(), "a screw is loose")


def raising(context: Context) -> None:
    """Raise an exception."""
    raise RuntimeError("no such thing")


def crashing(context: Context) -> None:
    """End the process without a result."""
    print("about to fall over", flush=True)
    os._exit(7)


def hanging(context: Context) -> None:
    """Hang, with a child process that hangs too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (context.work / "child").write_text(str(child.pid))
    time.sleep(600)


def looking(context: Context) -> None:
    """Read the stage's own log."""
    print("Capturing graphs", flush=True)
    context.check(context.said("Capturing"), "it does not see what it has said")


STAGES = (
    Stage("sound", sound, 60),
    Stage("broken", broken, 60),
    Stage("raising", raising, 60),
    Stage("crashing", crashing, 60),
    Stage("hanging", hanging, 10),
    Stage("looking", looking, 60),
    Stage("gpu-alone", sound, 60, needs_gpu=True),
)

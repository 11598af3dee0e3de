"""Stages that do what real ones may: succeed, find something broken, crash, and hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.gpu_check.arithmetic import Range
from benchmarks.gpu_check.context import Context, Stage


def sound(context: Context) -> None:
    """Counts how often it ran."""
    runs = context.work / "runs"
    runs.write_text(runs.read_text() + "x" if runs.is_file() else "x")
    context.add("speed", "ms", 3.0, Range(1.0, 2.0))
    context.add("rate", "1/s", 90.0, Range(None, 100.0), higher=True)


def broken(context: Context) -> None:
    """Finds something, unless it has been mended."""
    context.check((context.work / "mended").exists(), "a screw is loose")


def raising(context: Context) -> None:
    """Fails by an exception."""
    raise RuntimeError("no such thing")


def crashing(context: Context) -> None:
    """Ends without a word of its own."""
    print("about to fall over", flush=True)
    os._exit(7)


def hanging(context: Context) -> None:
    """Hangs, and so does what it has started."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (context.work / "child").write_text(str(child.pid))
    time.sleep(600)


def looking(context: Context) -> None:
    """Reads its own log."""
    print("Capturing graphs", flush=True)
    context.check(context.said("Capturing"), "it does not see what it has said")


STAGES = (
    Stage("sound", sound, 60),
    Stage("broken", broken, 60),
    Stage("raising", raising, 60),
    Stage("crashing", crashing, 60),
    Stage("hanging", hanging, 3),
    Stage("looking", looking, 60),
    Stage("gpu-alone", sound, 60, needs_gpu=True),
)

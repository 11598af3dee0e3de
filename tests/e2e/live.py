"""The service as a user runs it: ``talkwire serve`` in its own process, without fakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TALKWIRE = Path(sys.executable).with_name("talkwire")
_START_S = 600


def run(*args: str, timeout_s: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    return subprocess.run(
        [TALKWIRE, *args],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | env,
    )


class Service:
    """A running service."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"ws://127.0.0.1:{port}/v1/tts/stream"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def metric(self, line_start: str) -> float:
        """The value of the only metric whose line starts with ``line_start``."""
        (line,) = [x for x in self.get("/metrics").splitlines() if x.startswith(line_start)]
        return float(line.rsplit(" ", 1)[1])

    def worker(self, module: str) -> psutil.Process:
        """The child process that runs this module."""
        (child,) = [
            child
            for child in psutil.Process(self.process.pid).children()
            if module in child.cmdline()
        ]
        return child

    def say(self, text: str, out: Path, *options: str) -> dict[str, Any]:
        """Run ``talkwire say --json``, assert that it succeeds and return its figures."""
        done = run("say", text, "--out", str(out), "--url", self.url, "--json", *options)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def until(self, condition: str, line_start: str, value: float) -> None:
        """Wait until a metric has a value; ``condition`` describes it in the failure message."""
        deadline = time.monotonic() + 180
        while self.metric(line_start) != value:
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            assert time.monotonic() < deadline, "the service did not become ready"
            assert self.process.poll() is None, "the service ended"
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return '"ok"' in self.get("/health/ready")
        except OSError:
            return False


@contextmanager
def service(*options: str, program: Path = TALKWIRE, **env: str) -> Iterator[Service]:
    """Serve the embedded voice on a free port until the block ends.

    Admission is fixed by default: measured admission would refuse contexts on a busy machine.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [program, "serve", "--port", "0", *options],
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"TALKWIRE_ADMISSION": "fixed"} | env,
        )
        try:
            started = Service(process, _port(process, log.fileno()))
            started.until_ready()
            yield started
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(30)
            print(os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace"))  # shown on failure


def _port(process: subprocess.Popen[bytes], log: int) -> int:
    deadline = time.monotonic() + _START_S
    while True:
        if found := re.search(rb"http://[^ ]*:(\d+)", os.pread(log, 4096, 0)):
            return int(found[1])
        assert process.poll() is None, os.pread(log, 4096, 0)
        assert time.monotonic() < deadline
        time.sleep(0.05)

"""``talkwire serve`` with a LabelTalker and a LiteralDecoder; all other parts are real.

Started as ``python -m tests.faults.fake_service --port N``; settings come from the environment.
ROW_S is the talker's time for a row. With CLOCK=wild the wall clock jumps by up to half a year
each time it is read. With FAULTS the codec is a child process, ``tests.faults.faulty_worker``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx

from codec.engine import CodecWorkerEngine
from loadtest.fakes.codec import FakeCodecEngine
from service import server as serve
from service.engines.contracts import Engines, RunningCodec
from service.listening import open_listeners
from service.settings import Settings, load_settings
from service.voices.registry import VoiceLibrary
from tests.faults.history import SPEC, Script
from tests.faults.labelled_audio import LabelTalker, LiteralDecoder
from tests.faults.rig import Listener, assert_right, native

ROOT = Path(__file__).parents[2]
_START_S = 120.0


def build(
    settings: Settings, library: VoiceLibrary, on_progress: Callable[[str, str, float], None]
) -> Engines:
    """Replace ``build_engines``. By default the talker runs at an RTF of 0.5, like real ones."""
    row_s = float(os.environ.get("ROW_S", SPEC.frame_s / 2))
    talker = LabelTalker(row_s=row_s, first_row_s=0.02, capacity=64)
    codec: RunningCodec = FakeCodecEngine(SPEC, 0.002, decoder=LiteralDecoder(SPEC))
    if "FAULTS" in os.environ:
        codec = CodecWorkerEngine(
            "any",
            module="tests.faults.faulty_worker",
            on_progress=lambda phase, seconds: on_progress("codec", phase, seconds),
        )
    return Engines(talker, codec)


def run_wild() -> None:
    """Make ``time.time`` jump in this process."""
    real, chance = time.time, random.Random(0)
    time.time = lambda: real() + chance.uniform(-1.5e7, 1.5e7)


def main() -> None:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if os.environ.pop("CLOCK", "") == "wild":
        run_wild()
    vars(serve)["build_engines"] = build
    settings = load_settings(None, port=port)
    with open_listeners(settings) as listeners:
        serve.serve_until_stopped(settings, listeners)


def free_port() -> int:
    """An unused port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Instance:
    """A running service on its own port."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def is_ready(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=30) as http:
                url = f"http://127.0.0.1:{self.port}/health/ready"
                return (await http.get(url)).status_code == 200
        except httpx.HTTPError:
            return False

    async def speak(self, voice: int) -> None:
        """Speak one context and check every sample."""
        listener = Listener(Script(voice, (60, 90)))
        await native(self.port, [listener])
        assert_right([listener], "complete")

    async def metric(self, series: str) -> float:
        """The value of a metric, given its name and labels as exported."""
        async with httpx.AsyncClient(timeout=30) as http:
            text = (await http.get(f"http://127.0.0.1:{self.port}/metrics")).text
        lines = (line.rpartition(" ") for line in text.splitlines())
        return next(float(value) for name, _, value in lines if name == series)

    async def terminate(self) -> int:
        """Send SIGTERM, as a rolling restart does, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def instance(port: int, stderr: int | None = None, **env: str) -> AsyncIterator[Instance]:
    """Start a service and wait until it is ready; kill it at the end if it still runs.

    ``stderr``: a file descriptor for its log.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.fake_service",
        *("--port", str(port)),
        cwd=ROOT,
        env=os.environ | {"TALKWIRE_ADMISSION": "fixed"} | env,
        stderr=stderr,
    )
    started = Instance(process, port)
    try:
        async with asyncio.timeout(_START_S):
            while not await started.is_ready():
                assert process.returncode is None, "the service ended"
                await asyncio.sleep(0.1)
        yield started
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    main()

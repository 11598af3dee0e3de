"""``talkwire serve`` with a LabelTalker and a LiteralDecoder: everything else is the service's own.

Started as ``python -m tests.faults.fake_service --port N``; settings come from the environment,
as ever. With CLOCK=wild the time of day jumps by up to half a year at each look.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx

from codec.fake import FakeCodecEngine, LiteralDecoder
from service import serve
from service.metrics import Metrics
from service.runtime import Runtime
from service.settings import Settings, load_settings
from talker.fake import LabelTalker
from tests.faults.history import SPEC

ROOT = Path(__file__).parents[2]
_START_S = 120.0


def build(settings: Settings, on_progress: Callable[[str, str, float], None]) -> Runtime:
    """Takes the place of ``service.build``. Twice as fast as it is heard, as real talkers are."""
    talker = LabelTalker(row_s=SPEC.frame_s / 2, first_row_s=0.02, capacity=64, max_frames=1 << 20)
    codec = FakeCodecEngine(SPEC, 0.002, decoder=LiteralDecoder(SPEC))
    return Runtime(settings, talker, codec, Metrics("test", "fake"))


def run_wild() -> None:
    """Let the time of day jump, for everything in this process that asks Python for it."""
    real, chance = time.time, random.Random(0)
    time.time = lambda: real() + chance.uniform(-1.5e7, 1.5e7)


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if os.environ.pop("CLOCK", "") == "wild":
        run_wild()
    serve.build_runtime = build
    serve.serve_until_stopped(load_settings(None, port=port))


class Instance:
    """A running service on a port of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def is_ready(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=30) as http:
                url = f"http://127.0.0.1:{self.port}/health/ready"
                return (await http.get(url)).status_code == 200
        except httpx.HTTPError:
            return False

    async def terminate(self) -> int:
        """As a rolling restart does; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def instance(port: int, **env: str) -> AsyncIterator[Instance]:
    """A service that is ready; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.fake_service",
        *("--port", str(port)),
        cwd=ROOT,
        env=os.environ | {"TALKWIRE_ADMISSION": "fixed"} | env,
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

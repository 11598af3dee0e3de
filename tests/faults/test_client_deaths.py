"""R2: a killed client frees all its resources, and no audio follows an acknowledged cancel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.history import SPEC, Script
from tests.faults.labelled_audio import LabelTalker
from tests.faults.rig import FAR_AHEAD, Gateway, Listener, assert_right, gateway, native

ROOT = Path(__file__).parents[2]
#: About the duration of one context of a client. Clients are killed at random moments on this
#: scale: before a context begins, during it or in a later one.
LIFE_S = 0.4


@contextlib.asynccontextmanager
async def victims() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.victims",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


async def spawn(zygote: asyncio.subprocess.Process, server: Gateway, text: str) -> int:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    url = f"ws://127.0.0.1:{server.port}/v1/tts/stream"
    zygote.stdin.write(f"{url} {json.dumps(text)}\n".encode())
    return int(await zygote.stdout.readline())


async def kill(count: int, seed: int) -> None:
    """Kill clients in groups of eight at random moments, then check a neighbour and the gauges."""
    chance = random.Random(seed)
    talker = LabelTalker(row_s=0.0004, capacity=64)
    beside = [Listener(Script(9, (200, 200)))]
    async with gateway(talker, **FAR_AHEAD) as server, victims() as zygote:
        for _ in range(count // 8):
            text = Script(5, (chance.randrange(1, 600), 150)).text
            pids = [await spawn(zygote, server, text) for _ in range(8)]
            for pid in pids:
                await asyncio.sleep(chance.uniform(0, LIFE_S / 8))
                os.kill(pid, signal.SIGKILL)
        await native(server.port, beside)
        await server.until_free()
        made = talker.rows_made
        await asyncio.sleep(0.3)
        assert talker.rows_made == made  # no rows are made without a client
        assert server.runtime.admission.active == 0
        assert server.runtime.uploads.active == 0
    assert_right(beside, "complete")


async def test_killed_clients_free_their_resources() -> None:
    await kill(104, seed=1)


@pytest.mark.nightly
async def test_thousand_killed_clients_free_their_resources() -> None:
    await kill(1000, seed=2)


async def test_no_audio_follows_cancel() -> None:
    chance = random.Random(3)
    async with gateway(**FAR_AHEAD) as server:
        for _ in range(5):
            listeners = [
                Listener(
                    # the cancel comes first, since no more than 500 frames and a chunk are unread
                    Script(voice, (400, 3000)),
                    cancel_after=chance.randrange(700 * SPEC.hop_length),
                )
                for voice in range(8)
            ]
            await native(server.port, listeners)
            assert_right(listeners)
            assert [one.ended for one in listeners] == ["cancelled"] * 8
            await server.until_free()

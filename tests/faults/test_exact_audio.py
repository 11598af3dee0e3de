"""R1: each client receives every sample of its contexts once and in order."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from loadtest.fakes.codec import FakeCodecEngine
from tests.faults.history import SPEC, Script
from tests.faults.labelled_audio import LiteralDecoder
from tests.faults.rig import FAR_AHEAD, Listener, assert_right, cartesia, gateway, native, openai


def listeners(count: int, frames: int, seed: int, voices: itertools.count[int]) -> list[Listener]:
    """Contexts of ``frames`` frames in two to five parts; every fourth is cancelled."""
    random, made = np.random.default_rng(seed), []
    for number in range(count):
        cuts = np.sort(random.choice(np.arange(1, frames), random.integers(1, 5), replace=False))
        parts = np.diff([0, *cuts, frames])
        cancel = int(random.integers(0, frames * SPEC.hop_length)) if number % 4 == 3 else None
        made.append(Listener(Script(next(voices), tuple(int(n) for n in parts)), cancel))
    return made


async def everybody(frames: int, rounds: int) -> int:
    """Speak ``rounds`` times 24 contexts in three protocols; return the frames received."""
    voices, heard = itertools.count(1), 0
    codec = FakeCodecEngine(SPEC, 0.002, decoder=LiteralDecoder(SPEC))
    async with gateway(codec=codec, **FAR_AHEAD) as server:
        for seed in range(rounds):
            many = [listeners(4, frames, 3 * seed + n, voices) for n in range(3)]
            for one in (vendor := listeners(6, frames, 3 * seed, voices)):
                one.cancel_after = None  # Cartesia's cancel is tested elsewhere
            plain = listeners(6, frames, 3 * seed + 2, voices)
            await asyncio.gather(
                *(native(server.port, group) for group in many),
                cartesia(server.port, vendor),
                *(openai(server.port, one) for one in plain),
            )
            everyone = [*itertools.chain(*many), *vendor, *plain]
            assert_right(everyone)
            heard += sum(one.samples for one in everyone) // SPEC.hop_length
            await server.until_free()
    return heard


async def test_concurrent_contexts_get_hundred_thousand_exact_frames() -> None:
    assert await everybody(frames=2400, rounds=2) > 100_000


@pytest.mark.nightly
async def test_concurrent_contexts_get_million_exact_frames() -> None:
    assert await everybody(frames=2400, rounds=20) > 1_000_000

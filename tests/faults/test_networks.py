"""R1 and R2 over bad networks: audio is exact up to the break, and all resources are freed."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.faults.history import SPEC, Script
from tests.faults.proxy import FaultKind, proxy, random_plan
from tests.faults.rig import FAR_AHEAD, Listener, assert_right, cartesia, gateway, native, openai

FRAMES = (200, 300)
BREAKING: tuple[FaultKind, ...] = ("reset", "half_close", "drop")
SLOWING: tuple[FaultKind, ...] = ("delay", "trickle")


async def speak_through(kinds: tuple[FaultKind, ...], rounds: int, seed: int) -> list[Listener]:
    """Run clients of three protocols with and without the proxy; return those behind the proxy."""
    voices, spoilt = itertools.count(1), []
    most = sum(FRAMES) * SPEC.hop_length * 2
    async with (
        gateway(**FAR_AHEAD) as server,
        proxy(server.port, random_plan(seed, kinds, most)) as between,
    ):
        for _ in range(rounds):
            behind = [Listener(Script(next(voices), FRAMES)) for _ in range(9)]
            beside = [Listener(Script(next(voices), FRAMES)) for _ in range(3)]
            await asyncio.gather(
                native(between.port, behind[0:2]),
                native(between.port, behind[2:4]),
                cartesia(between.port, behind[4:6]),
                *(openai(between.port, one) for one in behind[6:9]),
                native(server.port, beside[:2]),
                openai(server.port, beside[2]),
            )
            assert_right(beside, "complete")
            spoilt += behind
            await server.until_free()
    return spoilt


def assert_beginnings(listeners: list[Listener]) -> None:
    """Assert that each client received a prefix of its audio and knows how its context ended."""
    assert [one.faults() for one in listeners] == [[]] * len(listeners)
    assert all(one.ended for one in listeners)


async def test_broken_connections_deliver_exact_prefix() -> None:
    listeners = await speak_through(BREAKING, rounds=3, seed=1)
    assert_beginnings(listeners)
    broken = [one for one in listeners if one.ended == "broken"]
    assert broken
    assert any(one.samples for one in broken)


async def test_slow_connections_lose_no_sample() -> None:
    assert_right(await speak_through(SLOWING, rounds=1, seed=2), "complete")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
async def test_random_network_faults_deliver_exact_prefix(seed: int) -> None:
    assert_beginnings(await speak_through(BREAKING + SLOWING, rounds=20, seed=seed))

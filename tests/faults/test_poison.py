"""R7: a request that breaks an engine fails alone, with an error code; others complete."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from codec.engine import CodecWorkerEngine
from tests.faults.faulty_worker import POISON
from tests.faults.history import Script
from tests.faults.rig import (
    FAR_AHEAD,
    PATIENT,
    ROOT,
    Listener,
    assert_right,
    cartesia,
    gateway,
    native,
    openai,
)


class Poisoned(Script):
    """A script whose second part fails in the talker."""

    @property
    def text(self) -> str:
        """See Script and FakeTalker."""
        return super().text.replace("part 1 ", "!fail part 1 ")


async def test_talker_failure_affects_only_its_context() -> None:
    good = [Listener(Script(voice, (200, 200))) for voice in range(6)]
    bad = [Listener(Poisoned(voice, (50, 200, 50))) for voice in range(10, 15)]
    async with gateway(**FAR_AHEAD) as server:
        await asyncio.gather(
            native(server.port, [good[0], bad[0], good[1], bad[1]]),
            native(server.port, [good[2]]),
            cartesia(server.port, [good[3], bad[2]]),
            openai(server.port, bad[3]),
            openai(server.port, good[4]),
            openai(server.port, bad[4]),
            openai(server.port, good[5]),
        )
        await server.until_free()
        assert server.runtime.lifecycle.is_ready
    assert_right(good, "complete")
    assert_right(bad, "broken")
    assert [error["code"] for one in bad[:2] for error in one.errors] == ["engine_failed"] * 2
    assert all(error["retryable"] for one in bad[:2] for error in one.errors)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_window_that_kills_codec_workers_fails_only_its_context(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.touch()
    env = {"FAULTS": str(faults), "PYTHONPATH": ROOT}
    codec = CodecWorkerEngine("any", module="tests.faults.faulty_worker", env=env, watch=PATIENT)
    good = [Listener(Script(voice, (400, 300))) for voice in range(4)]
    bad = Listener(Script(POISON, (100,)))
    async with gateway(codec=codec, **FAR_AHEAD) as server:
        await asyncio.gather(
            native(server.port, [good[0], bad, good[1]]),
            cartesia(server.port, [good[2]]),
            openai(server.port, good[3]),
        )
        await server.until_free()
        assert codec.restarts == 2
    assert_right(good, "complete")
    assert_right([bad], "broken")
    assert [error["code"] for error in bad.errors] == ["codec_failed"]

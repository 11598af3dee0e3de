"""R4: no sample is lost when a codec worker is killed or stopped, at any step."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import pytest

from codec.engine import CodecWorkerEngine
from ipc import supervisor
from tests.faults.faulty_worker import STEPS
from tests.faults.history import Script
from tests.faults.rig import (
    FAR_AHEAD,
    PATIENCE_S,
    PATIENT,
    ROOT,
    Gateway,
    Listener,
    assert_right,
    cartesia,
    gateway,
    native,
    openai,
)
from tests.waiting import until


def engine(
    lives: list[tuple[str, int, signal.Signals]],
    folder: Path,
    *,
    workers: int = 1,
    spare: bool = False,
) -> CodecWorkerEngine:
    faults = folder / "faults"
    faults.write_text("\n".join(f"{step} {count} {int(number)}" for step, count, number in lives))
    env = {"FAULTS": str(faults), "PYTHONPATH": ROOT}
    return CodecWorkerEngine(
        "any",
        module="tests.faults.faulty_worker",
        env=env,
        watch=PATIENT,
        workers=workers,
        spare=spare,
    )


async def speak_on(server: Gateway, deaths: int) -> int:
    """Run streams of three protocols side by side until ``deaths`` restarts; return the rounds."""
    voices, rounds = itertools.count(1), 0
    while server.codec.restarts < deaths or not rounds:
        one, two, vendor, plain = (Listener(Script(next(voices), (300, 500))) for _ in range(4))
        await asyncio.gather(
            native(server.port, [one, two]),
            cartesia(server.port, [vendor]),
            openai(server.port, plain),
        )
        assert_right([one, two, vendor, plain], "complete")
        rounds += 1
    await server.until_free()
    return rounds


async def survive(lives: list[tuple[str, int, signal.Signals]], folder: Path) -> None:
    codec = engine(lives, folder)
    async with gateway(codec=codec, **FAR_AHEAD) as server:
        await speak_on(server, len(lives))
        assert codec.restarts == len(lives)
        await speak_on(server, 0)
        assert server.runtime.lifecycle.is_ready


async def test_codec_worker_killed_or_stopped_loses_no_sample(tmp_path: Path) -> None:
    lives = [("decoding", 9, signal.SIGKILL), ("decoded", 12, signal.SIGSTOP)]
    await survive(lives, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_of_two_workers_killed_or_stopped_in_mid_stream_loses_no_sample(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", (3600.0,))  # no restart during the test
    codec = engine([], tmp_path, workers=2)
    async with gateway(codec=codec, **FAR_AHEAD) as server:
        speaking = asyncio.create_task(speak_on(server, 1))
        await until(lambda: len(codec._decodes._in_hand) >= 2, timeout_s=PATIENCE_S)
        victim, survivor = codec.pids
        assert victim is not None
        os.kill(victim, number)
        await speaking
        assert (codec.pids, codec.workers, codec.restarts) == ([survivor], 1, 1)
        assert server.runtime.lifecycle.is_ready


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_spare_takes_over_killed_or_stopped_worker_before_any_restart(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", (3600.0,))  # no restart during the test
    codec = engine([("decoding", 40, number)], tmp_path, spare=True)  # 40: well into the streams
    async with gateway(codec=codec, **FAR_AHEAD) as server:
        await until(lambda: codec.has_spare_ready, timeout_s=PATIENCE_S)
        spare = codec.spare_pid
        await speak_on(server, 1)
        assert (codec.pid, codec.takeovers, codec.restarts) == (spare, 1, 1)
        assert not codec.has_spare_ready
        assert server.runtime.lifecycle.is_ready


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_codec_worker_killed_or_stopped_at_each_step_loses_no_sample(
    number: signal.Signals, tmp_path: Path
) -> None:
    await survive([(step, 9 + n, number) for n, step in enumerate(STEPS)], tmp_path)

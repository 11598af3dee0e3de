"""A real Whisper, if a very small one, in its real process."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from asr.engine import WhisperEngine
from asr.whisper import ModelError, check_folder
from streaming.errors import BackendError, CapacityError, ErrorCode
from tests.asr import tiny

pytestmark = pytest.mark.slow
RATE = 24_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    tiny.make(folder)
    return folder


@asynccontextmanager
async def whisper(model: Path, **options: float) -> AsyncIterator[WhisperEngine]:
    engine = WhisperEngine(model, **options)  # type: ignore[arg-type]
    engine.check()
    try:
        yield engine
    finally:
        await engine.stop()


def worker() -> psutil.Process:
    (child,) = [c for c in psutil.Process().children() if "asr.worker" in c.cmdline()]
    return child


async def test_it_hears_what_is_there_and_survives_its_death(model: Path) -> None:
    async with whisper(model) as engine:
        with pytest.raises(ValueError):
            worker()  # nothing runs before the first clip
        low, high = (
            engine.transcribe(tiny.tone(hertz, RATE), RATE) for hertz in (tiny.LOW, tiny.HIGH)
        )
        assert await asyncio.gather(low, high) == ["low tone", "high tone"]
        assert await engine.transcribe(tiny.tone(tiny.LOW * 1.1, 44_100), 44_100) == "low tone"
        waiting = [
            asyncio.create_task(engine.transcribe(np.zeros(9, np.float32), RATE)) for _ in range(4)
        ]
        await asyncio.sleep(0)
        with pytest.raises(CapacityError):
            await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)
        await asyncio.wait(waiting)
        worker().send_signal(signal.SIGSTOP)
        lost = asyncio.create_task(engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE))
        await asyncio.sleep(0.1)
        worker().kill()
        with pytest.raises(BackendError):
            await lost
        async with asyncio.timeout(200):
            while True:  # down for a moment, then there again
                try:
                    assert await engine.transcribe(tiny.tone(tiny.HIGH, RATE), RATE) == "high tone"
                    break
                except BackendError:
                    await asyncio.sleep(0.2)


async def test_a_model_that_cannot_be_loaded_fails_the_clip(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "preprocessor_config.json").unlink()
    async with whisper(broken) as engine:
        for _ in range(2):
            with pytest.raises(BackendError) as failed:
                await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)
        assert str(broken) not in failed.value.message


@pytest.mark.long  # three deaths, each of which has loaded torch
async def test_a_start_that_failed_is_tried_again_with_the_next_clip(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    async with whisper(folder) as engine:
        clip = tiny.tone(tiny.LOW, RATE)
        with pytest.raises(BackendError):
            await engine.transcribe(clip, RATE)
        weights.write_bytes(whole)
        assert await engine.transcribe(clip, RATE) == "low tone"


async def test_who_waits_for_the_start_hears_that_it_is_over(model: Path) -> None:
    async with whisper(model) as engine:
        waiting = asyncio.create_task(engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE))
        await asyncio.sleep(0.1)
        await engine.stop()
        with pytest.raises(BackendError):
            await waiting


async def test_patience_ends(model: Path) -> None:
    async with whisper(model, patience_s=0.05) as engine:
        with pytest.raises(BackendError):
            await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)


def test_only_whisper_in_safetensors_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no config"):
        check_folder(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("[]")
    with pytest.raises(ModelError, match="no config"):
        check_folder(tmp_path)
    config.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match="llama"):
        check_folder(tmp_path)
    config.write_text(json.dumps({"model_type": "whisper"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match="safetensors"):
        check_folder(tmp_path)
    with pytest.raises(BackendError, match="asr_model") as refused:
        WhisperEngine(tmp_path).check()
    assert refused.value.code is ErrorCode.INTERNAL

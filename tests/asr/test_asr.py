"""Whisper: a real but very small model in its real worker process."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from asr.engine import WhisperEngine
from asr.whisper import ModelError, check_folder
from service.launch import build_recogniser
from service.settings import load_settings
from streaming.errors import BackendError, CapacityError, ErrorCode
from tests.asr import tiny
from tests.service.live import gateway
from tests.service.voices import clips

pytestmark = pytest.mark.slow
RATE = 24_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    tiny.make(folder)
    return folder


@asynccontextmanager
async def whisper(model: Path, **options: Any) -> AsyncIterator[WhisperEngine]:
    engine = WhisperEngine(model, **options)
    await engine.prepare()
    try:
        yield engine
    finally:
        await engine.stop()


def worker() -> psutil.Process:
    (child,) = [c for c in psutil.Process().children() if "asr.worker" in c.cmdline()]
    return child


async def test_whisper_engine_transcribes_and_restarts_after_worker_death(model: Path) -> None:
    async with whisper(model) as engine:
        with pytest.raises(ValueError):
            worker()  # no worker runs before the first clip
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
            while True:  # the worker is down for a moment
                try:
                    assert await engine.transcribe(tiny.tone(tiny.HIGH, RATE), RATE) == "high tone"
                    break
                except BackendError:
                    await asyncio.sleep(0.2)


@pytest.mark.long
async def test_unloadable_model_fails_clip_without_naming_path(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "preprocessor_config.json").unlink()
    async with whisper(broken) as engine:
        for _ in range(2):
            with pytest.raises(BackendError) as failed:
                await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)
        assert str(broken) not in failed.value.message


@pytest.mark.long  # three workers die, each after loading torch
async def test_failed_start_is_retried_with_next_clip(model: Path, tmp_path: Path) -> None:
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


async def test_stop_fails_clip_that_waits_for_start(model: Path) -> None:
    async with whisper(model) as engine:
        waiting = asyncio.create_task(engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE))
        await asyncio.sleep(0.1)
        await engine.stop()
        with pytest.raises(BackendError):
            await waiting


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_stop_ends_process_whose_start_has_just_been_requested(
    model: Path, turns: int
) -> None:
    async with whisper(model) as engine:
        waiting = asyncio.create_task(engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE))
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(BackendError):
            await waiting
        assert engine._supervisor is not None
        assert engine._supervisor.pid is None


async def test_transcription_times_out(model: Path) -> None:
    async with whisper(model, timeout_s=0.05) as engine:
        with pytest.raises(BackendError):
            await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)


async def test_check_folder_accepts_only_whisper_in_safetensors(tmp_path: Path) -> None:
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
        await WhisperEngine(tmp_path).prepare()
    assert refused.value.code is ErrorCode.INTERNAL


@pytest.mark.long
async def test_missing_device_fails_clip(model: Path) -> None:
    async with whisper(model, device="cuda:9") as engine:
        with pytest.raises(BackendError):
            await engine.transcribe(tiny.tone(tiny.LOW, RATE), RATE)


async def test_voice_text_is_recognised_from_clip(model: Path) -> None:
    """Through the settings, gateway, clip reader and a real recogniser."""
    settings = load_settings(asr_model=str(model), asr_device="cpu", asr_dtype="bfloat16")
    recogniser = build_recogniser(settings, lambda phase, seconds: None)
    async with gateway(transcriber=recogniser) as live, httpx.AsyncClient(timeout=120) as http:
        for name, hertz in (("low", tiny.LOW), ("high", tiny.HIGH)):
            body = {
                "name": name,
                "audio_sample": clips.as_base64(clips.wav(tiny.tone(hertz, RATE))),
                "consent": {"by": "nobody", "statement": "It is a tone."},
            }
            voice = (await http.post(f"{live.http}/v1/audio/voices", json=body)).json()
            assert (voice["text"], voice["text_source"]) == (f"{name} tone", "recognised")
            assert voice["warning"] is None


@pytest.mark.parametrize("model", ["/nowhere/whisper", "org/name/more"])
async def test_missing_model_is_reported_at_start(model: str) -> None:
    recogniser = build_recogniser(load_settings(asr_model=model), lambda phase, seconds: None)
    assert recogniser is not None
    with pytest.raises(BackendError, match=f"asr_model .*{model}"):
        await recogniser.prepare()


async def test_hub_id_is_resolved_from_hub_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--org--ears" / "snapshots" / ("0" * 40)
    shutil.copytree(model, snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    phases: list[str] = []
    recogniser = build_recogniser(
        load_settings(asr_model="org/ears"), lambda phase, seconds: phases.append(phase)
    )
    assert recogniser is not None
    await recogniser.prepare()
    assert phases[0] == "download"

"""Encoding of clips by real worker processes, beside windows that must not wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codec.engine import CodecWorkerEngine
from codec.families.higgs.checkpoint import open_higgs
from codec.messages import Cancel, Encode, Encoded
from codec.pending import PendingEncodes
from ipc.supervisor import Watch
from loadtest.fakes.codec import FakeDecoder
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError
from streaming.ports import EncodedClip
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow
from tests.waiting import until

#: The spec of odd_worker.py, and the orders that it reads from a clip's first sample.
SPEC = CodecSpec(24_000, 6, (1000,) * 2, 3, 3)
CLIP_DIE, CLIP_ERR, CLIP_BAD, CLIP_SLOW = -1.0, -0.5, -0.25, -0.125
FAKE = FakeDecoder(SPEC)


@asynccontextmanager
async def odd(
    model: str = "fake", env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[CodecWorkerEngine]:
    engine = CodecWorkerEngine(
        model,
        module="odd_worker",
        env={"PYTHONPATH": str(Path(__file__).parent), **(env or {})},
        watch=Watch(hang_timeout_s=20.0, stop_timeout_s=2.0),
        **options,
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def clip(first: float = 0.5, frames: int = 5) -> Samples:
    samples = np.random.default_rng(frames).uniform(-0.9, 0.9, frames * 6 - 2)
    samples[0] = first
    return samples.astype(np.float32)


def window() -> DecodeWindow:
    return DecodeWindow(np.ones((2, 10), np.int16), 3, 4, 3)


async def test_encode_returns_codes_of_each_clip() -> None:
    async with odd() as engine:
        assert engine.can_encode
        assert engine.fingerprint == FAKE.fingerprint
        clips = [clip(frames=frames) for frames in (1, 5, 40)]
        answers = await asyncio.gather(*(engine.encode(one) for one in clips))
        for one, (codes, vector) in zip(clips, answers, strict=True):
            assert (codes.dtype, vector) == (np.int16, None)
            assert np.array_equal(codes, FAKE.encode(one))


async def test_windows_do_not_wait_for_clips(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with odd(env={"GATE": str(gate)}) as engine:
        slow = asyncio.create_task(engine.encode(clip(CLIP_SLOW)))
        await until(lambda: engine._encodes._in_hand is not None)
        for _ in range(5):
            await engine.decode(window(), time.monotonic())
        assert not slow.done()
        gate.touch()
        assert (await slow).codes.shape == (2, 5)


async def test_encode_failure_does_not_affect_next_clip() -> None:
    async with odd() as engine:
        with pytest.raises(RequestError) as refused:
            await engine.encode(clip(CLIP_BAD))
        assert refused.value.code is ErrorCode.INVALID_AUDIO
        with pytest.raises(BackendError) as failed:
            await engine.encode(clip(CLIP_ERR))
        assert failed.value.code is ErrorCode.CODEC_FAILED
        assert "told" not in failed.value.message
        assert (await engine.encode(clip())).codes.shape == (2, 5)
        assert engine.restarts == 0


async def test_clip_that_kills_worker_fails_alone() -> None:
    async with odd() as engine:
        poison = asyncio.create_task(engine.encode(clip(CLIP_DIE)))
        behind = asyncio.create_task(engine.encode(clip(frames=7)))
        with pytest.raises(BackendError) as failed:
            await poison
        assert failed.value.code is ErrorCode.CODEC_FAILED
        assert np.array_equal((await behind).codes, FAKE.encode(clip(frames=7)))
        assert engine.restarts == 1


async def test_clip_limit_refuses_excess_and_cancel_frees_place() -> None:
    async with odd(max_clips=2) as engine:
        first = asyncio.create_task(engine.encode(clip(CLIP_SLOW)))
        second = asyncio.create_task(engine.encode(clip()))
        await asyncio.sleep(0)
        with pytest.raises(CapacityError) as full:
            await engine.encode(clip())
        assert (full.value.code, full.value.retry_after_ms) == (ErrorCode.OVERLOADED, 2000)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(engine.encode(clip(frames=3)))
        assert (await first).codes.shape == (2, 5)
        assert (await third).codes.shape == (2, 3)


async def test_encode_times_out() -> None:
    async with odd(patience_s=0.2) as engine:
        with pytest.raises(BackendError, match="in time"):
            await engine.encode(clip(CLIP_SLOW))


@pytest.mark.parametrize("frames", [4, 6])
async def test_codes_of_wrong_length_fail_encode(frames: int) -> None:
    encodes = PendingEncodes(lambda message: None, 2)
    asking = asyncio.create_task(encodes.encode(0, clip(frames=5), SPEC.hop_length, 60.0))
    await asyncio.sleep(0)
    encodes.on_message(Encoded(0, np.zeros((2, frames), "<i2").tobytes(), 2))
    with pytest.raises(BackendError) as failed:
        await asking
    assert failed.value.code is ErrorCode.CODEC_FAILED


async def test_cancelled_encode_withdraws_clip() -> None:
    sent: list[Encode | Cancel] = []
    encodes = PendingEncodes(sent.append, 2)
    asking = asyncio.create_task(encodes.encode(3, clip(), SPEC.hop_length, 60.0))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sent[1:] == [Cancel(3)]
    encodes.on_ready()
    assert len(sent) == 2, "the next worker does not get it"


@pytest.mark.parametrize("end", ["answer", "fail", "stop"])
async def test_worker_hears_no_more_of_clip_that_has_ended(end: str) -> None:
    """Another one, whose caller gives up at this very moment, does no harm."""
    sent: list[Encode | Cancel] = []
    encodes = PendingEncodes(sent.append, 2)
    asking = [
        asyncio.create_task(encodes.encode(id, clip(), SPEC.hop_length, 60.0)) for id in range(2)
    ]
    await asyncio.sleep(0)
    sent.clear()
    asking[1].cancel()  # it has not run since
    for id in range(2):
        match end:
            case "answer":
                encodes.on_message(Encoded(id, np.zeros((2, 5), "<i2").tobytes(), 2))
            case "fail":
                assert encodes.on_failed(id, bad_clip=False)
            case _:
                encodes.stop()
    first, second = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, EncodedClip if end == "answer" else BackendError)
    assert isinstance(second, asyncio.CancelledError)
    encodes.on_ready()
    assert sent == []


async def test_encode_without_encoder_is_unsupported() -> None:
    async with odd("deaf") as engine:
        assert not engine.can_encode
        with pytest.raises(RequestError) as refused:
            await engine.encode(clip())
        assert refused.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize("bad", [np.zeros(0, np.float32), np.zeros((2, 6), np.float32)])
async def test_encode_refuses_malformed_clip(bad: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    async with odd() as engine:
        sent: list[object] = []
        monkeypatch.setattr(engine._workers, "send", lambda worker, message: sent.append(message))
        with pytest.raises(RequestError) as refused:
            await engine.encode(bad)
        assert refused.value.code is ErrorCode.INVALID_AUDIO
        assert sent == []


async def test_stop_fails_pending_clips() -> None:
    async with odd() as engine:
        waiting = asyncio.create_task(engine.encode(clip(CLIP_SLOW)))
        await until(lambda: engine._encodes._pending)
        await engine.stop()
        with pytest.raises(BackendError):
            await waiting
        with pytest.raises(BackendError):
            await engine.encode(clip())


async def test_real_worker_encodes_like_higgs_encoder(checkpoint: Path) -> None:
    engine = CodecWorkerEngine(str(checkpoint))
    await engine.start()
    try:
        samples = np.random.default_rng(3).normal(0, 0.1, 24_000 + 7).astype(np.float32)
        assert engine.can_encode
        assert len(engine.fingerprint) == 32
        codes, _ = await engine.encode(samples)
        assert np.array_equal(codes, open_higgs(str(checkpoint)).load_encoder().encode(samples))
        assert codes.shape == (8, 26)
    finally:
        await engine.stop()

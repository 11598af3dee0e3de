"""Codec engines that get their own folder, or that of the talker, from a callable."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from codec.engine import CodecWorkerEngine
from ipc.supervisor import ChildFailed
from streaming.errors import BackendError, ErrorCode
from streaming.window import DecodeWindow
from tests.codec.fish_checkpoint import write_codec_safetensors

_ENV = {"PYTHONPATH": str(Path(__file__).parent)}


class Finder:
    """Returns a folder once ``found`` is set, and counts the calls."""

    def __init__(self) -> None:
        self.asked, self.found = 0, asyncio.Event()

    async def __call__(self) -> Path:
        self.asked += 1
        await self.found.wait()
        return Path("fake")


async def test_engine_finds_folder_once_for_all_workers() -> None:
    finder = Finder()
    engine = CodecWorkerEngine(finder, module="odd_worker", env=_ENV)
    window = DecodeWindow(np.ones((2, 10), np.int16), 3, 4, 3)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    assert (engine.is_ready, engine.pid, engine.restarts) == (False, None, 0)
    with pytest.raises(BackendError) as error:
        await engine.decode(window, time.monotonic())
    assert error.value.code is ErrorCode.NOT_READY
    finder.found.set()
    await starting
    assert engine.pid is not None
    first, _ = await engine.decode(window, time.monotonic())
    os.kill(engine.pid, signal.SIGKILL)
    again, _ = await engine.decode(window, time.monotonic())
    assert np.array_equal(again, first)
    assert (engine.restarts, finder.asked) == (1, 1)
    await engine.stop()


async def test_engine_stopped_while_finding_folder_starts_no_worker() -> None:
    finder = Finder()
    engine = CodecWorkerEngine(finder, module="odd_worker", env=_ENV)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await engine.stop()
    finder.found.set()
    with pytest.raises(ChildFailed, match="stopped"):
        await starting
    assert engine.pid is None


async def test_engine_refuses_talker_with_other_codebook_count(tmp_path: Path) -> None:
    """A codec with its own folder is compared with the talker at the start."""
    write_codec_safetensors(tmp_path / "codec")
    config = '{"audio_decoder_config": {"num_codebooks": %d}}'
    for books in (10, 9):
        (tmp_path / "config.json").write_text(config % books)

        async def talker() -> Path:
            return tmp_path

        engine = CodecWorkerEngine(str(tmp_path / "codec"), talker=talker, device="cpu")
        try:
            if books == 10:
                await engine.start()
                assert engine.spec.num_codebooks == 10
            else:
                with pytest.raises(ChildFailed, match="speaks 9 codebooks, the codec has 10"):
                    await engine.start()
        finally:
            await engine.stop()

"""A disk that is really full: a file system of 1 MiB, if this process may mount one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fake_service import ROOT, Instance
from tests.service.live import client
from tests.service.voices.voice_server import OTHER, PATH, error, files_in, server

_SIZE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty disk of 1 MiB; skip if that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a small file system")
    libc, place = ctypes.CDLL(None, use_errno=True), str(tmp_path).encode()
    options = f"size={_SIZE},mode=0700".encode()
    if libc.mount(b"none", place, b"tmpfs", 0, ctypes.c_char_p(options)):
        pytest.skip(f"this process may not mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield tmp_path
    finally:
        assert libc.umount2(place, 2) == 0  # MNT_DETACH


def fill(disk: Path) -> Path:
    """Write until the disk is full."""
    path = disk / "other"
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    usage = os.statvfs(disk)
    assert usage.f_bfree == 0
    return path


async def test_add_voice_on_full_disk_fails_and_other_voices_remain(disk: Path) -> None:
    folder = disk / "voices"
    async with server(voices_dir=folder) as s:
        assert (await s.add()).status_code == 201
        before = (await s.speak(voice="anna")).content
        kept, filled = files_in(folder), fill(disk)
        for _ in range(3):
            assert error(await s.add(OTHER, name="bert")) == (507, "storage_failed", None)
        assert files_in(folder) == kept
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default", "anna"]
        assert (await s.speak(voice="anna")).content == before
        assert (await s.speak()).content == s.expected()
        async with client(s.live.url) as talk:
            assert len(await talk.say("Hello there."))
        filled.unlink()
        assert (await s.add(OTHER, name="bert")).status_code == 201
        fill(disk)
        assert (await s.http.delete(f"{PATH}/anna")).status_code == 200, "room must be to be had"
    async with server(voices_dir=folder) as s:
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default", "bert"]


async def test_service_speaks_while_logs_cannot_be_written(disk: Path) -> None:
    """The service's standard error is a file on a disk that is filled while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = disk / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.fake_service", "--port", str(port)),
            cwd=ROOT,
            stderr=stderr,
            env=os.environ | {"TALKWIRE_ADMISSION": "fixed", "TALKWIRE_LOG_LEVEL": "debug"},
        )
    try:
        service = Instance(process, port)
        async with asyncio.timeout(120):
            while not await service.is_ready():
                assert process.returncode is None
                await asyncio.sleep(0.1)
        fill(disk)
        size = log.stat().st_size
        url = f"ws://127.0.0.1:{port}/v1/tts/stream"
        for _ in range(3):
            async with client(url) as talk:
                await talk.send("text.append", context_id="x", text="Nobody's.")
                assert (await talk.error())["code"] == "unknown_context"  # and is logged
                assert len(await talk.say("Hello there."))
        assert log.stat().st_size < size + 4096, "the disk was not full"
        assert await service.is_ready()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

"""Servers that share a folder of voices: unique names, complete deletion and the folder's lock."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.voices.store import FolderLock, Voice, VoiceFolder
from streaming.errors import BackendError, ErrorCode, RequestError
from tests.service.voices.stored_voices import library, voice
from tests.service.voices.voice_server import files_in
from tests.waiting import until


async def test_servers_see_voices_added_and_removed_by_each_other(tmp_path: Path) -> None:
    async with library(tmp_path) as one, library(tmp_path) as two:
        anna = voice("anna")
        await one.add(anna)
        await two._refresh()
        assert two.names() == ["anna"]
        await two.remove("anna")
        await one._refresh()
        assert one.names() == []
        with pytest.raises(RequestError) as refused:
            await one.remove(anna.id)
        assert refused.value.code is ErrorCode.UNKNOWN_VOICE


@pytest.mark.parametrize("by_id", [False, True], ids=["name", "id"])
async def test_remove_knows_what_another_server_changed_before(tmp_path: Path, by_id: bool) -> None:
    """An id never stands for a later voice of the same name."""
    async with library(tmp_path) as one, library(tmp_path) as two:
        first, later = voice("anna"), voice("anna")
        await one.add(first)
        await two._refresh()
        await one.remove("anna")
        await one.add(later)
        if by_id:
            with pytest.raises(RequestError) as refused:
                await two.remove(first.id)
            assert refused.value.code is ErrorCode.UNKNOWN_VOICE
            assert files_in(tmp_path) == [tmp_path / f"{later.id}.safetensors"]
        else:
            assert (await two.remove("anna")).id == later.id
            assert files_in(tmp_path) == []


async def test_library_is_read_again_after_a_time_without_free_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes, failures = VoiceFolder.changes, iter([RuntimeError("can't start new thread")])

    def fail_once(folder: VoiceFolder, known: Collection[str]) -> tuple[list[Voice], list[str]]:
        if failure := next(failures, None):
            raise failure
        return changes(folder, known)

    async with library(tmp_path, refresh_s=0.01) as one, library(tmp_path) as two:
        await two.add(voice("anna"))
        monkeypatch.setattr(VoiceFolder, "changes", fail_once)
        refreshing = one._refreshing
        assert refreshing is not None
        await until(lambda: one.names() == ["anna"] or refreshing.done())
        assert one.names() == ["anna"]
    assert "cannot be read: can't start new thread" in caplog.text


async def test_name_is_given_once_across_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has refreshed its library before it adds the voice."""
    monkeypatch.setattr("service.voices.store._LOCK_S", 600.0)  # a busy disk is slow
    async with library(tmp_path) as one, library(tmp_path) as two:
        tries = await asyncio.gather(
            *(server.add(voice("anna")) for server in (one, two) for _ in range(4)),
            return_exceptions=True,
        )
        assert [getattr(e, "code", None) for e in tries].count(ErrorCode.VOICE_EXISTS) == 7
        for server in (one, two):
            await server._refresh()
        assert one.find("anna").id == two.find("anna").id


async def test_tenant_limit_holds_across_servers(tmp_path: Path) -> None:
    async with library(tmp_path) as one, library(tmp_path) as two:
        await one.add(voice("anna", tenant="acme"), 1)
        assert two.own_names("acme") == []
        with pytest.raises(RequestError) as refused:
            await two.add(voice("bert", tenant="acme"), 1)
        assert refused.value.code is ErrorCode.TOO_MANY_VOICES
        await two.add(voice("bert", tenant="other"), 1)


async def test_remove_deletes_all_files_of_name(tmp_path: Path) -> None:
    """Servers without locks may have left several files of a name."""
    folder = VoiceFolder(tmp_path)
    folder.open()
    left = [voice("anna", created_at=n) for n in (1, 2)]
    other = [voice("anna", codec="c0"), voice("anna", tenant="acme"), voice("bert")]
    for one in left + other:
        folder.write(one)
    async with library(tmp_path) as store:
        await store.remove("anna")
        await store._refresh()
        assert store.names() == ["bert"]
        assert store.own_names("acme") == ["anna"]
    assert {path.stem for path in files_in(tmp_path)} == {v.id for v in other[1:]}


async def test_folder_lock_is_waited_for_until_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, now = threading.Semaphore(0), 0.0

    def wait(_: float) -> None:
        tries.release()
        time.sleep(0.001)

    clock = SimpleNamespace(sleep=wait, time=time.time, monotonic=lambda: now)
    monkeypatch.setattr("service.voices.store.time", clock)
    async with library(tmp_path) as store:
        held = VoiceFolder(tmp_path).lock()
        held.acquire()
        adding = asyncio.create_task(store.add(voice("anna")))
        assert await asyncio.to_thread(tries.acquire, timeout=60)
        now = 10.0  # the last moment
        for _ in range(3):
            assert await asyncio.to_thread(tries.acquire, timeout=60)
        assert not adding.done()
        held.release()
        await adding
        held.acquire()
        adding = asyncio.create_task(store.add(voice("bert")))
        while tries.acquire(blocking=False):
            pass
        assert await asyncio.to_thread(tries.acquire, timeout=60)
        now = 20.1
        with pytest.raises(BackendError) as failed:
            await adding
        assert failed.value.code is ErrorCode.STORAGE_FAILED
        held.release()
        await store.add(voice("bert"))
        assert store.names() == ["anna", "bert"]


async def test_failed_lock_release_is_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system, closing the lock's file may fail."""

    def fail(_: FolderLock) -> None:
        raise OSError(errno.EIO, "lost")

    async with library(tmp_path) as store:
        with monkeypatch.context() as broken:
            broken.setattr(FolderLock, "release", fail)
            with pytest.raises(BackendError) as failed:
                await store.remove("anna")
        assert failed.value.code is ErrorCode.STORAGE_FAILED


@pytest.mark.parametrize("step", ["lock", "write"])
async def test_cancelled_add_releases_folder_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A thread takes the lock or writes the file when its caller is cancelled."""
    begun, may_go_on, ended = (threading.Event() for _ in range(3))
    of = FolderLock if step == "lock" else VoiceFolder
    name = "acquire" if step == "lock" else "write"
    work = getattr(of, name)

    def work_later(*args: object) -> None:
        begun.set()
        may_go_on.wait(60)
        work(*args)
        ended.set()

    async with library(tmp_path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(of, name, work_later)
            adding = asyncio.create_task(store.add(voice("anna")))
            assert await asyncio.to_thread(begun.wait, 60)
            adding.cancel()
            for _ in range(10):  # turns of the event loop
                await asyncio.sleep(0)
            assert not adding.done()
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await adding
            assert await asyncio.to_thread(ended.wait, 60)
        free = VoiceFolder(tmp_path).lock()
        monkeypatch.setattr("service.voices.store._LOCK_S", 0.0)
        free.acquire()
        free.release()
        assert len(files_in(tmp_path)) == (step == "write")

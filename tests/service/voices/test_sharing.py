"""Servers that share a folder of voices: one owner of a name, nothing left of what is deleted."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from service.voices.store import FolderLock, VoiceFolder
from streaming.errors import BackendError, ErrorCode, RequestError
from tests.service.voices.stored_voices import library, voice
from tests.service.voices.voice_server import files_in


async def test_servers_share_a_folder(tmp_path: Path) -> None:
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


async def test_servers_that_share_a_folder_agree_on_a_name(tmp_path: Path) -> None:
    """Before either has looked into the folder again."""
    async with library(tmp_path) as one, library(tmp_path) as two:
        tries = await asyncio.gather(
            *(server.add(voice("anna")) for server in (one, two) for _ in range(4)),
            return_exceptions=True,
        )
        assert [getattr(e, "code", None) for e in tries].count(ErrorCode.VOICE_EXISTS) == 7
        for server in (one, two):
            await server._refresh()
        assert one.find("anna").id == two.find("anna").id


async def test_a_deleted_name_is_gone_from_the_disk(tmp_path: Path) -> None:
    """Whatever two servers without locks, or an older codec, have left of it."""
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


async def test_who_holds_the_folder_is_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with library(tmp_path) as store:
        held = VoiceFolder(tmp_path).lock()
        held.acquire()
        adding = asyncio.create_task(store.add(voice("anna")))
        await asyncio.sleep(0.1)
        assert not adding.done()
        held.release()
        await adding
        held.acquire()
        monkeypatch.setattr("service.voices.store._LOCK_S", 0.1)
        with pytest.raises(BackendError) as failed:
            await store.add(voice("bert"))
        assert failed.value.code is ErrorCode.STORAGE_FAILED
        held.release()
        await store.add(voice("bert"))
        assert store.names() == ["anna", "bert"]


async def test_a_lock_that_cannot_be_released_is_a_storage_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the lock's file cannot be closed, on a network file system."""

    def fail(_: FolderLock) -> None:
        raise OSError(errno.EIO, "lost")

    async with library(tmp_path) as store:
        with monkeypatch.context() as broken:
            broken.setattr(FolderLock, "release", fail)
            with pytest.raises(BackendError) as failed:
                await store.remove("anna")
        assert failed.value.code is ErrorCode.STORAGE_FAILED


async def test_who_is_cancelled_leaves_no_lock(tmp_path: Path) -> None:
    async with library(tmp_path) as store:
        for _ in range(20):
            adding = asyncio.create_task(store.add(voice("anna")))
            await asyncio.sleep(0.001)
            adding.cancel()
        await asyncio.wait([adding])
        free = VoiceFolder(tmp_path).lock()
        await asyncio.wait_for(asyncio.to_thread(free.acquire), 30)
        free.release()

"""Edits of a key file behind a symbolic link or under another owner, and dates of expiry."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from service import reloading
from service.auth import authenticator
from service.auth.authenticator import Authority
from service.auth.keys import (
    KeyFile,
    KeyFileError,
    Scope,
    issue,
    parse_expiry,
    read_keys,
    revoke,
)
from tests.service.auth.keyring import entry, write_keys
from tests.waiting import until


def test_key_file_behind_symlink_is_changed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "srv").mkdir()
    file = write_keys(tmp_path / "srv" / "keys.json", entry("old", "acme"))
    link = tmp_path / "etc" / "keys.json"
    link.symlink_to("../srv/keys.json")
    revoke(link, "key_old")
    _, secret = issue(link, "acme", [Scope.SPEAK])
    assert link.is_symlink()
    ring = read_keys(file).ring()
    old = ring.find("old")
    assert old is not None
    assert old.revoked_at is not None
    assert ring.find(secret) is not None


def test_start_without_a_valid_key_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    for keys in ([entry("good", "acme")], [], [entry("late", "acme", expires_s=-1)]):
        Authority(write_keys(file, *keys))
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warnings == ["no key is valid: all requests that need one are refused"] * 2


async def test_key_file_is_read_again_until_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither ``chmod`` nor the end of a shortage of file descriptors changes the file's time."""
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    authority = Authority(file)
    failures = 3

    def read(path: Path) -> KeyFile:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise KeyFileError(f"cannot read {path}: Permission denied")
        return read_keys(path)

    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    monkeypatch.setattr(authenticator, "read_keys", read)
    write_keys(file, entry("new", "acme"), entry("newer", "acme"))
    watching = asyncio.create_task(authority.watch())
    await until(lambda: authority.key_count == 2, timeout_s=20)
    watching.cancel()
    assert authority.is_current
    assert authority.admit("new", Scope.SPEAK, "192.0.2.1").key_id == "key_new"
    assert sum("was not taken" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("module", "step"), [(reloading, "file_state"), (authenticator, "read_keys")]
)
async def test_key_file_is_read_again_after_a_time_without_free_threads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: ModuleType,
    step: str,
) -> None:
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    authority, work = Authority(file), getattr(module, step)
    has_threads = False

    def start(path: Path) -> object:
        if not has_threads:
            raise RuntimeError("can't start new thread")
        return work(path)

    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    monkeypatch.setattr(module, step, start)
    write_keys(file)  # all are revoked
    watching = asyncio.create_task(authority.watch())
    await until(lambda: not authority.is_current or watching.done())
    assert authority.key_count == 1
    has_threads = True
    await until(lambda: not authority.key_count or watching.done())
    assert authority.is_current
    assert not authority.key_count
    watching.cancel()
    assert "was not taken: can't start new thread" in caplog.text


async def test_watch_of_key_file_ends_if_cancelled_right_after_a_request_to_reload(
    tmp_path: Path,
) -> None:
    authority = Authority(write_keys(tmp_path / "keys.json", entry("old", "acme")))
    for turns in range(8):
        watching = asyncio.create_task(authority.watch())
        for _ in range(3):
            await asyncio.sleep(0)
        authority.reload_soon()
        for _ in range(turns):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait([watching], timeout=10)
        assert watching.cancelled(), f"cancelled {turns} turns after the request"


@pytest.mark.parametrize(
    ("module", "step"), [(reloading, "file_state"), (authenticator, "read_keys")]
)
async def test_key_file_on_hanging_file_system_is_not_current_until_it_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: ModuleType,
    step: str,
) -> None:
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    authority = Authority(file)
    may_answer, work = threading.Event(), getattr(module, step)

    def hang(path: Path) -> object:
        may_answer.wait()
        return work(path)

    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    monkeypatch.setattr(reloading, "HANG_S", 0.01)
    monkeypatch.setattr(module, step, hang)
    write_keys(file, entry("new", "acme"), entry("newer", "acme"))
    watching = asyncio.create_task(authority.watch())
    try:
        await until(lambda: not authority.is_current)
        assert authority.key_count == 1
        monkeypatch.setattr(reloading, "HANG_S", 60)
        may_answer.set()
        await until(lambda: authority.is_current)
        assert authority.key_count == 2
    finally:
        may_answer.set()
        watching.cancel()
    faults = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(faults) == 1
    assert f"{file} does not respond" in faults[0]


def test_pipe_in_place_of_key_file_is_refused_at_once(tmp_path: Path) -> None:
    """It has no writer, so opening it would block the thread that reads it for ever."""
    os.mkfifo(pipe := tmp_path / "keys.json")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_keys, pipe)
        if wait([reading], timeout=20).not_done:
            os.close(os.open(pipe, os.O_WRONLY))  # or the pool would wait too
    with pytest.raises(KeyFileError, match="not a regular file"):
        reading.result()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_key_file_keeps_owner_and_mode(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    file.chmod(0o600)
    os.chown(file, 65534, 65534)
    revoke(file, "key_old")
    after = file.stat()
    assert (after.st_uid, after.st_gid, after.st_mode & 0o777) == (65534, 65534, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_key_file_is_unchanged_if_chown_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    before = file.read_bytes()
    os.chown(file, 65534, 65534)
    monkeypatch.setattr("service.auth.keys.os.chown", forbidden)
    with pytest.raises(KeyFileError, match="not permitted"):
        revoke(file, "key_old")
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["keys.json"]


@pytest.mark.parametrize("text", ["0d", "2020-01-01", "2026-01-01T00:00:00+00:00"])
def test_parse_expiry_refuses_times_not_in_future(text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="over already"):
        parse_expiry(text, now)
    assert parse_expiry("1m", now) == now + timedelta(minutes=1)

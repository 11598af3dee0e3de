"""Edits of a key file behind a symbolic link or under another owner, and dates of expiry."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.auth.keys import KeyFileError, Scope, issue, parse_expiry, read_keys, revoke
from tests.service.auth.keyring import entry, write_keys


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

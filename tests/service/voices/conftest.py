"""Fixtures of the tests of voices."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, which may take minutes on a busy machine."""
    monkeypatch.setattr("os.fsync", lambda _: None)

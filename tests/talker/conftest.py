"""A tiny checkpoint for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.talker import tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random talker in the published format."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("tiny-talker"))

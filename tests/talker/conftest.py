"""Put this folder on ``sys.path`` so that its tests can import ``tiny`` and ``harness``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random talker in the published format."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("tiny-talker"))

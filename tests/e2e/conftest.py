from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.live import Service, service
from training.evaluation.recogniser import Recogniser


@pytest.fixture(scope="session")
def speaking() -> Iterator[Service]:
    """A shared service, for tests that do not change its state."""
    with service() as started:
        yield started


@pytest.fixture(scope="session")
def ears() -> Iterator[Recogniser]:
    """The recogniser, which ``make voice-eval`` uses too."""
    with Recogniser() as listening:
        yield listening

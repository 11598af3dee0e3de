from __future__ import annotations

from collections.abc import Iterator

import pytest

from embedded.evaluation.recogniser import Recogniser
from tests.e2e.live import Service, service


@pytest.fixture(scope="session")
def speaking() -> Iterator[Service]:
    """One service for the tests that leave it as they found it."""
    with service() as started:
        yield started


@pytest.fixture(scope="session")
def ears() -> Iterator[Recogniser]:
    """The recogniser that also judges the voice (``make voice-eval``)."""
    with Recogniser() as listening:
        yield listening

"""The official clients and agent frameworks, as published, against the service as a user runs it.

They live in .venv-clients (``make test-clients``), the service in .venv; where they are not
installed, nothing is collected here.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("pipecat") is None:
    collect_ignore_glob = ["test_*.py"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def speaking() -> Iterator[object]:
    """One service (``tests.e2e.live.Service``) with the embedded voice for the whole run.

    ``port`` and ``url`` say where it is, ``get`` and ``metric`` what it says of itself. With
    TALKWIRE_PORT in the environment it is one that runs on this machine already.
    """
    from tests.e2e.live import Service, service

    if port := os.environ.get("TALKWIRE_PORT"):
        yield Service(None, int(port))
        return
    with service(program=ROOT / ".venv/bin/talkwire") as started:
        yield started


@pytest.fixture(scope="session")
def ears() -> Iterator[object]:
    """``tests.official.ears.Ears``: tells which of some sentences audio speaks."""
    from tests.official.ears import Ears

    with Ears() as listening:
        yield listening


@pytest.fixture
async def session() -> AsyncIterator[object]:
    """An ``aiohttp.ClientSession``, which LiveKit's plugins are to be given."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        yield session

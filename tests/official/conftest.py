"""Official clients and agent frameworks, as published, against the real service.

They are installed in .venv-clients (``make test-clients``), the service in .venv. Without them
no test is collected here.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.official import table

if importlib.util.find_spec("pipecat") is None:
    collect_ignore_glob = ["test_*.py"]

ROOT = Path(__file__).resolve().parents[2]

_results: dict[tuple[str, str], bool] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--write-table``, which writes the table of clients."""
    parser.addoption(
        "--write-table", action="store_true", help="write what each client did into the docs"
    )


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], None]]:
    """``told(client, case)`` records this test's result for the table."""
    rows: list[tuple[str, str]] = []
    yield lambda client, case: rows.append((client, case))
    passed = request.node.stash.get(_PASSED, False)
    _results.update(dict.fromkeys(rows, passed))


_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record whether the call phase of a test passed."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table with ``--write-table``."""
    if not session.config.getoption("--write-table") or not _results:
        return
    table.write(_results)


@pytest.fixture(scope="session")
def speaking() -> Iterator[object]:
    """A shared service (``tests.e2e.live.Service``) with the embedded voice.

    TALKWIRE_PORT in the environment selects one that runs on this machine already.
    """
    from tests.e2e.live import Service, service

    if port := os.environ.get("TALKWIRE_PORT"):
        another: Any = None  # the process is not ours
        yield Service(another, int(port))
        return
    with service(program=ROOT / ".venv/bin/talkwire") as started:
        yield started


@pytest.fixture(scope="session")
def ears() -> Iterator[object]:
    """The recogniser ``tests.official.ears.Ears``, which finds the sentence in audio."""
    from tests.official.ears import Ears

    with Ears() as listening:
        yield listening


@pytest.fixture
async def session() -> AsyncIterator[object]:
    """An ``aiohttp.ClientSession`` for LiveKit's plugins."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        yield session

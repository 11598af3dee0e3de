"""Settings for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline for an example, since machines are shared. Each run uses the same examples, so that
# a failure is due to the change under test; `--hypothesis-profile explore` draws new ones.
slow = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=slow)
settings.register_profile("explore", deadline=None, suppress_health_check=slow)
settings.load_profile("same")

# Programs started by tests import the client of this tree, as the tests do.
_CLIENT = Path(__file__).resolve().parents[1] / "clients" / "python" / "src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (os.environ.get("PYTHONPATH"), str(_CLIENT)) if part
)

#: Folders whose files run in one process each: it loads vLLM or starts the service once. Tests of
#: faults mostly wait, and should begin early: large groups do.
_TOGETHER = ("tests/talker/", "tests/e2e/", "tests/faults/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute by file (``--dist loadfile``), but keep the files of some folders together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = (folder for folder in _TOGETHER if nodeid.startswith(folder))
            return next(together, super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Handle SIGINT as in a terminal, also in child processes: a shell starts background jobs with
    SIGINT ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

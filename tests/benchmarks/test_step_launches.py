"""A talker's step outside its CUDA graph: the number of launches, and no waits for the device."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.long
#: More would be noticeable: each launch takes a few microseconds on the host.
_MOST_LAUNCHES = 8


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.step_check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_step_launches_few_kernels_outside_graph(found: dict[str, Any]) -> None:
    kernels, torch_form = found["kernels"]["count"], found["torch"]["count"]
    assert kernels["both"] <= _MOST_LAUNCHES
    assert torch_form["both"] > 10 * kernels["both"], "PyTorch's form is what they stand in for"


def test_step_reads_no_value_from_device(found: dict[str, Any]) -> None:
    for form in ("kernels", "torch"):
        assert found[form]["fake"]["ids"] == [4, 1]
        assert found[form]["fake"]["codes"] == [4, 8]
    assert found["kernels"]["fake"]["launched"] == ["_draw_kernel", "_keep_kernel"]
    assert found["torch"]["fake"]["launched"] == []

"""A talker's step: the number of launches, outside its CUDA graph and of a fast AR's frames, and no
waits for the device.
"""

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
    counts = zip(found["kernels"]["counts"], found["torch"]["counts"], strict=True)
    for kernels, torch_form in counts:
        assert kernels["both"] <= _MOST_LAUNCHES
        assert torch_form["both"] > 10 * kernels["both"], "PyTorch's form is what they stand in for"


def test_fast_ar_layers_are_few_kernels(found: dict[str, Any]) -> None:
    """Four matrix products and four kernels between them."""
    for family, counts in found["kernels"]["frames"].items():
        torch_form = found["torch"]["frames"][family]
        assert counts["layer"] == 8
        assert torch_form["layer"] > 2 * counts["layer"], "PyTorch's form is what they stand in for"
        assert torch_form["frame"] > 2 * counts["frame"]


def test_step_reads_no_value_from_device(found: dict[str, Any]) -> None:
    for form in ("kernels", "torch"):
        assert found[form]["fake"]["ids"] == [4, 1]
        assert found[form]["fake"]["codes"] == [4, 8]
    assert found["kernels"]["fake"]["launched"] == ["_draw_kernel", "_keep_kernel"]
    assert found["torch"]["fake"]["launched"] == []

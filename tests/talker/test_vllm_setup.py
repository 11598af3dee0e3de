"""What the settings come down to for vLLM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from talker.settings import TalkerSettings
from talker.vllm_setup import check_executor, executor, set_environment


@pytest.mark.parametrize(
    ("settings", "on_gpu", "expected"),
    [
        ({}, False, None),
        ({}, True, None),
        ({"data_parallel_size": 2}, False, "uni"),
        ({"tensor_parallel_size": 2}, False, "mp"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, False, "mp"),
        ({"tensor_parallel_size": 2}, True, None),
        ({"distributed_executor": "mp", "data_parallel_size": 2}, False, "mp"),
        ({"distributed_executor": "ray", "tensor_parallel_size": 2}, True, "ray"),
    ],
)
def test_the_executor(settings: dict[str, object], on_gpu: bool, expected: str | None) -> None:
    assert executor(TalkerSettings(**settings), on_gpu) == expected


def test_ray_is_refused_where_vllm_cannot_ask_it_for_devices() -> None:
    wanted = TalkerSettings(distributed_executor="ray", tensor_parallel_size=2)
    with pytest.raises(ValueError, match="needs GPUs"):
        check_executor(wanted, "", True)
    check_executor(wanted, "GPU", True)
    check_executor(TalkerSettings(tensor_parallel_size=2), "", False)
    with pytest.raises(ValueError, match="async"):
        TalkerSettings(engine="inprocess", distributed_executor="ray")


def test_ray_that_is_not_installed_is_asked_for_by_name() -> None:
    wanted = TalkerSettings(distributed_executor="ray", tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"package ray.*requirements/ray\.txt"):
        check_executor(wanted, "GPU", False)


@pytest.mark.parametrize(("theirs", "found"), [({}, "auto"), ({"RAY_ADDRESS": "a:1"}, "a:1")])
def test_ray_joins_a_cluster_and_begins_none(
    theirs: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(theirs)
    monkeypatch.setattr(os, "environ", environment)
    set_environment(TalkerSettings(distributed_executor="ray", tensor_parallel_size=2))
    assert environment["RAY_ADDRESS"] == found
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    set_environment(TalkerSettings(tensor_parallel_size=2))
    assert "RAY_ADDRESS" not in environment


def test_what_the_operator_set_in_the_environment_wins_where_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    for theirs, kept in (({}, "64"), ({kernels: "7"}, "7")):
        environment = {**theirs, "HF_HUB_OFFLINE": "0"}
        monkeypatch.setattr(os, "environ", environment)
        set_environment(TalkerSettings())
        assert (environment[kernels], environment["HF_HUB_OFFLINE"]) == (kept, "1")


def test_engine_cores_are_never_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked one would outlive a gateway that is killed, and never collect its garbage."""
    environment = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    monkeypatch.setattr(os, "environ", environment)
    set_environment(TalkerSettings())
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


_PROFILE = """
import sys
from talker.checkpoint import open_checkpoint
from talker.settings import TalkerSettings
from talker.vllm_setup import engine_arguments, make_plan, set_environment

if __name__ == "__main__":
    settings = TalkerSettings(max_num_seqs=4)
    set_environment(settings)
    checkpoint = open_checkpoint(sys.argv[1])
    plan = make_plan(settings, checkpoint)
    arguments = engine_arguments(settings, plan, checkpoint, checkpoint.shape.stop_id)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    config = EngineArgs(**arguments).create_engine_config()
    budget = MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False)
    _, item = budget.get_dummy_encoder_profile_inputs()[0]
    print("rows", len(item["voice_rows"].data), "of", budget.encoder_compute_budget)
"""


def test_memory_is_profiled_with_the_longest_voice(tiny_checkpoint: Path) -> None:
    command = [sys.executable, "-c", _PROFILE, str(tiny_checkpoint)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    rows, budget = map(int, re.findall(r"^rows (\d+) of (\d+)$", said, re.M)[0])
    assert 0 < rows <= budget
    assert rows > budget / 2

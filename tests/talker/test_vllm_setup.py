"""vLLM's arguments and environment, as derived from the talker settings."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import tiny_fish
import tiny_v2

from talker.checkpoint import Checkpoint, open_checkpoint
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from talker.vllm_setup import (
    Plan,
    _captures_prompts,
    _dtype,
    check_config,
    check_executor,
    check_shared_memory,
    describe_graphs,
    engine_arguments,
    executor,
    kv_positions,
    make_plan,
    position_bytes,
    set_environment,
)


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
def test_executor_follows_settings_and_device(
    settings: dict[str, object], on_gpu: bool, expected: str | None
) -> None:
    assert executor(TalkerSettings(**settings), on_gpu) == expected


def test_ray_executor_needs_gpus_and_async_engine() -> None:
    wanted = TalkerSettings(distributed_executor="ray", tensor_parallel_size=2)
    with pytest.raises(ValueError, match="needs GPUs"):
        check_executor(wanted, "", True)
    check_executor(wanted, "GPU", True)
    check_executor(TalkerSettings(tensor_parallel_size=2), "", False)
    with pytest.raises(ValueError, match="async"):
        TalkerSettings(engine="inprocess", distributed_executor="ray")


def test_ray_package_missing_is_named_in_error() -> None:
    wanted = TalkerSettings(distributed_executor="ray", tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"package ray.*requirements/ray\.txt"):
        check_executor(wanted, "GPU", False)


@pytest.mark.parametrize(("theirs", "found"), [({}, "auto"), ({"RAY_ADDRESS": "a:1"}, "a:1")])
def test_ray_joins_existing_cluster(
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


def test_set_environment_keeps_operator_values_except_hub_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    for theirs, kept in (({}, "64"), ({kernels: "7"}, "7")):
        environment = {**theirs, "HF_HUB_OFFLINE": "0"}
        monkeypatch.setattr(os, "environ", environment)
        set_environment(TalkerSettings())
        assert (environment[kernels], environment["HF_HUB_OFFLINE"]) == (kept, "1")


def test_engine_cores_are_spawned_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked core would outlive a killed gateway and never collect its garbage."""
    environment = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    monkeypatch.setattr(os, "environ", environment)
    set_environment(TalkerSettings())
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


@pytest.mark.parametrize(
    ("on_gpu", "settings", "expected"),
    [
        (False, {}, "float32"),
        (True, {}, "float32"),
        (False, {"quantization": "int8"}, "float32"),
        (True, {"quantization": "int8"}, "bfloat16"),
        (True, {"attention_backend": "FLASH_ATTN"}, "bfloat16"),
    ],
)
def test_small_talker_computes_in_float32_if_kernels_allow(
    on_gpu: bool, settings: dict[str, Any], expected: str, tiny_checkpoint: Path
) -> None:
    small = open_checkpoint(str(tiny_checkpoint))
    assert _dtype(on_gpu, TalkerSettings(**settings), small) == expected


@pytest.mark.parametrize("on_gpu", [False, True])
def test_large_talker_computes_in_bfloat16(
    on_gpu: bool, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talker.vllm_setup._MAX_FLOAT32_BYTES", 1000)
    large = open_checkpoint(str(tiny_checkpoint))
    assert _dtype(on_gpu, TalkerSettings(), large) == "bfloat16"


GPU = Plan(
    on_gpu=True,
    engine="async",
    runner="v2",
    dtype="bfloat16",
    max_positions=1000,
    max_num_seqs=64,
    gpu_memory_bytes=80 << 30,
)
CPU = Plan(on_gpu=False, engine="inprocess", runner="v1", dtype="float32", max_positions=1000)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(str(tiny_checkpoint))


def arguments(checkpoint: Checkpoint, plan: Plan = GPU, **settings: object) -> dict[str, Any]:
    return engine_arguments(TalkerSettings(**settings), plan, checkpoint, 3)


def test_cuda_graphs_cover_prompts_beside_other_streams(checkpoint: Checkpoint) -> None:
    """By default vLLM captures no graph for more than twice max_num_seqs positions."""
    assert arguments(checkpoint)["compilation_config"] == {"max_cudagraph_capture_size": 512}
    full = arguments(checkpoint, graphs="full", graph_positions=256)
    assert full["compilation_config"] == {
        "max_cudagraph_capture_size": 256,
        "cudagraph_mode": "FULL",
    }
    assert describe_graphs(full) == "FULL, up to 256 positions"
    hopper = replace(GPU, full_graphs=True)
    assert arguments(checkpoint, hopper)["compilation_config"]["cudagraph_mode"] == "FULL"
    mixed = arguments(checkpoint, hopper, graphs="mixed")["compilation_config"]
    assert mixed["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    small = arguments(checkpoint, max_batched_positions=100, graph_positions=512)
    assert describe_graphs(small) == "vLLM's default, up to 100 positions"
    for off in (
        arguments(checkpoint, graphs="off"),
        arguments(checkpoint, compile="off"),
        arguments(checkpoint, CPU),
    ):
        assert describe_graphs(off) == "none"
    assert arguments(checkpoint, compile="off")["enforce_eager"] is True


@pytest.mark.parametrize(
    ("capability", "settings", "full"),
    [
        ((9, 0), {}, True),
        ((9, 0), {"attention_backend": "FLASH_ATTN"}, True),
        ((9, 0), {"attention_backend": "FLASHINFER"}, False),
        ((9, 0), {"batch_invariant": True}, False),
        ((8, 9), {}, False),
        ((10, 0), {}, False),
        (None, {}, False),
    ],
)
def test_prompts_are_captured_where_that_was_measured(
    capability: tuple[int, int] | None, settings: dict[str, Any], full: bool
) -> None:
    """With FlashAttention 3, which vLLM chooses on Hopper GPUs."""
    found = None if capability is None else SimpleNamespace(major=capability[0])
    platform = SimpleNamespace(get_device_capability=lambda: found)
    assert _captures_prompts(TalkerSettings(**settings), platform) is full


def test_attention_and_kv_cache_settings_reach_vllm(checkpoint: Checkpoint) -> None:
    by_itself = arguments(checkpoint)
    assert not {"attention_backend", "kv_cache_dtype"} & set(by_itself)
    told = arguments(checkpoint, attention_backend="TRITON_ATTN", kv_cache_dtype="fp8")
    assert (told["attention_backend"], told["kv_cache_dtype"]) == ("TRITON_ATTN", "fp8")


@pytest.mark.parametrize(
    ("plan", "wanted", "used"),
    [(GPU, "auto", True), (GPU, "off", False), (CPU, "auto", False), (CPU, "on", True)],
)
def test_step_kernels_default_to_gpu_only(
    checkpoint: Checkpoint, plan: Plan, wanted: str, used: bool
) -> None:
    told = arguments(checkpoint, plan, step_kernels=wanted)["additional_config"]
    assert told["talkwire"]["step_kernels"] is used


def test_kv_cache_size_is_set_in_positions(checkpoint: Checkpoint) -> None:
    """Not as a share of free memory: a codec on the same GPU allocates while vLLM measures it."""
    body = checkpoint.shape.backbone
    each = 2 * body.num_layers * body.num_kv_heads * body.head_dim * 2
    assert position_bytes(TalkerSettings(), GPU, checkpoint) == each
    assert position_bytes(TalkerSettings(kv_cache_dtype="fp8"), GPU, checkpoint) == each // 2
    assert position_bytes(TalkerSettings(tensor_parallel_size=2), GPU, checkpoint) == each // 2
    assert 64 * 1000 <= kv_positions(TalkerSettings(), GPU, checkpoint) < 64 * 1100
    assert kv_positions(TalkerSettings(kv_positions=777), GPU, checkpoint) == 777
    told = arguments(checkpoint, kv_positions=777)["kv_cache_memory_bytes"]
    assert told == 777 * each


def test_kv_cache_stays_within_gpu_memory_share(checkpoint: Checkpoint) -> None:
    each = position_bytes(TalkerSettings(), GPU, checkpoint)
    room = 4 * GPU.max_positions * each  # beside the 4 GiB for CUDA, graphs and activations
    small = replace(GPU, gpu_memory_bytes=int(((4 << 30) + room) / 0.8))
    found = kv_positions(TalkerSettings(), small, checkpoint)
    assert found is not None
    assert GPU.max_positions <= found <= 4 * GPU.max_positions
    tiny = replace(GPU, gpu_memory_bytes=4 << 30)
    assert kv_positions(TalkerSettings(), tiny, checkpoint) is None
    assert "kv_cache_memory_bytes" not in arguments(checkpoint, tiny), "vLLM says what is missing"


def test_batch_invariance_is_set_only_if_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in (False, True):
        environment: dict[str, str] = {}
        monkeypatch.setattr(os, "environ", environment)
        set_environment(TalkerSettings(batch_invariant=wanted))
        assert ("VLLM_BATCH_INVARIANT" in environment) is wanted


@pytest.mark.parametrize(("package", "level"), [(True, "ERROR"), (False, "INFO")])
def test_vllm_log_level_is_info_on_gpu_build(
    package: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if not package:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0"

    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr("importlib.metadata.version", version)
    set_environment(TalkerSettings())
    assert environment["VLLM_LOGGING_LEVEL"] == level


@pytest.mark.parametrize(
    ("name", "value"), [("max_num_seqs", 0), ("kv_positions", -1), ("frame_slots", 1000)]
)
def test_settings_invalid_value_is_named_in_error(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        TalkerSettings(**{name: value})


def test_make_plan_refuses_vllm_without_device(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import platforms

    monkeypatch.setattr(platforms, "_current_platform", platforms.interface.UnspecifiedPlatform())
    with pytest.raises(ValueError, match=r"found no device.*driver.*cpu\.txt"):
        make_plan(TalkerSettings(), open_checkpoint(str(tiny_checkpoint)))


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


@pytest.mark.long
def test_memory_profile_uses_longest_voice(tiny_checkpoint: Path) -> None:
    command = [sys.executable, "-c", _PROFILE, str(tiny_checkpoint)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    rows, budget = map(int, re.findall(r"^rows (\d+) of (\d+)$", said, re.M)[0])
    assert 0 < rows <= budget
    assert rows > budget / 2


def test_check_config_accepts_every_family(tmp_path: Path) -> None:
    for write in (tiny.write_checkpoint, tiny_v2.write_checkpoint, tiny_fish.write_checkpoint):
        check_config(open_checkpoint(str(write(tmp_path))))
    check_config(open_checkpoint(str(tiny_v2.write_checkpoint(tmp_path, converted=True))))


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("text_config", {"hidden_act": None}, "hidden_act"),
        ("text_config", {"tie_word_embeddings": "x"}, "tie_word_embeddings"),
        ("text_config", {"attention_bias": None}, "attention_bias"),
        (None, {"torch_dtype": "x"}, "'x'"),
        (None, {"rope_scaling": "x"}, "str"),
    ],
)
def test_check_config_names_file_and_field(
    tmp_path: Path, section: str | None, change: dict[str, Any], named: str
) -> None:
    file = tiny.write_checkpoint(tmp_path) / "config.json"
    config = json.loads(file.read_text())
    (config[section] if section else config).update(change)
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"(?s)/config\.json: .*{named}"):
        check_config(open_checkpoint(str(tmp_path)))


def test_check_config_refuses_scaling_without_factor(tmp_path: Path) -> None:
    file = tiny_v2.write_checkpoint(tmp_path) / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["rope_scaling"]["factor"] = None
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"/config\.json: .*factor"):
        check_config(open_checkpoint(str(tmp_path)))


def test_check_shared_memory_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_shared_memory()

    def refuse() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.Lock", refuse)
    with pytest.raises(ValueError, match="/dev/shm cannot be used: Read-only"):
        check_shared_memory()

"""vLLM's arguments and environment, as derived from the talker settings."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.gpu_limits import codec_limits
from talker.alignment import Alignment, AlignmentHead
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.families.fish_s2.sampler import FishS2RowSampler
from talker.families.qwen3_tts.sampler import Qwen3TTSRowSampler
from talker.pack import GROUP, pack_checkpoint
from talker.sampler import DelayedRowSampler
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from talker.vllm_setup import (
    Plan,
    _captures_prompts,
    _dtype,
    check_config,
    check_executor,
    check_libnuma,
    check_shared_memory,
    describe_graphs,
    engine_arguments,
    executor,
    kv_positions,
    make_plan,
    max_num_seqs,
    position_bytes,
    set_environment,
    size_warning,
    table_bytes,
    weight_bytes,
)
from talker.weights import backbone_matrices, layer_matrices, read_header, weight_files
from tests.talker import tiny, tiny_fish, tiny_v2
from tests.talker.full_sizes import FRAME_RATES, published


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
    settings: dict[str, Any], on_gpu: bool, expected: str | None
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


def arguments(checkpoint: Checkpoint, plan: Plan = GPU, **settings: Any) -> dict[str, Any]:
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
    assert _captures_prompts(TalkerSettings(**settings), _platform(capability)) is full


def _platform(capability: tuple[int, int] | None) -> Any:
    found = None if capability is None else SimpleNamespace(major=capability[0])
    return SimpleNamespace(get_device_capability=lambda: found)


NAMED: dict[str, Any] = {"attention_backend": "FLASH_ATTN"}


@pytest.mark.parametrize(
    ("version", "captured", "settings", "full"),
    [
        (4, (3, 4), NAMED, True),
        (4, (3,), NAMED, False),
        (2, (3, 4), NAMED, False),
        (4, (3, 4), {**NAMED, "batch_invariant": True}, False),
        (4, (3, 4), {"attention_backend": "FLASHINFER"}, False),
        (4, (3, 4), {}, False),
    ],
)
def test_prompts_are_captured_with_flash_attention_4_if_vllm_does(
    version: int,
    captured: tuple[int, ...],
    settings: dict[str, Any],
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Version 4 is that of Blackwell GPUs, where FlashAttention is not vLLM's first choice. vLLM
    0.32 captures version 3 alone, 0.33 both. The stand-in decides as vLLM's module does, which
    needs a GPU's kernels.
    """
    from vllm.v1.attention.backend import AttentionCGSupport

    chosen = AttentionCGSupport.ALWAYS if version in captured else AttentionCGSupport.UNIFORM_BATCH
    module = SimpleNamespace(
        FlashAttentionMetadataBuilder=SimpleNamespace(_cudagraph_support=chosen)
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.flash_attn", module)
    assert _captures_prompts(TalkerSettings(**settings), _platform((10, 0))) is full


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
    positions = kv_positions(TalkerSettings(), GPU, checkpoint)
    assert positions is not None
    assert 64 * 1000 <= positions < 64 * 1100
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


def test_quantised_weights_leave_more_positions(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As much more as the layers are smaller in 8 bits, and a packed checkpoint's are on disk."""
    settings, plan = TalkerSettings(quantization="int8"), replace(GPU, dtype="bfloat16")
    body = checkpoint.shape.backbone
    wide, narrow = body.num_heads * body.head_dim, body.num_kv_heads * body.head_dim
    inputs = body.num_layers * (
        (wide + 2 * narrow + 2 * body.intermediate_size) * body.hidden_size
        + body.hidden_size * (wide + body.intermediate_size)
    )
    scales = body.num_layers * 4 * (wide + 2 * narrow + 2 * body.intermediate_size)
    scales += body.num_layers * 4 * 2 * body.hidden_size
    plain = weight_bytes(TalkerSettings(), plan, checkpoint)
    assert weight_bytes(settings, plan, checkpoint) == plain - inputs + scales

    full = replace(plan, gpu_memory_bytes=int(((4 << 30) + plain + 20_000_000) / 0.8))
    each = position_bytes(settings, full, checkpoint)
    each += 2 * len(checkpoint.alignment.heads) * body.head_dim
    more = [kv_positions(one, full, checkpoint) for one in (TalkerSettings(), settings)]
    assert None not in more
    assert (more[1] or 0) - (more[0] or 0) == pytest.approx((inputs - scales) / each, abs=1)

    fish = open_checkpoint(str(tiny_fish.write_checkpoint(tmp_path)))
    left = backbone_matrices(fish.family, fish.shape)
    assert len(left) == 5 * fish.shape.backbone.num_layers
    assert not any("audio_decoder" in name for name in left), "the fast AR is not quantised"


def test_quantised_checkpoint_counts_as_it_is_stored(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    expected = checkpoint.family.expected_weights(checkpoint.shape)
    sizes = [math.prod(expected[name]) for name in layer_matrices(expected)]
    header = read_header(weight_files(checkpoint.folder)[0])
    each = 4 if any(entry.dtype == "F32" for entry in header.values()) else 2
    scale_and_shape = sum(each * size // GROUP + 16 for size in sizes)
    plan = replace(GPU, dtype="bfloat16")
    plain = weight_bytes(TalkerSettings(), plan, checkpoint)
    packed = open_checkpoint(str(pack_checkpoint(checkpoint, tmp_path / "packed")))
    assert weight_bytes(TalkerSettings(), plan, packed) == (
        plain - 2 * sum(sizes) + sum(sizes) // 2 + scale_and_shape
    )


def _guide_rows() -> list[list[str]]:
    """Model, weights, memory, settings, positions, streams and slots of the guide's two tables."""
    page = (Path(__file__).parents[2] / "docs/guides/gpu.md").read_text()
    lines = re.findall(r"^\|(.* \| [\d.]+ GiB \|.*)\|$", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [row if len(row) == 7 else ["Higgs Audio v3 4B", "", *row[1:]] for row in rows]


def _on_gpu(name: str, nbytes: int, **chosen: Any) -> tuple[TalkerSettings, Plan, Any]:
    """Settings, the plan that follows from them on such a GPU, and the published model."""
    settings, full = TalkerSettings(**chosen), published(name)
    plan = replace(
        GPU, dtype="bfloat16", max_positions=settings.max_positions or 8192, gpu_memory_bytes=nbytes
    )
    return settings, replace(plan, max_num_seqs=max_num_seqs(settings, plan, full)), full


def test_guide_to_gpus_has_the_computed_limits() -> None:
    rows = _guide_rows()
    assert {row[0] for row in rows} == FRAME_RATES.keys()
    for name, weights, memory, settings, told, streams, slots in rows:
        chosen: dict[str, Any] = {
            name: value.strip('"') if '"' in value else float(value)
            for name, value in re.findall(r"talker_(\w+) = ([\d.]+|\"\w+\")", settings)
        }
        if "max_positions" in chosen:
            chosen["max_positions"] = int(chosen["max_positions"])
        nbytes = int(float(memory.removesuffix(" GiB")) * 2**30)
        own, plan, full = _on_gpu(name, nbytes, **chosen)
        found = kv_positions(own, plan, full)
        assert told == ("too small" if found is None else f"{found:,}"), name
        each = 100 + round(30 * FRAME_RATES[name])
        assert streams == ("" if found is None else str(found // each)), name
        assert slots == ("" if found is None else str(plan.max_num_seqs)), name
        read = weight_bytes(own, plan, full) / 2**30
        assert weights in ("", f"{read:.1f} GiB"), name


@pytest.mark.parametrize("name", FRAME_RATES)
def test_slots_follow_memory_and_leave_room_for_all_of_them(name: str) -> None:
    """More on a larger card, each with room for half a minute beside a frame table that outlasts
    all of them, and the codec with a state for each.
    """
    state_bytes = {"Fish Speech S2 Pro": 8_372_224, "Qwen3-TTS 1.7B": 4_698_112}.get(name, 0)
    before = 0
    for gigabytes in (12, 24, 48, 80, 141):
        nbytes = gigabytes * 10**9
        settings, plan, full = _on_gpu(name, nbytes)
        slots = plan.max_num_seqs
        assert 8 <= slots <= 256
        assert slots >= before
        before = slots
        positions = kv_positions(settings, plan, full)
        if positions is None:
            assert slots == 8, "as few as possible, where vLLM measures for itself"
            continue
        table = table_bytes(settings, plan, full, slots)
        assert table >= 8 * slots * plan.max_positions * 2 * full.shape.num_codebooks
        used = weight_bytes(settings, plan, full) + table
        used += positions * position_bytes(settings, plan, full)
        assert used + (4 << 30) - (256 << 20) <= 0.8 * nbytes
        assert positions >= slots * (100 + int(30 * FRAME_RATES[name])) or slots == 8
        codec = codec_limits(nbytes, nbytes - int(0.8 * nbytes), state_bytes)
        assert codec.cache_bytes >= slots * state_bytes
        assert codec.cache_bytes + codec.max_batch * (200 << 20) < 0.8 * 0.2 * nbytes
    assert before == 256, "an H200 is not stopped at 64 streams by its settings"


def test_alignment_heads_take_from_the_kv_cache() -> None:
    """Their keys are kept for each position beside it."""
    settings, plan, full = _on_gpu("Higgs Audio v3 4B", 24 * 10**9)
    before = kv_positions(settings, plan, full) or 0
    heads = ((3, 0), (7, 5), (7, 6), (9, 1))
    full.alignment = Alignment(tuple(AlignmentHead(*head) for head in heads))
    each = position_bytes(settings, plan, full)
    after = kv_positions(settings, plan, full) or 0
    assert after == pytest.approx(before * each / (each + 4 * 128 * 2), abs=1)


def test_set_limits_win_over_memory() -> None:
    name, nbytes = "Higgs Audio v3 4B", 141 * 10**9
    assert _on_gpu(name, nbytes, max_num_seqs=7)[1].max_num_seqs == 7
    assert _on_gpu(name, nbytes, kv_positions=8500)[1].max_num_seqs == 8
    assert _on_gpu(name, nbytes, kv_positions=20 * 850)[1].max_num_seqs == 20
    assert max_num_seqs(TalkerSettings(), CPU, published(name)) == 16


@pytest.mark.parametrize("name", FRAME_RATES)
def test_frame_table_has_the_computed_size(name: str) -> None:
    full = published(name)
    rules = {**full.sampler_rules, "track": (0, 0), "penalty": 1.0, "sub_top_k": 50}
    sampler: Any
    if name.startswith("Fish"):
        sampler = FishS2RowSampler(8, full.shape, cast(Any, None), rules["look_back"])
    elif name.startswith("Qwen"):
        sampler = Qwen3TTSRowSampler(8, full.shape, cast(Any, None), rules, 0)
    else:
        sampler = DelayedRowSampler.from_rules(8, full.shape, rules)
    table = sampler.table
    settings = TalkerSettings(frame_slots=8)
    assert table_bytes(settings, GPU, full, 1) == table.cells.nbytes + table.links.nbytes


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
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        TalkerSettings(**wrong)


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


def test_check_libnuma_names_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    check_libnuma()

    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    with pytest.raises(ValueError, match=r"libnuma.*apt-get install libnuma1; .*numactl-libs"):
        check_libnuma()
    monkeypatch.setattr("talker.vllm_setup.is_gpu_build", lambda: True)
    check_libnuma()


def test_large_model_on_cpu_is_warned_of(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_checkpoint(str(tiny_checkpoint))
    on_cpu = Plan(False, "inprocess", "v1", "float32", 1024)
    assert size_warning(on_cpu, opened) is None
    monkeypatch.setattr("talker.vllm_setup._weights", lambda checkpoint: 4_000_000_000)
    warning = size_warning(on_cpu, opened)
    assert warning is not None
    assert "4.0 billion" in warning
    assert size_warning(replace(on_cpu, on_gpu=True), opened) is None


def test_check_shared_memory_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_shared_memory()

    def refuse() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.Lock", refuse)
    with pytest.raises(ValueError, match="/dev/shm cannot be used: Read-only"):
        check_shared_memory()

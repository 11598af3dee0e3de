"""Environment and arguments for vLLM inside the talker process.

The environment must be set before torch or vLLM is imported; nothing here imports them at
the top.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from talker.checkpoint import Checkpoint
from talker.plugin import CHILD_MARK
from talker.presets import INT8_MARK, check_preset, quantization_method
from talker.runners import V1_WORKER
from talker.settings import TalkerSettings, resolve_max_positions
from talker.weights import expected_weights

#: vLLM's CPU attention wants blocks that are multiples of this.
_CPU_BLOCK = 32
_CPU_BATCHED_POSITIONS = 512
_GPU_BATCHED_POSITIONS = 4096
#: KV room per slot on a CPU; a slot rarely needs more, and preemption covers when it does.
_CPU_POSITIONS_PER_SLOT = 1024
_MAX_FLOAT32_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What "auto" in the settings comes down to on this machine."""

    on_gpu: bool
    engine: str
    runner: str
    dtype: str
    max_positions: int


def set_environment(settings: TalkerSettings) -> None:
    """Prepare ``os.environ`` for vLLM; what the operator has set wins where it may."""
    inside = settings.engine != "async" or settings.tensor_parallel_size == 1
    os.environ.update(
        {
            CHILD_MARK: "1",
            # the checkpoint is a local folder by now: nothing may go to the network
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if inside else "1",
            "TOKENIZERS_PARALLELISM": "false",
            # on GPUs vLLM would fork its engine core, with garbage collection as it is at that
            # moment (off) and without our plugin's start, which ties its life to ours
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
    )
    if settings.quantization == "int8":
        os.environ[INT8_MARK] = "1"
    defaults = {
        "VLLM_PLUGINS": "talkwire",
        # its warnings of a start on a CPU are a dozen, all about what was chosen on purpose
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
        # oneDNN keeps kernels for each number of positions in a step, 100 MiB when its usual 1,024
        # are reached after some thousand requests; with 16 no step was slower
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    }
    if settings.distributed_executor == "ray":
        # a cluster that is there; without an address vLLM would begin one of this machine alone,
        # and wait half an hour for GPUs that it does not have
        defaults["RAY_ADDRESS"] = "auto"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def make_plan(settings: TalkerSettings, checkpoint: Checkpoint) -> Plan:
    """Resolve "auto" by the device that vLLM found, and tell vLLM which runner it is to be."""
    from vllm.platforms import current_platform

    on_gpu = not current_platform.is_cpu()
    check_executor(settings, current_platform.ray_device_key, find_spec("ray") is not None)
    if settings.quantization != "none":
        _check_quantization(settings.quantization)
    sizes = (settings.data_parallel_size, settings.tensor_parallel_size)
    spread = max(sizes) > 1 or settings.distributed_executor != "auto"
    engine = "async" if on_gpu or spread else "inprocess"
    runner = ("v2" if on_gpu else "v1") if settings.runner == "auto" else settings.runner
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    return Plan(
        on_gpu=on_gpu,
        engine=engine if settings.engine == "auto" else settings.engine,
        runner=runner,
        dtype=_dtype(on_gpu, checkpoint) if settings.dtype == "auto" else settings.dtype,
        max_positions=resolve_max_positions(settings, checkpoint.shape.backbone.max_positions),
    )


def _check_quantization(preset: str) -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability()
    check_preset(preset, capability.to_int() if capability else None, QUANTIZATION_METHODS)


def check_executor(settings: TalkerSettings, ray_device_key: str, has_ray: bool) -> None:
    """Raise ValueError where vLLM would fail in a child of its own, far from the reason.

    ``ray_device_key``: what Ray calls the platform's devices; vLLM has none for CPUs, and asks
    Ray for as many of them as there are workers. ``has_ray``: whether the package is there.
    """
    if settings.distributed_executor != "ray":
        return
    if not ray_device_key:
        raise ValueError("vLLM runs no workers under Ray on this platform: it needs GPUs")
    if not has_ray:
        raise ValueError(
            "talker_distributed_executor ray needs the package ray, which is not installed: "
            "pip install --no-deps --require-hashes -r requirements/ray.txt"
        )


def _dtype(on_gpu: bool, checkpoint: Checkpoint) -> str:
    """On a CPU float32 while the model is small: its codes equal the plain loop's one by one,
    and bfloat16 is no faster at one stream (it is by a third at sixteen). Large models do not
    fit twice.
    """
    weights = sum(math.prod(size) for size in expected_weights(checkpoint.shape).values())
    return "bfloat16" if on_gpu or 4 * weights > _MAX_FLOAT32_BYTES else "float32"


def engine_arguments(
    settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint, stop_id: int
) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs and AsyncEngineArgs."""
    compiled = plan.on_gpu if settings.compile is None else settings.compile
    batched = _GPU_BATCHED_POSITIONS if plan.on_gpu else _CPU_BATCHED_POSITIONS
    arguments: dict[str, Any] = {
        "model": str(checkpoint.folder),
        "dtype": plan.dtype,
        "enforce_eager": not compiled,
        "max_model_len": plan.max_positions,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": max(
            settings.max_batched_positions or batched, settings.max_num_seqs
        ),
        "enable_prefix_caching": settings.prefix_caching,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "data_parallel_size": settings.data_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "hf_overrides": {"eos_token_id": stop_id},
        "limit_mm_per_prompt": {"audio": 2},
        "mm_processor_cache_gb": 0,
        "disable_log_stats": not settings.statistics,
        "additional_config": {
            "talkwire": {
                "frame_slots": settings.frame_slots,
                "alignment_heads": checkpoint.alignment_heads,
            }
        },
    }
    if method := quantization_method(settings.quantization):
        arguments["quantization"] = method
    if plan.runner == "v1":
        arguments["worker_cls"] = V1_WORKER
    if not plan.on_gpu:
        arguments["block_size"] = _CPU_BLOCK
    if backend := executor(settings, plan.on_gpu):
        arguments["distributed_executor_backend"] = backend
    positions = settings.kv_positions or (None if plan.on_gpu else _cpu_positions(settings, plan))
    if positions:
        # an explicit size also spares vLLM its profiling run
        arguments["kv_cache_memory_bytes"] = positions * position_bytes(checkpoint, plan.dtype)
    return arguments


def executor(settings: TalkerSettings, on_gpu: bool) -> str | None:
    """How vLLM runs a model's workers; None leaves it to vLLM."""
    if settings.distributed_executor != "auto":
        return settings.distributed_executor
    if on_gpu:
        return None
    if settings.tensor_parallel_size > 1:
        return "mp"
    # each copy's worker inside its engine core: one process less for each, and 0.7 GiB
    return "uni" if settings.data_parallel_size > 1 else None


def ring_size(arguments: dict[str, Any]) -> int:
    """Slots of each engine core's frame table, as the model works them out."""
    from talker.frames import slots_for  # imports torch

    asked = arguments["additional_config"]["talkwire"]["frame_slots"]
    return asked or slots_for(arguments["max_num_seqs"], arguments["max_model_len"])


def position_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """KV cache bytes of one position over all layers."""
    body = checkpoint.shape.backbone
    width = 4 if dtype == "float32" else 2
    return 2 * body.num_layers * body.num_kv_heads * body.head_dim * width


def _cpu_positions(settings: TalkerSettings, plan: Plan) -> int:
    wanted = settings.max_num_seqs * min(plan.max_positions, _CPU_POSITIONS_PER_SLOT)
    return max(wanted, plan.max_positions) + _CPU_BLOCK * (settings.max_num_seqs + 1)

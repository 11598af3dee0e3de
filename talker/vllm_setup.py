"""Environment, arguments, runners and statistics of vLLM inside the talker process.

The environment must be set before torch or vLLM is imported; nothing here imports them at
the top.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from talker.checkpoint import Checkpoint
from talker.plugin import CHILD_MARK
from talker.prompts import MAX_CLIPS
from talker.settings import (
    DEFAULT_SEQS_CPU,
    DEFAULT_SEQS_GPU,
    INT8_MARK,
    SETTINGS_KEY,
    TalkerSettings,
    check_preset,
    quantization_method,
    resolve_max_positions,
)

#: vLLM's operator for packed weights on a CPU.
PACKED_KERNEL = "cpu_gemm_wna16"
#: The V1 runner samples through this worker; any other V1 worker would misread the logits.
V1_WORKER = "talker.worker_v1.TalkerCPUWorker"
#: vLLM's CPU attention wants blocks that are multiples of this.
_CPU_BLOCK, _GPU_BLOCK = 32, 16
_CPU_BATCHED_POSITIONS = 512
_GPU_BATCHED_POSITIONS = 4096
#: KV room per slot on a CPU; a slot rarely needs more, and preemption covers when it does.
_CPU_POSITIONS_PER_SLOT = 1024
_MAX_FLOAT32_BYTES = 2 << 30
#: Of a GPU's memory for what is neither weights nor KV cache: CUDA's own, graphs, activations.
_GPU_RESERVE_BYTES = 4 << 30
#: vLLM's names for the CUDA graphs of a step.
_GRAPH_MODES = {
    "mixed": "FULL_AND_PIECEWISE",
    "full": "FULL",
    "piecewise": "PIECEWISE",
    "off": "NONE",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What "auto" in the settings comes down to on this machine. ``gpu_memory_bytes`` is one GPU's,
    0 without.
    """

    on_gpu: bool
    engine: str
    runner: str
    dtype: str
    max_positions: int
    max_num_seqs: int = DEFAULT_SEQS_CPU
    gpu_memory_bytes: int = 0


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
    if settings.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    defaults = {
        "VLLM_PLUGINS": "talkwire",
        # On a CPU its warnings at the start are a dozen, all about what was chosen on purpose. On a
        # GPU it says which runner, attention backend and graphs it has settled on.
        "VLLM_LOGGING_LEVEL": "INFO" if _is_gpu_build() else "ERROR",
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


def _is_gpu_build() -> bool:
    """Whether vLLM is the build for GPUs, told by its package's name alone."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def make_plan(settings: TalkerSettings, checkpoint: Checkpoint) -> Plan:
    """Resolve "auto" by the device that vLLM found, and tell vLLM which runner it is to be."""
    from vllm.platforms import current_platform

    on_gpu = not current_platform.is_cpu()
    check_executor(settings, current_platform.ray_device_key, find_spec("ray") is not None)
    stored = checkpoint.quantisation
    if settings.quantization != "none":
        if stored is not None:
            raise ValueError(
                f"the checkpoint is quantised already ({stored.method}): "
                f"quantization must be 'none', not {settings.quantization!r}"
            )
        _check_quantization(settings.quantization)
    if stored is not None and stored.is_packed and not on_gpu:
        _check_packed_kernel()
    if stored is not None and stored.has_matrix_scales and not on_gpu:
        # where layers are fused vLLM gives their matrices one scale, by an operator of its GPU
        # builds, and would fail while it loads
        raise ValueError(
            "the checkpoint's FP8 weights have one scale for each matrix, which vLLM loads on GPUs "
            "alone: take a checkpoint with a scale for each channel (compressed-tensors), or a GPU"
        )
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
        max_num_seqs=settings.max_num_seqs or (DEFAULT_SEQS_GPU if on_gpu else DEFAULT_SEQS_CPU),
        gpu_memory_bytes=current_platform.get_device_total_memory() if on_gpu else 0,
    )


def _check_packed_kernel() -> None:
    """vLLM takes packed weights on any CPU, and misses the kernel at the first step. Its builds for
    x86 without AVX512 have none. Raises ValueError.
    """
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if not hasattr(torch.ops._C, PACKED_KERNEL):
        raise ValueError(
            "the checkpoint has packed 4-bit weights, for which vLLM has no kernel on this CPU "
            "(on x86 they need AVX512): take the unpacked checkpoint, or a GPU"
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
    is_large = 4 * _weights(checkpoint) > _MAX_FLOAT32_BYTES
    # packed weights' kernels know no float32
    return "bfloat16" if on_gpu or is_large or checkpoint.quantisation else "float32"


def _weights(checkpoint: Checkpoint) -> int:
    """Numbers in the talker's weights."""
    expected = checkpoint.family.expected_weights(checkpoint.shape)
    return sum(math.prod(size) for size in expected.values())


def engine_arguments(
    settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint, stop_id: int
) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs and AsyncEngineArgs."""
    compiled = plan.on_gpu if settings.compile == "auto" else settings.compile == "on"
    kernels = plan.on_gpu if settings.step_kernels == "auto" else settings.step_kernels == "on"
    batched = _GPU_BATCHED_POSITIONS if plan.on_gpu else _CPU_BATCHED_POSITIONS
    has_graphs = compiled and plan.on_gpu and settings.graphs != "off"
    arguments: dict[str, Any] = {
        "model": str(checkpoint.folder),
        "dtype": plan.dtype,
        "enforce_eager": not compiled,
        "max_model_len": plan.max_positions,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": max(settings.max_batched_positions or batched, plan.max_num_seqs),
        "enable_prefix_caching": settings.prefix_caching,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "data_parallel_size": settings.data_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "hf_overrides": {"eos_token_id": stop_id},
        "limit_mm_per_prompt": {"audio": MAX_CLIPS},
        "mm_processor_cache_gb": 0,
        "disable_log_stats": not settings.statistics,
        "additional_config": {
            SETTINGS_KEY: {
                "frame_slots": settings.frame_slots,
                "step_kernels": kernels,
                "alignment_heads": checkpoint.alignment_heads,
                "sampler_rules": {**checkpoint.sampler_rules, "graphs": has_graphs},
            }
        },
    }
    if method := quantization_method(settings.quantization):
        arguments["quantization"] = method
    if settings.attention_backend:
        arguments["attention_backend"] = settings.attention_backend
    if settings.kv_cache_dtype != "auto":
        arguments["kv_cache_dtype"] = settings.kv_cache_dtype
    if compiled and plan.on_gpu:
        arguments["compilation_config"] = _graphs(settings, arguments["max_num_batched_tokens"])
    if plan.runner == "v1":
        arguments["worker_cls"] = V1_WORKER
    if not plan.on_gpu:
        arguments["block_size"] = _CPU_BLOCK
    if backend := executor(settings, plan.on_gpu):
        arguments["distributed_executor_backend"] = backend
    if positions := kv_positions(settings, plan, checkpoint):
        # An explicit size also spares vLLM its profiling run, which would take the memory that a
        # codec on the same GPU asks for meanwhile for the talker's own.
        arguments["kv_cache_memory_bytes"] = positions * position_bytes(settings, plan, checkpoint)
    return arguments


def _graphs(settings: TalkerSettings, most_positions: int) -> dict[str, Any]:
    """vLLM's compilation settings. By itself it would capture graphs for steps of twice
    ``max_num_seqs`` positions at most, so that every prompt with a voice, and every one that comes
    while others speak, would run without and hold all streams up.
    """
    chosen: dict[str, Any] = {
        "max_cudagraph_capture_size": min(settings.graph_positions, most_positions)
    }
    if settings.graphs != "auto":
        chosen["cudagraph_mode"] = _GRAPH_MODES[settings.graphs]
    return chosen


def describe_graphs(arguments: dict[str, Any]) -> str:
    """Which CUDA graphs the engine was asked for, in words for the log."""
    chosen = arguments.get("compilation_config")
    if chosen is None or chosen.get("cudagraph_mode") == "NONE":
        return "none"
    mode = chosen.get("cudagraph_mode", "vLLM's default")
    return f"{mode}, up to {chosen['max_cudagraph_capture_size']} positions"


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

    asked = arguments["additional_config"][SETTINGS_KEY]["frame_slots"]
    return asked or slots_for(arguments["max_num_seqs"], arguments["max_model_len"])


def position_bytes(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int:
    """KV cache bytes of one position over all layers, on each GPU of a tensor-parallel group."""
    body = checkpoint.shape.backbone
    heads = max(1, body.num_kv_heads // settings.tensor_parallel_size)
    width = _width(plan.dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype)
    return 2 * body.num_layers * heads * body.head_dim * width


def kv_positions(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int | None:
    """The KV cache's room. None on a GPU that has not even the room for one request, by what is
    known here: vLLM then measures for itself, and says what is missing.
    """
    if settings.kv_positions:
        return settings.kv_positions
    if not plan.on_gpu:
        return _cpu_positions(plan)
    wanted = plan.max_num_seqs * plan.max_positions + _GPU_BLOCK * (plan.max_num_seqs + 1)
    weights = _weights(checkpoint) * _width(plan.dtype) // settings.tensor_parallel_size
    share = plan.gpu_memory_bytes * settings.gpu_memory_utilization
    room = int(share - weights - _GPU_RESERVE_BYTES) // position_bytes(settings, plan, checkpoint)
    return min(wanted, room) if room >= plan.max_positions else None


def _width(dtype: str) -> int:
    """Bytes of a number."""
    return {"float32": 4, "fp8": 1}.get(dtype, 2)


def _cpu_positions(plan: Plan) -> int:
    wanted = plan.max_num_seqs * min(plan.max_positions, _CPU_POSITIONS_PER_SLOT)
    return max(wanted, plan.max_positions) + _CPU_BLOCK * (plan.max_num_seqs + 1)


def refuse_other_runners(vllm_config: Any) -> None:
    """Raise ValueError unless Model Runner V2 or our V1 worker will sample.

    vLLM falls back to V1 silently (no Triton, a logits-processor plugin installed), and
    V1's own sampler would make nonsense of the logits without any error.
    """
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("the talker does not run with pipeline parallelism")
    worker = parallel.worker_cls
    name = worker if isinstance(worker, str) else f"{worker.__module__}.{worker.__qualname__}"
    if not vllm_config.use_v2_model_runner and name != V1_WORKER:
        raise ValueError(f"the talker needs Model Runner V2 or worker_cls={V1_WORKER!r}")


@dataclass(slots=True)
class Totals:
    """Since the start: preempted requests, and prompt positions found in the prefix cache."""

    preempted: int = 0
    cached: int = 0


def logger_factory(totals: Totals) -> Callable[..., Any]:
    """A stat logger for vLLM that adds to ``totals``."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Counter(StatLoggerBase):  # type: ignore[misc]  # untyped base
        """Adds up what each iteration reports."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(
            self, scheduler_stats: Any = None, iteration_stats: Any = None, **_: Any
        ) -> None:
            if iteration_stats is not None:
                totals.preempted += iteration_stats.num_preempted_reqs
            if scheduler_stats is not None:
                totals.cached += scheduler_stats.prefix_cache_stats.hits

        def log_engine_initialized(self) -> None:
            pass

    return Counter

"""Environment, arguments and runners of vLLM inside the talker process.

The environment must be set before torch or vLLM is imported, so this module imports neither at the
top.
"""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from streaming.gpu_limits import TalkerMemory
from talker.checkpoint import Checkpoint
from talker.plugin import CHILD_MARK
from talker.prompts import MAX_CLIPS
from talker.settings import (
    DEFAULT_SEQS_CPU,
    INT8_MARK,
    SETTINGS_KEY,
    TalkerSettings,
    check_preset,
    is_gpu_build,
    quantization_method,
    resolve_max_positions,
)
from talker.shape import CheckpointError
from talker.weights import backbone_matrices, stored_bytes

#: vLLM's operator for packed weights on a CPU.
PACKED_KERNEL = "cpu_gemm_wna16"
#: The only V1 worker that samples rows; any other one would misread the logits.
V1_WORKER = "talker.worker_v1.TalkerCPUWorker"
#: vLLM's CPU attention needs block sizes that are multiples of this.
_CPU_BLOCK = 32
_GPU_BLOCK = 16
_CPU_BATCHED_POSITIONS = 512
_GPU_BATCHED_POSITIONS = 4096
#: KV positions per slot on a CPU. A slot rarely needs more; preemption covers the rest.
_CPU_POSITIONS_PER_SLOT = 1024
_MAX_FLOAT32_BYTES = 2 << 30
#: Bytes of a weight in 16 bits.
_HALF_BYTES = 2
#: Bytes of the scale of each output channel of a layer in 8 bits.
_SCALE_BYTES = 4
#: Size of such weights that a CPU still reads fast enough for every row.
_MAX_CPU_BYTES = 2 << 30
#: The major compute capability of Hopper GPUs.
_HOPPER = 9
#: vLLM's name for an attention whose graphs hold prompts.
_CAPTURED_WITH_PROMPTS = "ALWAYS"
#: vLLM's names for the CUDA graphs of a step.
_GRAPH_MODES = {
    "mixed": "FULL_AND_PIECEWISE",
    "full": "FULL",
    "piecewise": "PIECEWISE",
    "off": "NONE",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Values of the "auto" settings here. ``gpu_memory_bytes`` is one GPU's, 0 without."""

    on_gpu: bool
    engine: str
    runner: str
    dtype: str
    max_positions: int
    max_num_seqs: int = DEFAULT_SEQS_CPU
    gpu_memory_bytes: int = 0
    full_graphs: bool = False


def set_environment(settings: TalkerSettings) -> None:
    """Prepare ``os.environ`` for vLLM; the operator's values take precedence where they may."""
    inside = settings.engine != "async" or settings.tensor_parallel_size == 1
    os.environ.update(
        {
            CHILD_MARK: "1",
            # the checkpoint is a local folder by now: nothing may use the network
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if inside else "1",
            "TOKENIZERS_PARALLELISM": "false",
            # on GPUs vLLM would fork its engine core, with garbage collection off as it is at that
            # moment, and without our plugin's start, which makes it die with its parent
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
    )
    if settings.quantization == "int8":
        os.environ[INT8_MARK] = "1"
    if settings.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    defaults = {
        "VLLM_PLUGINS": "talkwire",
        # On a CPU vLLM starts with a dozen warnings, all about deliberate choices. On a GPU it logs
        # its choice of runner, attention backend and graphs.
        "VLLM_LOGGING_LEVEL": "INFO" if is_gpu_build() else "ERROR",
        # our sampler replaces vLLM's, which would load FlashInfer for its own
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
        # oneDNN keeps kernels for each number of positions in a step: 100 MiB when its default of
        # 1,024 is reached after some thousand requests. With 16 no step was slower.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    }
    if settings.distributed_executor == "ray":
        # Use the existing cluster. Without an address vLLM would start one of this machine alone,
        # and wait half an hour for GPUs that it does not have.
        defaults["RAY_ADDRESS"] = "auto"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def make_plan(settings: TalkerSettings, checkpoint: Checkpoint) -> Plan:
    """Resolve "auto" by the device that vLLM found, and tell vLLM which runner to use. Raises
    ValueError if it found none, or cannot run the checkpoint with these settings on it.
    """
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise ValueError(
            "vLLM found no device: this build of it needs a GPU with NVIDIA's driver "
            "(nvidia-smi lists them); without one install requirements/cpu.txt"
        )
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
        # For fused layers vLLM loads one scale per matrix with an operator of its GPU builds, and
        # would fail while it loads.
        raise ValueError(
            "the checkpoint's FP8 weights have one scale for each matrix, which vLLM loads on GPUs "
            "alone: take a checkpoint with a scale for each channel (compressed-tensors), or a GPU"
        )
    sizes = (settings.data_parallel_size, settings.tensor_parallel_size)
    spread = max(sizes) > 1 or settings.distributed_executor != "auto"
    engine = "async" if on_gpu or spread else "inprocess"
    runner = ("v2" if on_gpu else "v1") if settings.runner == "auto" else settings.runner
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    plan = Plan(
        on_gpu=on_gpu,
        engine=engine if settings.engine == "auto" else settings.engine,
        runner=runner,
        dtype=_dtype(on_gpu, settings, checkpoint) if settings.dtype == "auto" else settings.dtype,
        max_positions=resolve_max_positions(settings, checkpoint.shape.backbone.max_positions),
        gpu_memory_bytes=current_platform.get_device_total_memory() if on_gpu else 0,
        full_graphs=on_gpu and _captures_prompts(settings, current_platform),
    )
    return replace(plan, max_num_seqs=max_num_seqs(settings, plan, checkpoint))


def check_config(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if transformers refuses config.json, as it would inside vLLM."""
    from talker.config import CONFIG_CLASSES

    file = checkpoint.folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    try:
        CONFIG_CLASSES[checkpoint.family.model_type].from_dict(config)
    except Exception as error:  # of many kinds: StrictDataclassError, KeyError, AttributeError
        raise CheckpointError(f"{file}: {error}") from error


def check_shared_memory() -> None:
    """Raise ValueError if vLLM cannot create its locks, with the path, which its error lacks."""
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise ValueError(f"shared memory in /dev/shm cannot be used: {error.strerror}") from error


def check_libnuma() -> None:
    """Raise ValueError if vLLM's CPU build cannot be loaded. vLLM itself goes on without its
    kernels, and fails at the first of them.
    """
    if is_gpu_build():
        return
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise ValueError(
            "libnuma, which vLLM's CPU kernels need, cannot be loaded "
            f"({error}; Debian and Ubuntu: apt-get install libnuma1; Fedora: numactl-libs)"
        ) from error


def _captures_prompts(settings: TalkerSettings, platform: Any) -> bool:
    """Whether whole-step graphs of steps with prompts are known to work and to be faster.

    FlashAttention 3, vLLM's choice on Hopper GPUs, can be captured with prompts; FlashAttention 2
    and FlashInfer, its choices elsewhere, cannot. On an H200, the first row of a 4B talker comes
    after 9.4 ms instead of 17.1, rows are as fast, and codes are the same
    (``benchmarks/results/gpu_h200.json``). From vLLM 0.33 on FlashAttention 4 can be captured so
    too; on Blackwell GPUs it is used if the setting names FlashAttention. That has not been tried.
    """
    if settings.batch_invariant or settings.attention_backend not in (None, "FLASH_ATTN"):
        return False
    capability = platform.get_device_capability()
    if capability is None:
        return False
    is_chosen = settings.attention_backend is not None
    return capability.major == _HOPPER or (is_chosen and _flash_attention_captures_prompts())


def _flash_attention_captures_prompts() -> bool:
    """Whether vLLM captures FlashAttention with prompts, in the version that it uses here: 3, and
    from vLLM 0.33 on 4.
    """
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

    support: str = FlashAttentionMetadataBuilder._cudagraph_support.name
    return support == _CAPTURED_WITH_PROMPTS


def _check_packed_kernel() -> None:
    """Raise ValueError if vLLM lacks the CPU kernel for packed weights. It accepts such weights on
    any CPU and fails at the first step; its builds for x86 without AVX512 have no such kernel.
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
    """Raise ValueError where vLLM would fail in a child process, far from the reason.

    ``ray_device_key`` is Ray's name of the platform's devices. vLLM has none for CPUs, and asks Ray
    for as many devices as there are workers. ``has_ray``: whether the package is installed.
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


def _dtype(on_gpu: bool, settings: TalkerSettings, checkpoint: Checkpoint) -> str:
    """float32 for small models: its codes equal the reference implementation's one by one, also on
    a GPU, where they met logits that were not numbers in bfloat16. On a CPU bfloat16 is no faster
    with one stream (it is by a third with sixteen). Large models do not fit twice.
    """
    is_large = 4 * _weights(checkpoint) > _MAX_FLOAT32_BYTES
    # a GPU's kernels for 8 bits, and attention by FlashAttention, have no float32
    needs_half = on_gpu and (settings.quantization != "none" or settings.attention_backend)
    # the kernels for packed weights have no float32
    return "bfloat16" if needs_half or is_large or checkpoint.quantisation else "float32"


def _weights(checkpoint: Checkpoint) -> int:
    """Number of weights in the talker."""
    expected = checkpoint.family.expected_weights(checkpoint.shape)
    return sum(math.prod(size) for size in expected.values())


def weight_bytes(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int:
    """Bytes of all weights together, as the GPUs will hold them: those of a quantised checkpoint
    as they are stored, and in 8 bits those that ``quantization`` quantises.
    """
    width = _width(plan.dtype)
    if checkpoint.quantisation is not None:
        return stored_bytes(checkpoint.folder, checkpoint.family, checkpoint.shape, width)
    total = _weights(checkpoint) * width
    if settings.quantization != "none":
        expected = checkpoint.family.expected_weights(checkpoint.shape)
        for name in backbone_matrices(checkpoint.family, checkpoint.shape):
            channels, inputs = expected[name]
            total -= channels * (inputs * (width - 1) - _SCALE_BYTES)
    return total


def size_warning(plan: Plan, checkpoint: Checkpoint) -> str | None:
    """What to tell an operator who starts a model on a CPU that is meant for GPUs, else None."""
    weights = _weights(checkpoint)
    if plan.on_gpu or weights * _HALF_BYTES <= _MAX_CPU_BYTES:
        return None
    return (
        f"the model has {weights / 1e9:.1f} billion weights and runs on the CPU, which is slow: "
        "models of this size are meant for a GPU (make distclean, then HARDWARE=cuda)"
    )


def engine_arguments(
    settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint, stop_id: int
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's EngineArgs and AsyncEngineArgs."""
    compiled = plan.on_gpu if settings.compile == "auto" else settings.compile == "on"
    kernels = plan.on_gpu if settings.step_kernels == "auto" else settings.step_kernels == "on"
    batched = _GPU_BATCHED_POSITIONS if plan.on_gpu else _CPU_BATCHED_POSITIONS
    rules = {
        **checkpoint.sampler_rules,
        "graphs": compiled and plan.on_gpu and settings.graphs != "off",
        # a fast AR's may fail on one rank alone, whose codes would then differ from the others'
        "kernels": kernels and settings.tensor_parallel_size == 1,
        "usual_top_k": min(checkpoint.defaults.top_k, checkpoint.shape.codebook_size),
    }
    arguments: dict[str, Any] = {
        "model": str(checkpoint.folder),
        "dtype": plan.dtype,
        "enforce_eager": not compiled,
        "max_model_len": plan.max_positions,
        "max_num_seqs": plan.max_num_seqs,
        "scheduling_policy": "priority",
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
                "alignment_heads": checkpoint.alignment.heads,
                "alignment_near": checkpoint.alignment.near,
                "sampler_rules": rules,
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
        max_positions = arguments["max_num_batched_tokens"]
        arguments["compilation_config"] = _graphs(settings, plan, max_positions)
    if plan.runner == "v1":
        arguments["worker_cls"] = V1_WORKER
    if not plan.on_gpu:
        arguments["block_size"] = _CPU_BLOCK
    if backend := executor(settings, plan.on_gpu):
        arguments["distributed_executor_backend"] = backend
    if positions := kv_positions(settings, plan, checkpoint):
        # With an explicit size vLLM also skips its profiling run, which would count the memory that
        # a codec on the same GPU takes meanwhile as the talker's own.
        arguments["kv_cache_memory_bytes"] = positions * position_bytes(settings, plan, checkpoint)
    return arguments


def _graphs(settings: TalkerSettings, plan: Plan, max_positions: int) -> dict[str, Any]:
    """vLLM's compilation settings. By default it captures graphs only for steps of up to twice
    ``max_num_seqs`` positions, so every prompt with a voice, and every prompt that comes while
    others speak, would run without a graph and delay all streams.
    """
    chosen: dict[str, Any] = {
        "max_cudagraph_capture_size": min(settings.graph_positions, max_positions)
    }
    wanted = "full" if settings.graphs == "auto" and plan.full_graphs else settings.graphs
    if wanted != "auto":
        chosen["cudagraph_mode"] = _GRAPH_MODES[wanted]
    return chosen


def describe_graphs(arguments: dict[str, Any]) -> str:
    """Describe for the log the CUDA graphs that the engine was asked for."""
    chosen = arguments.get("compilation_config")
    if chosen is None or chosen.get("cudagraph_mode") == "NONE":
        return "none"
    mode = chosen.get("cudagraph_mode", "vLLM's default")
    return f"{mode}, up to {chosen['max_cudagraph_capture_size']} positions"


def executor(settings: TalkerSettings, on_gpu: bool) -> str | None:
    """vLLM's executor for a model's workers; None leaves it to vLLM."""
    if settings.distributed_executor != "auto":
        return settings.distributed_executor
    if on_gpu:
        return None
    if settings.tensor_parallel_size > 1:
        return "mp"
    # each replica's worker inside its engine core saves a process and 0.7 GiB for each
    return "uni" if settings.data_parallel_size > 1 else None


def ring_size(arguments: dict[str, Any]) -> int:
    """Slots of each engine core's frame table, as the model computes them."""
    from talker.frames import slots_for  # imports torch

    slots = arguments["additional_config"][SETTINGS_KEY]["frame_slots"]
    return slots or slots_for(arguments["max_num_seqs"], arguments["max_model_len"])


def position_bytes(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int:
    """KV cache bytes of one position over all layers, on each GPU of a tensor-parallel group."""
    body = checkpoint.shape.backbone
    heads = max(1, body.num_kv_heads // settings.tensor_parallel_size)
    width = _width(plan.dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype)
    return 2 * body.num_layers * heads * body.head_dim * width


def kv_positions(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int | None:
    """Number of positions in the KV cache. None on a GPU without room for even one request, by this
    estimate: vLLM then measures for itself, and reports the shortage.
    """
    if settings.kv_positions:
        return settings.kv_positions
    if not plan.on_gpu:
        return _cpu_positions(plan)
    wanted = plan.max_num_seqs * plan.max_positions + _GPU_BLOCK * (plan.max_num_seqs + 1)
    room = _gpu_memory(settings, plan, checkpoint).positions(plan.max_num_seqs)
    return min(wanted, room) if room >= plan.max_positions else None


def max_num_seqs(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> int:
    """Maximum number of requests per step: the operator's, or as many as a GPU has room for."""
    if settings.max_num_seqs or not plan.on_gpu:
        return settings.max_num_seqs or DEFAULT_SEQS_CPU
    return _gpu_memory(settings, plan, checkpoint).slots(settings.kv_positions)


def _gpu_memory(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint) -> TalkerMemory:
    keys = len(checkpoint.alignment.heads) * checkpoint.shape.backbone.head_dim
    return TalkerMemory(
        gpu_bytes=plan.gpu_memory_bytes,
        share=settings.gpu_memory_utilization,
        weight_bytes=weight_bytes(settings, plan, checkpoint) // settings.tensor_parallel_size,
        # and the alignment heads' keys, which word timings need, beside the KV cache
        position_bytes=position_bytes(settings, plan, checkpoint) + keys * _width(plan.dtype),
        max_positions=plan.max_positions,
        frames_per_s=checkpoint.family.frames_per_s,
        table_bytes=lambda slots: table_bytes(settings, plan, checkpoint, slots),
    )


def table_bytes(settings: TalkerSettings, plan: Plan, checkpoint: Checkpoint, slots: int) -> int:
    """Bytes of the frame table with so many requests per step; it is on every GPU."""
    from talker.frames import row_bytes, slots_for  # imports torch

    shape, look_back = checkpoint.shape, checkpoint.sampler_rules.get("look_back", 0)
    rows = settings.frame_slots or slots_for(slots, plan.max_positions)
    states = checkpoint.family.num_states(shape)
    return (rows + 1) * row_bytes(shape.num_codebooks, states, look_back)


def _width(dtype: str) -> int:
    """Bytes per number."""
    return {"float32": 4, "fp8": 1}.get(dtype, 2)


def _cpu_positions(plan: Plan) -> int:
    wanted = plan.max_num_seqs * min(plan.max_positions, _CPU_POSITIONS_PER_SLOT)
    return max(wanted, plan.max_positions) + _CPU_BLOCK * (plan.max_num_seqs + 1)


def refuse_other_runners(vllm_config: Any) -> None:
    """Raise ValueError unless Model Runner V2 or our V1 worker does the sampling.

    vLLM falls back to V1 silently (no Triton, a logits-processor plugin installed), and V1's own
    sampler would misread the logits without any error.
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
    """Preempted requests, and prompt positions found in the prefix cache, since the start."""

    preempted: int = 0
    cached: int = 0

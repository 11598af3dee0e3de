"""How a talker process is run; travels to it as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a talker process. None means "decide by the device and checkpoint".

    ``engine``: ``inprocess`` runs vLLM's engine in the talker process, ``async`` runs
    AsyncLLM, whose engine cores are processes of their own; needed for data parallelism.
    ``max_positions`` bounds prompt plus rows of one request; ``kv_positions`` is the room for
    all of them together. ``frame_slots`` sizes the frame table (a power of two).
    A request whose consumer is ``hold_rows`` rows behind is paused until it comes back.
    ``max_outstanding`` bounds what the gateway hands over; vLLM queues what is more than
    ``max_num_seqs``. ``continuity``: whether conversations go on from what they have said;
    ``auto`` leaves it to the checkpoint. Of ``max_conversations`` at most, the most recent, it is
    remembered what they have said. ``threads`` are the CPU threads of the model.
    ``quantization``: the backbone's linear layers in 8 bits, made while the checkpoint loads
    (``talker.presets``).
    ``distributed_executor``: how vLLM runs a model's workers, ``mp`` as processes of this
    machine, ``ray`` as actors of the Ray cluster that this machine belongs to.
    """

    engine: Literal["auto", "inprocess", "async"] = "auto"
    runner: Literal["auto", "v1", "v2"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "int8", "fp8"] = "none"
    max_num_seqs: int = 16
    max_outstanding: int = 256
    hold_rows: int = 64
    continuity: Literal["auto", "on", "off"] = "auto"
    max_conversations: int = 1024
    max_positions: int | None = None
    max_batched_positions: int | None = None
    kv_positions: int | None = None
    frame_slots: int | None = None
    prefix_caching: bool = True
    compile: bool | None = None
    statistics: bool = False
    threads: int = 1
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float = 0.8
    distributed_executor: Literal["auto", "mp", "ray"] = "auto"

    def has_continuity(self, is_trained: bool) -> bool:
        """Whether conversations go on, with a checkpoint that was (not) trained for it."""
        return is_trained if self.continuity == "auto" else self.continuity == "on"

    def __post_init__(self) -> None:
        sizes = (
            self.max_num_seqs,
            self.max_outstanding,
            self.hold_rows,
            self.max_conversations,
            self.threads,
        )
        if min(sizes) < 1 or min(self.tensor_parallel_size, self.data_parallel_size) < 1:
            raise ValueError("counts in the talker's settings start at 1")
        if self.engine == "inprocess" and self.data_parallel_size > 1:
            raise ValueError("data parallelism needs engine='async'")
        if self.engine == "inprocess" and self.distributed_executor == "ray":
            raise ValueError("workers under Ray need engine='async'")


#: Text and rows of one request: about five minutes of speech, within what the family was
#: trained on (8,192 positions), and small enough for the KV cache of a small machine.
DEFAULT_MAX_POSITIONS = 4096


def resolve_max_positions(settings: TalkerSettings, model_limit: int) -> int:
    """Positions of one request, at most what the model has."""
    return min(settings.max_positions or DEFAULT_MAX_POSITIONS, model_limit)

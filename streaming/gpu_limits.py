"""Limits that follow from a GPU's memory, where the operator sets none.

    the talker's share   weights, CUDA and graphs, frame table, KV cache
    the rest             the codec: weights, CUDA and graphs, states of streams

Memory limits how many utterances there is room for. How many contexts are admitted is decided by
the measured pace, below that (``streaming.capacity``). Pure arithmetic, in bytes and positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: GPU memory for all of the talker but weights and KV cache: CUDA's own, graphs, activations, and a
#: frame table of up to so many bytes.
RESERVE_BYTES, _TABLE_IN_RESERVE = 4 << 30, 256 << 20
#: An ordinary utterance: its prompt, in positions, and its audio, in seconds.
_PROMPT_POSITIONS, _AUDIO_S = 100, 30
#: Utterances at once, at most. Half of the largest step with a graph (``talker_graph_positions``),
#: so that prompts beside them have one too; and about half of what a gateway's one core carries.
MAX_SLOTS = 256
#: Utterances at once, at least.
_MIN_SLOTS = 8
#: Numbers of slots are multiples of it.
_SLOTS_STEP = 4
#: Windows of the codec's largest batch, at least and at most.
_MIN_BATCH, _MAX_BATCH = 4, 32
#: GPU memory for each window of the largest batch. Of the codecs Fish's needs the most: 50 frames
#: of 2,048 samples, some five tensors with 96 channels each.
_WINDOW_BYTES = 200 << 20
#: The parts of a GPU's memory for the codec's largest batch and for its states of streams. Both fit
#: into what ``talker_gpu_memory_utilization`` leaves by default.
_BATCH_PART, _STATES_PART = 1 / 12, 1 / 20
#: The part of the memory that is free when the codec starts which states may take.
_FREE_PART = 1 / 4
#: Streams whose states are kept at most. A state remains for a while after a stream was cancelled.
_MAX_STATES = 2 * MAX_SLOTS
#: Open sockets, and utterances handed to the talker: at least so many, and for each context.
_MIN_CONNECTIONS, _MIN_OUTSTANDING, _PER_CONTEXT = 256, 256, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerMemory:
    """What a talker has and needs on each of its GPUs.

    Args:
        gpu_bytes: the GPU's memory.
        share: the part of it that is the talker's.
        weight_bytes: of the model.
        position_bytes: of a position in the KV cache.
        max_positions: of the longest utterance, with its prompt.
        frames_per_s: rows for a second of audio.
        table_bytes: of the frame table, for a number of slots.
    """

    gpu_bytes: int
    share: float
    weight_bytes: int
    position_bytes: int
    max_positions: int
    frames_per_s: float
    table_bytes: Callable[[int], int]

    @property
    def utterance_positions(self) -> int:
        """Positions of an ordinary utterance: half a minute, and its prompt."""
        wanted = _PROMPT_POSITIONS + round(_AUDIO_S * self.frames_per_s)
        return min(wanted, self.max_positions)

    def positions(self, slots: int) -> int:
        """Number of positions that fit beside the frame table of so many slots; below 1 if the
        model itself does not fit.
        """
        table = max(0, self.table_bytes(slots) - _TABLE_IN_RESERVE)
        taken = self.weight_bytes + RESERVE_BYTES + table
        return int(self.gpu_bytes * self.share - taken) // self.position_bytes

    def slots(self, kv_positions: int | None = None) -> int:
        """Number of utterances at once, so that each has room for an ordinary length.

        ``kv_positions``: size of the KV cache, if the operator has set it.
        """
        for slots in range(MAX_SLOTS, _MIN_SLOTS, -_SLOTS_STEP):
            room = self.positions(slots) if kv_positions is None else kv_positions
            if room >= slots * self.utterance_positions:
                return slots
        return _MIN_SLOTS


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """Windows in the codec's largest batch, and memory for the states of streams."""

    max_batch: int
    cache_bytes: int


#: On a CPU, where batches gain nothing, and the memory is enough for 120 to 220 streams.
CPU_CODEC = CodecLimits(8, 1 << 30)


def codec_limits(gpu_bytes: int, free_bytes: int, state_bytes: int) -> CodecLimits:
    """Return the codec's limits on a GPU.

    Args:
        gpu_bytes: the GPU's memory.
        free_bytes: what is free of it, with or without the talker.
        state_bytes: the state of one stream; 0 if the codec keeps none.
    """
    batch = _MIN_BATCH
    for_batch = min(gpu_bytes * _BATCH_PART, free_bytes / 2)
    while batch < _MAX_BATCH and 2 * batch * _WINDOW_BYTES <= for_batch:
        batch *= 2
    room = min(gpu_bytes * _STATES_PART, free_bytes * _FREE_PART)
    return CodecLimits(batch, min(int(room), _MAX_STATES * state_bytes))


def connections_for(contexts: int) -> int:
    """Number of open sockets, for so many contexts at once."""
    return max(_MIN_CONNECTIONS, _PER_CONTEXT * contexts)


def outstanding_for(slots: int) -> int:
    """Number of utterances handed to a talker that speaks so many at once."""
    return max(_MIN_OUTSTANDING, _PER_CONTEXT * slots)

"""Batching of windows: earliest deadline first, equal shapes together. No torch, no clock.

Windows run together when their shapes are equal, contexts beyond the receptive field not
counted. Padding to a common shape would need masks at every layer (biases leak past a
stream's edge); a GPU's graphs have shapes of their own, with masks (``codec.buckets``). A batch
grows only while its most urgent window stays in time, and on a CPU not at all: there a batch
costs nearly as much as its windows one by one, and each of them would wait for all.

A long window is cut into pieces, chosen one by one, so that no stream waits for more than
one piece of it. Pieces keep the receptive field around them and give the same bits. One with
which an utterance begins (all of it, where audio is wanted whole) lets those pass between its
pieces whose listeners would run dry soon: nobody hears it yet, and later is better than a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

#: Between its pieces a long beginning lets pass what is due within this, and then has its turn.
_LET_PASS_S = 1.0
#: New frames of a long beginning: more than a first chunk has.
_LONG_FRAMES = 100
#: New frames of the shortest pieces.
_LEAST_PIECE = 5
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds of a batch: ``fixed_s + frame_s * frames``, context frames included."""

    fixed_s: float
    frame_s: float

    def seconds(self, frames: int) -> float:
        """The cost of ``frames``."""
        return self.fixed_s + self.frame_s * frames


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``queued`` windows at most; ``rows`` and ``seconds`` of a batch; frames of a piece, and how
    long one should take.

    A batch of one may cost more than ``seconds``. ``piece_frames`` counts new frames.
    """

    queued: int = 1024
    rows: int = 8
    seconds: float = 0.2
    piece_frames: int = 50
    piece_seconds: float = 0.02

    def affordable(self, cost: DecodeCost, spec: CodecSpec) -> BatchLimits:
        """Limits under which a turn of the worker stays short, whatever the machine.

        A piece has as many new frames as it has context, at least: smaller ones would spend most
        of their time on that. Where a window costs more than is saved by not decoding it alone,
        there are no batches.
        """
        context = spec.left_frames + spec.right_frames
        affordable = (self.piece_seconds - cost.fixed_s) / max(cost.frame_s, 1e-9)
        least = max(_LEAST_PIECE, context)
        piece = min(self.piece_frames, max(least, int(affordable) - context))
        saves = cost.fixed_s >= cost.frame_s * (context + _LEAST_PIECE)
        return replace(self, piece_frames=piece, rows=self.rows if saves else 1)


def in_groups(
    items: Sequence[T], key: Callable[[T], K], run: Callable[[K, list[T]], Sequence[R]]
) -> list[R]:
    """Run items of equal keys together; the results are in the order of the items."""
    groups: dict[K, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    results: dict[int, R] = {}
    for found, indices in groups.items():
        made = run(found, [items[index] for index in indices])
        results.update(zip(indices, made, strict=True))
    return [results[index] for index in range(len(items))]


class Grouping(Protocol):
    """Which pieces may run together, and what each costs its batch."""

    def key(self, piece: DecodeWindow) -> Hashable:
        """Pieces of equal keys may."""

    def frames(self, piece: DecodeWindow) -> int:
        """Frames that the decoder computes for it, contexts and padding included."""


class EqualShapes:
    """Only pieces of the very same shape run together, and none is padded."""

    def key(self, piece: DecodeWindow) -> Hashable:
        """See Grouping."""
        return piece.left_context, piece.new_frames, piece.lookahead

    def frames(self, piece: DecodeWindow) -> int:
        """See Grouping."""
        return piece.left_context + piece.new_frames + piece.lookahead


@dataclass(slots=True)
class Job:
    """One window in the queue: its pieces still to do, and the samples of those done. ``begins``:
    nobody hears its stream yet.
    """

    id: int
    deadline_s: float
    received_s: float
    frames: int
    pieces: list[DecodeWindow]
    alone: bool = False
    begins: bool = False
    samples: list[Samples] = field(default_factory=list)
    started_s: float | None = None
    decode_s: float = 0.0
    batch: int = 0

    @property
    def next_piece(self) -> DecodeWindow:
        """The piece to decode next."""
        return self.pieces[len(self.samples)]

    @property
    def new_frames(self) -> int:
        """Frames that it emits."""
        return sum(piece.new_frames for piece in self.pieces)

    @property
    def is_done(self) -> bool:
        """Whether every piece has its samples."""
        return len(self.samples) == len(self.pieces)


class QueueFull(Exception):
    """The queue has as many windows as it may hold."""


class DeadlineQueue:
    """Windows that wait. ``spec`` is the codec's."""

    def __init__(
        self,
        spec: CodecSpec,
        cost: DecodeCost,
        limits: BatchLimits,
        grouping: Grouping | None = None,
    ) -> None:
        self._spec, self._cost, self._limits = spec, cost, limits
        self._grouping = grouping or EqualShapes()
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self, id: int, window: DecodeWindow, deadline_s: float, now: float, *,
        alone: bool = False, begins: bool = False,
    ) -> None:  # fmt: skip
        """Take a window in. Raises QueueFull; an id that waits already is a ValueError."""
        if id in self._jobs:
            raise ValueError(f"window {id} is queued already")
        if len(self._jobs) >= self._limits.queued:
            raise QueueFull
        pieces = list(cut(window, self._limits.piece_frames, self._spec))
        frames = window.codes.shape[1]
        self._jobs[id] = Job(id, deadline_s, now, frames, pieces, alone, begins)

    def cancel(self, id: int) -> bool:
        """Drop a window, between two of its pieces too; say whether it was there."""
        return self._jobs.pop(id, None) is not None

    def take(self, now: float) -> list[Job]:
        """Choose the jobs whose next pieces are decoded together now; none if none wait.

        They stay in the queue until ``finish`` or ``cancel``. The first has the earliest
        deadline. Others of its group join in deadline order while the batch keeps to its
        limits and, unless the first is late already, would not make it late.
        """
        order = sorted(self._jobs.values(), key=lambda job: (job.deadline_s, job.id))
        if not order:
            return []
        first, *others = order
        batch, key = [first], self._grouping.key(first.next_piece)
        if first.alone:
            return batch
        frames = self._grouping.frames(first.next_piece)
        in_time = first.deadline_s - now
        was_late = self._cost.seconds(frames) > in_time
        for job in others:
            seconds = self._cost.seconds((len(batch) + 1) * frames)
            if len(batch) >= self._limits.rows or seconds > self._limits.seconds:
                break
            if not was_late and seconds > in_time:
                break
            if not job.alone and self._grouping.key(job.next_piece) == key:
                batch.append(job)
        return batch

    def finish(self, job: Job, samples: Samples, now: float) -> bool:
        """Note the samples of the job's next piece; the job leaves when all are there.

        Return whether it is done. A job that was cancelled meanwhile is never done.
        """
        if self._jobs.get(job.id) is not job:
            return False
        job.samples.append(samples)
        if job.is_done:
            del self._jobs[job.id]
        elif job.begins and job.new_frames > _LONG_FRAMES:
            job.deadline_s = max(job.deadline_s, now + _LET_PASS_S)
        return job.is_done


def cut(window: DecodeWindow, piece_frames: int, spec: CodecSpec) -> Iterator[DecodeWindow]:
    """Cut a window into pieces of at most ``piece_frames`` new frames, about equally long.

    Contexts are cut down to the codec's receptive field, or end with the window, and so is the
    history before them. The pieces' samples in order are the window's.
    """
    count = -(-window.new_frames // piece_frames)
    codes, before = window.codes, window.left_context
    if spec.history_frames and window.history is not None:
        codes = np.concatenate([window.history, codes], axis=1)
        before += window.history.shape[1]
    for index in range(count):
        first = before + window.new_frames * index // count
        last = before + window.new_frames * (index + 1) // count
        start = max(0, first - spec.left_frames)
        stop = min(codes.shape[1], last + spec.right_frames)
        history = max(0, start - spec.history_frames)
        yield DecodeWindow(
            codes[:, start:stop],
            first - start,
            last - first,
            stop - last,
            window.first_frame + first - before,
            window.is_last and index == count - 1,
            codes[:, history:start] if history < start and spec.history_frames else None,
        )

"""Batching of windows: earliest deadline first, equal shapes together. No torch, no clock.

Windows run together if their shapes are equal, not counting contexts beyond the receptive field.
Padding to a common shape would need masks at every layer (biases leak past a stream's edge); a
GPU's graphs have shapes of their own, with masks (``codec.buckets``). A batch grows only while its
most urgent window stays in time, and on a CPU not at all: there a batch costs nearly as much as its
windows one by one, and each of them would wait for all.

A long window is cut into pieces, which are chosen one by one, so that no stream waits for more than
one piece of it. Pieces keep the receptive field around them and give the same bits. Between the
pieces of a long window that begins an utterance (all of it, if audio is wanted whole), windows go
first whose listeners would run out of audio soon. Its own stream does not play yet, and a later
start is better than a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

#: Between its pieces a long first window yields to windows due within this many seconds.
_LET_PASS_S = 1.0
#: A first window with more new frames is long; a first chunk has fewer.
_LONG_FRAMES = 100
#: New frames of the shortest pieces.
_MIN_PIECE = 5
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds for a batch: ``fixed_s + frame_s * frames``, including context frames."""

    fixed_s: float
    frame_s: float

    def seconds(self, frames: int) -> float:
        """Cost of ``frames`` frames, in seconds."""
        return self.fixed_s + self.frame_s * frames


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of the queue in windows (``queued``), of a batch (``rows``, ``seconds``) and of a
    piece (new frames, and the time that it should take).

    A batch of one may take longer than ``seconds``.
    """

    queued: int = 1024
    rows: int = 8
    seconds: float = 0.2
    piece_frames: int = 50
    piece_seconds: float = 0.02

    def affordable(self, cost: DecodeCost, spec: CodecSpec) -> BatchLimits:
        """Return limits that keep a turn of the worker short on any machine.

        A piece has at least as many new frames as it has context, since smaller ones would spend
        most of their time on that. There are no batches if a window costs more than batching saves.
        """
        context = spec.left_frames + spec.right_frames
        affordable = (self.piece_seconds - cost.fixed_s) / max(cost.frame_s, 1e-9)
        smallest = max(_MIN_PIECE, context)
        piece = min(self.piece_frames, max(smallest, int(affordable) - context))
        saves = cost.fixed_s >= cost.frame_s * (context + _MIN_PIECE)
        return replace(self, piece_frames=piece, rows=self.rows if saves else 1)


def in_groups(
    items: Sequence[T], key: Callable[[T], K], run: Callable[[K, list[T]], Sequence[R]]
) -> list[R]:
    """Run items of equal keys together; return the results in the order of the items."""
    groups: dict[K, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    results: dict[int, R] = {}
    for found, indices in groups.items():
        outputs = run(found, [items[index] for index in indices])
        results.update(zip(indices, outputs, strict=True))
    return [results[index] for index in range(len(items))]


class Grouping(Protocol):
    """Decides which pieces may run together, and what each costs its batch."""

    def key(self, piece: DecodeWindow) -> Hashable:
        """Return a key; pieces with equal keys may run together."""

    def frames(self, piece: DecodeWindow) -> int:
        """Number of frames computed for a piece, including contexts and padding."""


class EqualShapes:
    """Runs only pieces of exactly the same shape together, without padding."""

    def key(self, piece: DecodeWindow) -> Hashable:
        """See Grouping."""
        return piece.left_context, piece.new_frames, piece.lookahead

    def frames(self, piece: DecodeWindow) -> int:
        """See Grouping."""
        return piece.left_context + piece.new_frames + piece.lookahead


@dataclass(slots=True)
class Job:
    """A window in the queue."""

    id: int
    #: When its samples are needed; the earliest deadline is decoded first.
    deadline_s: float
    #: When it was queued.
    received_s: float
    #: Number of its frames, including contexts.
    frames: int
    #: The window in parts, which are decoded one after another.
    pieces: list[DecodeWindow]
    #: Whether it must not share a batch.
    alone: bool = False
    #: Whether its stream does not play yet.
    begins: bool = False
    #: The samples of the pieces decoded so far.
    samples: list[Samples] = field(default_factory=list)
    #: When its first piece was taken; None before.
    started_s: float | None = None
    #: Time that its batches took.
    decode_s: float = 0.0
    #: The part of that time that was on the processor.
    busy_s: float = 0.0
    #: Number of windows in the largest of these batches.
    batch: int = 0

    @property
    def next_piece(self) -> DecodeWindow:
        """The piece to decode next."""
        return self.pieces[len(self.samples)]

    @property
    def new_frames(self) -> int:
        """Number of frames that it emits."""
        return sum(piece.new_frames for piece in self.pieces)

    @property
    def is_done(self) -> bool:
        """Whether every piece has its samples."""
        return len(self.samples) == len(self.pieces)


class QueueFull(Exception):
    """The queue holds as many windows as it may."""


class DeadlineQueue:
    """Windows that wait to be decoded. ``spec`` is the codec's."""

    def __init__(
        self,
        spec: CodecSpec,
        cost: DecodeCost,
        limits: BatchLimits,
        grouping: Grouping | None = None,
    ) -> None:
        self._spec = spec
        self._cost = cost
        self._limits = limits
        self._grouping = grouping or EqualShapes()
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return self._jobs.get(job.id) is job

    def add(
        self, id: int, window: DecodeWindow, deadline_s: float, now: float, *,
        alone: bool = False, begins: bool = False,
    ) -> None:  # fmt: skip
        """Add a window. Raises QueueFull, and ValueError if the id is queued already."""
        if id in self._jobs:
            raise ValueError(f"window {id} is queued already")
        if len(self._jobs) >= self._limits.queued:
            raise QueueFull
        pieces = list(cut(window, self._limits.piece_frames, self._spec))
        frames = window.codes.shape[1]
        self._jobs[id] = Job(id, deadline_s, now, frames, pieces, alone, begins)

    def cancel(self, id: int) -> bool:
        """Drop a window, even between two of its pieces; return whether it was queued."""
        return self._jobs.pop(id, None) is not None

    def take(self, now: float) -> list[Job]:
        """Choose the jobs whose next pieces are decoded together now; empty if no job waits.

        They stay in the queue until ``finish`` or ``cancel``. The first has the earliest deadline.
        Others of its group join in deadline order while the batch is within its limits and does not
        make the first one late, unless that is late already.
        """
        order = sorted(self._jobs.values(), key=lambda job: (job.deadline_s, job.id))
        if not order:
            return []
        first, *others = order
        batch = [first]
        key = self._grouping.key(first.next_piece)
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
        """Record the samples of the job's next piece; the job leaves when all are there.

        Return whether it is done. A job that was cancelled meanwhile is never done.
        """
        if job not in self:
            return False
        job.samples.append(samples)
        if job.is_done:
            del self._jobs[job.id]
        elif job.begins and job.new_frames > _LONG_FRAMES:
            job.deadline_s = max(job.deadline_s, now + _LET_PASS_S)
        return job.is_done


def cut(window: DecodeWindow, piece_frames: int, spec: CodecSpec) -> Iterator[DecodeWindow]:
    """Cut a window into pieces of at most ``piece_frames`` new frames and about equal length.

    Contexts are cut down to the codec's receptive field, or end with the window, and so is the
    history before them. The pieces' samples in order are the window's.
    """
    count = -(-window.new_frames // piece_frames)
    codes = window.codes
    before = window.left_context
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
            codes[:, history:start] if history < start else None,
        )

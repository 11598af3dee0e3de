"""Warm-up of the codec worker: decode the first windows' shapes, and measure the cost.

On a CPU oneDNN creates kernels for each window shape, and keeps them for a while.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

from codec.batching import BatchLimits, DecodeCost, EqualShapes, Grouping
from codec.buckets import BucketedDecoder
from codec.family import StatefulDecoder
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow

#: Number of kernels to keep: a window shape needs about twenty.
_KERNELS = 4096
#: Largest first window that is decoded before the first request.
_FIRST_FRAMES = 8
#: Lookaheads of first windows, by the default settings.
_FIRST_LOOKAHEADS = (2, 4)
#: Largest later window, by the default settings.
_LARGEST_FRAMES = 50
#: Lookahead of later windows, by the default settings.
_LOOKAHEAD = 4
#: Measurements of each window from which the cost is derived.
_TIMINGS = 3


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of some 200 window shapes, about 600 MiB when all are used (1024
    kernels: 170 MiB; measured with the embedded codec and random shapes).

    Creating the kernels of a shape takes longer than decoding a short window. By default 1024 are
    kept: those of 50 shapes, fewer than a stream has. The variable is oneDNN's own and is read with
    the first convolution. A value set by the operator takes precedence.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))


def meet_first_windows(decoder: CodecDecoder) -> None:
    """Decode the shapes with which utterances begin, so that no request waits for their kernels.
    Does nothing with graphs, which have been captured already.
    """
    if isinstance(decoder, BucketedDecoder):
        return
    for new in range(1, _FIRST_FRAMES + 1):
        for lookahead in sorted({min(n, decoder.spec.right_frames) for n in _FIRST_LOOKAHEADS}):
            decoder.decode_windows([_window(decoder, 0, new, lookahead)])


def later_windows(decoder: CodecDecoder, max_frames: int = _LARGEST_FRAMES) -> list[DecodeWindow]:
    """Return windows of the later shapes, for a worker to decode once while it is idle."""
    if isinstance(decoder, BucketedDecoder):
        return []
    left = decoder.spec.left_frames
    lookahead = min(_LOOKAHEAD, decoder.spec.right_frames)
    return [_window(decoder, left, new, lookahead) for new in range(1, max_frames + 1)]


def grouping_of(decoder: CodecDecoder) -> Grouping:
    """Return the grouping by which ``decoder`` runs windows together."""
    return decoder.buckets if isinstance(decoder, BucketedDecoder) else EqualShapes()


def measure_cost(decoder: CodecDecoder, grouping: Grouping, limits: BatchLimits) -> DecodeCost:
    """Warm the decoder up and fit its cost, a prior for schedulers.

    Trimming makes context cheaper than new frames, so a line through two windows of a stream can
    start below zero. Then the slope alone is raised until it covers both.

    Graphs are for devices on which further rows cost little, so with them the larger of the two
    batches is a full one.
    """
    spec = decoder.spec
    left = spec.left_frames
    lookahead = min(_LOOKAHEAD, spec.right_frames)
    points = []
    full = limits.rows if isinstance(decoder, BucketedDecoder) else 1
    for new, rows in ((2, 1), (25, full)):
        batch = [_window(decoder, left, new, lookahead)] * rows
        times = []
        decoder.decode_windows(batch)
        for _ in range(_TIMINGS):
            _catch_up(decoder, batch[0])
            began = time.monotonic()
            decoder.decode_windows(batch)
            times.append(time.monotonic() - began)
        points.append((rows * grouping.frames(batch[0]), statistics.median(times)))
    (frames1, seconds1), (frames2, seconds2) = points
    slope = max(0.0, (seconds2 - seconds1) / (frames2 - frames1))
    fixed = max(0.0, seconds1 - slope * frames1)
    return DecodeCost(fixed, max((seconds - fixed) / frames for frames, seconds in points))


def _catch_up(decoder: CodecDecoder, window: DecodeWindow) -> None:
    """Compute the state that a window continues from, which a stream that goes on has."""
    if isinstance(decoder, StatefulDecoder):
        for _ in decoder.catch_up(window):
            pass


def _window(decoder: CodecDecoder, left: int, new: int, lookahead: int) -> DecodeWindow:
    codes = np.zeros((decoder.spec.num_codebooks, left + new + lookahead), np.int16)
    return DecodeWindow(codes, left, new, lookahead, left)

"""What decoding costs, measured by the worker before it is ready."""

from __future__ import annotations

import statistics
import time

import numpy as np

from codec.batching import BatchLimits, DecodeCost, EqualShapes, Grouping
from codec.graphs import GraphDecoder
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow


def grouping_of(decoder: CodecDecoder) -> Grouping:
    """Which windows ``decoder`` runs together."""
    return decoder.buckets if isinstance(decoder, GraphDecoder) else EqualShapes()


def measure_cost(
    decoder: CodecDecoder, grouping: Grouping, limits: BatchLimits, repeats: int = 3
) -> DecodeCost:
    """Warm the decoder up and fit its cost, a prior for whoever schedules.

    Trimming makes context cheaper than new frames, so a line through two windows of a
    stream can start below zero; then the slope alone is raised until it covers both.

    Graphs are for devices on which rows cost little beside each other, so with them the
    larger of the two batches is a full one.
    """
    spec = decoder.spec
    left, points = spec.receptive_field_frames, []
    full = limits.rows if isinstance(decoder, GraphDecoder) else 1
    for new, rows in ((2, 1), (25, full)):
        codes = np.zeros((spec.num_codebooks, left + new + 4), np.int16)
        batch, times = [DecodeWindow(codes, left, new, 4)] * rows, []
        decoder.decode_windows(batch)
        for _ in range(repeats):
            began = time.monotonic()
            decoder.decode_windows(batch)
            times.append(time.monotonic() - began)
        points.append((rows * grouping.frames(batch[0]), statistics.median(times)))
    (frames1, seconds1), (frames2, seconds2) = points
    slope = max(0.0, (seconds2 - seconds1) / (frames2 - frames1))
    fixed = max(0.0, seconds1 - slope * frames1)
    return DecodeCost(fixed, max((seconds - fixed) / frames for frames, seconds in points))

"""Filters before an encoder: resampling, and time stretching at constant pitch.

ffmpeg's ``atempo`` changes the speed, block by block. It moves overlapping windows of the voice
closer together or further apart, each to a nearby position where the waves match best (WSOLA). One
``atempo`` handles tempos from 0.5 to 2. Beyond that two are chained, each with the square root of
the speed.

A window is the first power of two from 1/24 s on: 43 ms at 24 kHz. For speeds above 1 and up to 2,
the filter is told half the true sample rate, so its windows are 21 ms. This makes faster speech
more intelligible (character error rate .17 instead of .19 at speed 2, with 24 sentences by each of
four voices). For slower speech and two filters, longer windows preserve a tone's frequency better.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from math import ceil, log2, sqrt
from typing import cast

import av
import numpy as np
import soxr
from av.error import BlockingIOError as NothingYetError

from service.audio.encoder import audio_frame
from streaming.spec import Samples

_QUALITY = "HQ"
#: Output samples by which soxr's variable-rate filter is late when downsampling (measured: 1.6 to
#: 1.7), and the duration of zeros that push its tail out.
_LATE_SAMPLES, _TAIL_S = 2, 0.002


class Resampler:
    """Resamples a stream. The output does not depend on how the input is split, and has
    ``ceil(samples * to_rate / from_rate)`` samples.

    soxr's variable-rate engine is used, at a fixed rate, for its constant delay of 10 ms, or 25 ms
    to 8 kHz. The fixed-rate engine works in blocks, and holds back a varying amount of up to 38
    or 73 ms, which would cause a gap after the first chunk.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(
            from_rate, to_rate, 1, dtype="float32", quality=_QUALITY, vr=True
        )
        self._from_rate, self._to_rate = from_rate, to_rate
        self._tail = np.zeros(round(from_rate * _TAIL_S), np.float32)
        self._begin()

    def _begin(self) -> None:
        self._late = _LATE_SAMPLES if self._to_rate < self._from_rate else 0
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Samples:
        """Take samples; return the output that is final."""
        self._taken += len(samples)
        return self._give(self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32)))

    def finish(self) -> Samples:
        """Return the tail, and reset the filter."""
        missing = -(-self._taken * self._to_rate // self._from_rate) - self._given
        tail = self._give(self._stream.resample_chunk(self._tail, last=True))[:missing]
        self._stream.clear()
        self._begin()
        return tail

    def _give(self, samples: Samples) -> Samples:
        late = min(self._late, len(samples))
        self._late -= late
        self._given += len(samples) - late
        return samples[late:]


SLOWEST, FASTEST = 0.25, 4.0
_LEAST_TEMPO, _MOST_TEMPO = 0.5, 2.0
#: Seconds of input per block after the first. Samples wait until a block is full, so it is short.
_PIECE_S = 0.01
#: atempo's window is the first power of two from this duration on, at the rate it is told.
_WINDOW_S = 1 / 24
#: Decimal digits to which sample counts are rounded, since 0.3 and others are no exact floats.
_DIGITS = 6


def _tempos(speed: float) -> list[float]:
    """Return the tempo of each chained filter."""
    return [speed] if _LEAST_TEMPO <= speed <= _MOST_TEMPO else [sqrt(speed)] * 2


def _told_rate(speed: float, sample_rate: int) -> int:
    """Return the sample rate that the filters are told; a lower one makes windows shorter."""
    return sample_rate // 2 if 1.0 < speed <= _MOST_TEMPO else sample_rate


def _window_samples(told_rate: int) -> int:
    """Return the length of atempo's window."""
    return 1 << ceil(log2(told_rate * _WINDOW_S))


def held_back_s(speed: float, sample_rate: int) -> float:
    """Return the maximum seconds of stretched audio that are held back: an incomplete block, and
    by measurement one or two windows of each filter. For short windows this is an overestimate, so
    that the schedule keeps as much lead as with long ones.
    """
    if speed == 1.0:
        return 0.0
    told_rate = _told_rate(speed, sample_rate)
    window_s = _window_samples(told_rate) / sample_rate
    held_s, before = _PIECE_S, 1.0  # seconds of input
    for tempo in _tempos(speed):
        if told_rate != sample_rate:
            windows = 1.35 + 1.75 * (tempo - 1.0)
        else:
            windows = 1.35 + (0.6 * (tempo - _LEAST_TEMPO) if tempo < 1.0 else 0.5 * (tempo - 1.0))
        held_s += windows * window_s * before
        before *= tempo
    return held_s / speed


class TimeStretch:
    """Stretches utterances, each to ``ceil(samples / speed)`` samples. The output does not depend
    on how the input is split.

    Positions in the speech are exact to a window, about 20 ms, or to 100 ms above speed 2 and
    below 0.5. The end would be late too, and cut off while it can still be heard, so the last 10 ms
    fade over to the input's. Raises ValueError outside SLOWEST..FASTEST.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        if not SLOWEST <= speed <= FASTEST:
            raise ValueError("the speed is out of range")
        self._told_rate, self._speed = _told_rate(speed, sample_rate), speed
        self._piece = round(sample_rate * _PIECE_S)
        # Half of atempo's first window lies before the start. If the other half comes in parts,
        # slower speech clicks where the first windows meet (measured).
        self._first = ceil(_window_samples(self._told_rate) / 2 / self._piece) * self._piece
        self._begin()

    def _begin(self) -> None:
        self._graph: av.filter.Graph | None = None
        self._held = self._last = np.empty(0, np.float32)
        self._taken = self._pushed = self._given = 0

    def push(self, samples: Samples) -> Samples:
        """Take samples; return the output that is final."""
        self._taken += len(samples)
        self._last = np.concatenate([self._last, samples[-self._piece :]])[-self._piece :]
        held = np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        full = len(held) - len(held) % self._piece
        if not self._pushed and full < self._first:
            full = 0
        self._held = held[full:]
        return self._stretched(held[:full])

    def finish(self) -> Samples:
        """Return the rest, pushed out by silence, and reset the filter."""
        missing = ceil(round(self._taken / self._speed, _DIGITS)) - self._given
        parts, came = [np.empty(0, np.float32)], 0
        rest = np.pad(self._held, (0, -len(self._held) % self._piece))
        if not self._pushed:
            rest = np.pad(rest, (0, max(0, self._first - len(rest))))
        while came < missing:
            parts.append(self._stretched(rest))
            came += len(parts[-1])
            rest = np.zeros(self._piece, np.float32)
        end = np.concatenate(parts)[:missing]
        size = min(len(end), len(self._last))
        gains = np.arange(1, size + 1, dtype=np.float32) / max(1, size)
        end[len(end) - size :] *= 1 - gains
        end[len(end) - size :] += gains * self._last[len(self._last) - size :]
        self._begin()
        return end

    def _stretched(self, samples: Samples) -> Samples:
        graph, parts = self._opened(), [np.empty(0, np.float32)]
        at = 0
        while at < len(samples):
            size = self._piece if self._pushed else self._first
            piece = np.ascontiguousarray(samples[at : at + size])
            graph.push(audio_frame(piece, self._told_rate, self._pushed))
            self._pushed, at = self._pushed + size, at + size
            with suppress(NothingYetError):
                while True:
                    came = cast(av.AudioFrame, graph.pull()).to_ndarray().reshape(-1)
                    parts.append(came.astype(np.float32, copy=False))
        made = np.concatenate(parts)
        self._given += len(made)
        return made

    def _opened(self) -> av.filter.Graph:
        """Return the filter graph, opened at first use, which is too slow for the event loop."""
        if self._graph is None:
            graph = self._graph = av.filter.Graph()
            graph.threads = 1
            last = graph.add_abuffer(
                sample_rate=self._told_rate,
                format="flt",
                layout="mono",
                time_base=Fraction(1, self._told_rate),
            )
            for tempo in _tempos(self._speed):
                stage = graph.add("atempo", f"{tempo:.12f}")
                last.link_to(stage)
                last = stage
            last.link_to(graph.add("abuffersink"))
            graph.configure()
        return self._graph

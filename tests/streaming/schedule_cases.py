"""Random talkers and codecs that are as slow as their bounds allow."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random

from hypothesis import strategies as st

from streaming.chunk_schedule import (
    ChunkSchedule,
    PaceBounds,
    ScheduleSettings,
    start_frames,
    sustainable_frames,
)
from tests.streaming.schedule_sim import Codec, Sent, gaps, speak

FRAME_S = 0.04
SETTINGS = ScheduleSettings(frame_s=FRAME_S, delay_rows=7, left_context_frames=10)
BOUNDS = PaceBounds(
    row_s=0.014,
    burst_s=0.05,
    queue_s=0.01,
    decode_fixed_s=0.005,
    decode_frame_s=0.0005,
    decode_floor=0.9,
)
#: The prior of estimators. ``codec_share`` is the share that they give to a single stream.
PRIOR = PaceBounds(
    row_s=0.03,
    burst_s=0.2,
    queue_s=0.02,
    decode_fixed_s=0.01,
    decode_frame_s=0.001,
    decode_floor=0.5,
    codec_share=0.8,
)
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One utterance: its bounds, its settings, and a seed for the actual times."""

    bounds: PaceBounds
    settings: ScheduleSettings
    frames: int
    seed: int

    def run(self, schedule: type[ChunkSchedule] = ChunkSchedule, *, timers: bool = True) -> Played:
        """Speak and play the utterance, over a network with as much jitter as the guard allows."""
        rng = Random(self.seed)
        rows, codec = self._rows(rng), self._codec(rng)
        trimmed_s = self.bounds.trimmed_s
        chunks = schedule(
            self.settings, self.bounds, expected_frames=self.frames, is_trimmed=trimmed_s > 0
        )
        sent = speak(chunks, self.settings, rows, codec, timers=timers, trimmed_s=trimmed_s)
        return Played(sent, gaps(_over_network(sent, self.settings.guard_s, rng), FRAME_S), rows)

    def talker(self) -> tuple[list[float], Codec]:
        """Rows and codec for another run of the same case."""
        rng = Random(self.seed)
        return self._rows(rng), self._codec(rng)

    def _rows(self, rng: Random) -> list[float]:
        """Times of rows within (S, B), by one of several adversarial patterns."""
        row_s, burst_s = self.bounds.row_s, self.bounds.burst_s
        count, mode = self.frames + self.settings.delay_rows, rng.randrange(5)
        quick = rng.choice([0.0, 0.1, 0.5, 1.0]) * row_s
        start = start_frames(self.settings, self.bounds, left_frames=self.frames)
        start += self.settings.first_lookahead_frames - self.settings.incomplete_frames
        start += self.settings.delay_rows
        hit = start if mode == 0 else rng.randrange(1, count)
        level, now, times = 0.0, rng.uniform(0, 1), []
        for i in range(count):
            longest = row_s + burst_s - level
            if mode <= 1:  # quick, then the whole burst at once, then as slow as allowed
                step = quick if i < hit else longest if i == hit else min(longest, row_s)
            elif mode == 2:
                step = rng.uniform(0, longest)
            elif mode == 3:
                step = longest if rng.random() < 0.1 else rng.uniform(0, min(longest, row_s))
            else:  # rows in batches
                step = longest if rng.random() < 0.5 else 0.0
            level = max(0.0, level + step - row_s)
            now += step
            times.append(now)
        return times

    def _codec(self, rng: Random) -> Codec:
        """A codec that is fast for the first window and slow for the others, or random. The first
        two windows may also wait for streams that begin.
        """
        bounds, adverse, calls = self.bounds, rng.random() < 0.5, 0

        def decode(frames: int, at: float) -> float:
            nonlocal calls
            calls += 1
            share, wait = rng.uniform(bounds.decode_floor, 1), rng.random()
            if adverse:
                share, wait = (bounds.decode_floor, 0.0) if calls == 1 else (1.0, 1.0)
            longest = bounds.wait_s if calls <= 2 else bounds.queue_s
            return at + wait * longest + share * bounds.decode_s(frames)

        return decode


@dataclass(frozen=True, slots=True)
class Played:
    """The sent chunks and their times, the gaps between them, and the times of the rows."""

    sent: list[Sent]
    gaps: list[float]
    rows: list[float]


def random_case(seed: int, *, slow: bool = True) -> Case:
    """A case whose codec keeps up with playback. With ``slow``, the talker may not."""
    rng = Random(seed)
    while True:
        limit = 1.3 if slow else 1.0
        row_s = FRAME_S * rng.choice([rng.uniform(0.02, 1), rng.uniform(0.8, 1), 1.0, limit])
        bounds = PaceBounds(
            row_s=row_s,
            burst_s=rng.choice([0.0, rng.uniform(0, 0.4)]),
            queue_s=rng.choice([0.0, rng.uniform(0, 0.05)]),
            decode_fixed_s=rng.uniform(0, 0.02),
            decode_frame_s=rng.choice([0.0, rng.uniform(0, 0.01)]),
            decode_floor=rng.choice([0.0, 0.5, 0.9]),
            beginners_s=rng.choice([0.0, rng.uniform(0, 0.2)]),
            codec_share=rng.choice([1.0, rng.uniform(0.01, 1.0)]),
            trimmed_s=rng.choice([0.0, rng.uniform(0, 0.3)]),
        )
        narrow = rng.choice([0, 1, 2])
        delay = rng.choice([0, 7])
        settings = ScheduleSettings(
            frame_s=FRAME_S,
            delay_rows=delay,
            left_context_frames=10,
            first_lookahead_frames=narrow,
            lookahead_frames=rng.choice([narrow, 4]),
            incomplete_frames=rng.choice([0, min(narrow, delay)]),
            max_chunk_frames=rng.choice([10, 25, 50]),
            min_chunk_frames=rng.choice([1, 1, 3, 6]),
            growth=rng.choice([1.0, 1.5, 2.0, 4.0, 100.0]),
            guard_s=rng.choice([0.0, 0.05]),
            max_hold_frames=10**6,
        )
        if sustainable_frames(settings, bounds) < settings.max_chunk_frames:
            return Case(bounds, settings, rng.randrange(2, 300), seed)


def _over_network(sent: list[Sent], jitter_s: float, rng: Random) -> list[Sent]:
    """The chunks as the client receives them: in order, each up to ``jitter_s`` late."""
    worst, came, received = rng.random() < 0.5, -inf, []
    for i, item in enumerate(sent):
        late = jitter_s * (float(i > 0) if worst else rng.random())
        came = max(came, item.at + late)
        received.append(Sent(came, item.frames, item.trimmed_s))
    return received

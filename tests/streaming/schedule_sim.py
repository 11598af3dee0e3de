"""Simulates chunk schedules with talkers of many speeds and jitters.

Ours learns its bounds from 100 earlier streams of the same talker, as the service does. It is
compared with another server's fixed schedule: 20 frames, then those completed by every 75th row.
Playback has no prebuffer: it starts with the first samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from math import inf

import numpy as np

from streaming.chunk_schedule import ChunkSchedule, PaceBounds, ScheduleSettings
from streaming.latency import PaceEstimator

FRAME_S = 0.04
SETTINGS = ScheduleSettings(frame_s=FRAME_S, delay_rows=7, left_context_frames=10)
#: d0, d1 and the longest queue wait of a codec, in seconds.
CODECS = {"gpu": (0.005, 0.0005, 0.010), "cpu": (0.010, 0.004, 0.020)}
#: Takes the frames of a window and its submission time; returns its completion time.
Codec = Callable[[int, float], float]


@dataclass(frozen=True, slots=True)
class Sent:
    """Samples of ``frames`` frames, sent at ``at``, without the first ``trimmed_s``."""

    at: float
    frames: int
    trimmed_s: float = 0.0


def speak(
    schedule: ChunkSchedule,
    settings: ScheduleSettings,
    rows: Sequence[float],
    codec: Codec,
    *,
    timers: bool = True,
    trimmed_s: float = 0.0,
) -> list[Sent]:
    """Run one utterance whose rows arrive at ``rows`` through ``schedule``, as a session does, and
    leave out the first ``trimmed_s`` of its samples.

    It has ``len(rows) - settings.delay_rows`` frames.
    """
    now, came, wake_at, emitted = 0.0, 0, inf, 0
    total = len(rows) - settings.delay_rows
    in_codec: Sent | None = None
    sent: list[Sent] = []
    while sum(item.frames for item in sent) < total:
        done_at = in_codec.at if in_codec else inf
        row_at = rows[came] if came < len(rows) else inf
        now = max(now, min(done_at, row_at, wake_at if timers else inf))
        assert now < inf, "the schedule waits for nothing"
        if in_codec and done_at <= now:
            sent.append(in_codec)
            schedule.on_sent(in_codec.frames, now, in_codec.trimmed_s)
            in_codec = None
        elif row_at <= now:
            came += 1
            schedule.on_frames(int(came > settings.delay_rows))
            if came == len(rows):
                schedule.on_finished()
        decision = schedule.decide(now)
        wake_at = decision.wake_at
        if decision.new_frames:
            new, lookahead = decision.new_frames, decision.lookahead
            window = new + lookahead + decision.incomplete
            schedule.on_emitted(new, lookahead)
            emitted += new
            cut_s = min(trimmed_s, new * settings.frame_s)
            trimmed_s -= cut_s
            in_codec = Sent(codec(window, now), new, cut_s)
    return sent


def speak_fixed(
    rows: Sequence[float], ends: Iterator[int], lookahead: int, codec: Codec
) -> list[Sent]:
    """Run one utterance with chunks that end at the frames ``ends``."""
    total = len(rows) - SETTINGS.delay_rows
    sent: list[Sent] = []
    start, free = 0, 0.0
    while start < total:
        end = min(total, next(ends))
        last_row = min(end + lookahead, total) + SETTINGS.delay_rows
        window = min(total, end + lookahead) - start
        free = codec(window, max(free, rows[last_row - 1]))
        sent.append(Sent(free, end - start))
        start = end
    return sent


def every_75_rows() -> Iterator[int]:
    """Yield 20 frames, and then the number of frames complete at rows 75, 150, ..."""
    return chain([20], (rows - SETTINGS.delay_rows for rows in count(75, 75)))


def gaps(sent: Sequence[Sent], frame_s: float = FRAME_S, *, dry_at: float = -inf) -> list[float]:
    """Return the silences, in seconds, of a client that plays its audio as soon as it can."""
    found: list[float] = []
    for item in sent:
        if dry_at > -inf and item.at > dry_at + 1e-7:
            found.append(item.at - dry_at)
        dry_at = max(dry_at, item.at) + item.frames * frame_s - item.trimmed_s
    return found


def row_times(rho: float, disturbance: str, rng: np.random.Generator) -> list[float]:
    """Draw the arrival times of the rows of a random utterance of 1 to 12 seconds."""
    total = int(rng.integers(25, 301)) + SETTINGS.delay_rows
    steps = np.full(total, rho * FRAME_S) * np.exp(rng.normal(0, 0.3, total) - 0.045)
    if disturbance == "load doubles":
        steps[total // 2 :] *= 2
    times: list[float] = np.cumsum(steps).tolist()
    if disturbance == "stalls":  # 300 ms every 5 s
        stall_at, late = rng.uniform(0, 5), 0.0
        for i, at in enumerate(times):
            if at + late >= stall_at:
                late, stall_at = late + 0.3, stall_at + 5
            times[i] = at + late
    return times


def random_codec(kind: str, rng: np.random.Generator, learn: PaceEstimator | None = None) -> Codec:
    """Return a codec whose windows wait for a random time and take 90 to 100 % of their cost."""
    fixed_s, frame_s, queue_s = CODECS[kind]

    def decode(frames: int, at: float) -> float:
        wait, cost = rng.random() * queue_s, (fixed_s + frame_s * frames) * rng.uniform(0.9, 1)
        if learn is not None:
            learn.decode.observe(frames, wait, cost)
        return at + wait + cost

    return decode


def learned(rho: float, disturbance: str, kind: str, rng: np.random.Generator) -> PaceBounds:
    """Return the bounds after 100 streams, from a prior that fits none of them."""
    prior = PaceBounds(0.8 * FRAME_S, 0.2, 0.05, 0.03, 0.004, 0.5)
    estimator = PaceEstimator(FRAME_S, prior)
    for _ in range(100):
        pace = estimator.open()
        for at in row_times(rho, disturbance, rng):
            pace.observe(1, at)
        pace.close()
        decode = random_codec(kind, rng, estimator)
        for frames in (5, 20, 40):
            decode(frames, 0.0)
    return estimator.bounds(SETTINGS)

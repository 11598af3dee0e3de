"""A simulated service: its own estimates, schedules and admission, on a machine of known capacity.

Talker, codec and listeners are simulated; a gap is any silence at a listener.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import NamedTuple

from codec.pending import BEGIN_S
from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import ChunkDecision, ChunkSchedule, PaceBounds, ScheduleSettings
from streaming.latency import PaceEstimator, StreamPace

FRAME_S = 0.04
#: Lead at which a stream is held back.
_LEAD_S = 4.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A talker step takes ``fixed_s + stream_s * n``, times a jitter, and ``start_s`` more for each
    stream that begins with it; a codec window takes ``window_s + frame_s * frames``. A stream plays
    a frame in ``FRAME_S / speed``.
    """

    fixed_s: float
    stream_s: float
    window_s: float = 0.002
    frame_s: float = 0.0001
    jitter: float = 0.15
    start_s: float = 0.0

    def carries(self, speed: float = 1.0) -> float:
        """The true capacity of the talker."""
        return (FRAME_S / speed - self.fixed_s) / self.stream_s

    def carries_codec(self, chunk_frames: int = 50) -> float:
        """The true capacity of the codec for windows with ``chunk_frames`` new frames."""
        window_s = self.window_s + self.frame_s * (10 + chunk_frames + 4)
        return chunk_frames * FRAME_S / window_s

    def step_s(self, streams: int, begin: int, rng: Random) -> float:
        """Draw the duration of a step of ``streams`` streams, ``begin`` of which begin."""
        mean = self.fixed_s + self.stream_s * streams + self.start_s * begin
        return mean * rng.lognormvariate(-(self.jitter**2) / 2, self.jitter)


@dataclass
class Stream:
    """One simulated utterance. Silence counts from ``dry_at``, as at a listener."""

    began: float
    frames: int
    settings: ScheduleSettings
    pace: StreamPace
    schedule: ChunkSchedule
    speed: float = 1.0
    rows: int = 0
    emitted: int = 0
    gaps: list[float] = field(default_factory=list)
    first_at: float | None = None
    held: bool = False

    @property
    def made(self) -> bool:
        """Whether the talker has made all rows."""
        return self.rows >= self.frames + self.settings.delay_rows

    @property
    def is_done(self) -> bool:
        """Whether all frames were decoded."""
        return self.emitted == self.frames


class Job(NamedTuple):
    """A window in the codec's queue, where the smallest ``turn`` is first."""

    turn: float
    number: int
    stream: Stream
    new: int
    lookahead: int
    asked_at: float
    deadline: float


class Service:
    """Simulates a talker, one codec and the streams' own schedules; admits by a ``Capacity``."""

    def __init__(
        self,
        machine: Machine,
        seed: int,
        ceiling: int = 64,
        pace_estimator: type[PaceEstimator] = PaceEstimator,
        capacity: type[Capacity] = Capacity,
    ) -> None:
        self.machine, self.rng = machine, Random(seed)
        #: Factor by which a window takes longer than the estimates see.
        self.neighbour = 1.0
        prior = PaceBounds(0.02, 0.1, 0.005, machine.window_s, machine.frame_s)
        self.capacity = capacity(CapacitySettings(FRAME_S, ceiling))
        self.pace = pace_estimator(FRAME_S, prior, self.capacity)
        self.now = 0.0
        self._wakes: list[tuple[float, int, Stream, Job | None]] = []
        self._jobs: list[Job] = []
        self._decoding: Job | None = None
        self._numbers = count()
        self._known: dict[float, tuple[PaceBounds, float, int]] = {}
        self.open: list[Stream] = []
        self.closed: list[Stream] = []
        self.refused: list[float] = []
        #: (time, open streams, slots) at each step.
        self.trace: list[tuple[float, int, int]] = []
        for together in (1, 4):
            for _ in range(together):
                self.begin(40)
            while self.open:
                self.step()
        self.capacity.settle()
        self.closed.clear()
        self.trace.clear()

    def begin(self, frames: int, speed: float = 1.0) -> None:
        """Begin an utterance of ``frames`` frames."""
        settings = ScheduleSettings(
            FRAME_S / speed, delay_rows=7, left_context_frames=10, incomplete_frames=2
        )
        schedule = ChunkSchedule(settings, self._bounds(settings), expected_frames=frames)
        stream = Stream(self.now, frames, settings, self.pace.open(), schedule, speed)
        self.open.append(stream)

    def offer(self, frames: int, speed: float = 1.0) -> bool:
        """Begin an utterance if there is a slot for it. Returns whether there was."""
        speeds = [stream.speed for stream in self.open] + [speed]
        mean = sum(speeds) / len(speeds)
        if self.open and len(speeds) > self.capacity.slots(self.now, max(speeds), mean):
            self.refused.append(self.now)
            return False
        self.begin(frames, speed)
        return True

    def step(self) -> None:
        """Simulate one step of the talker, and the codec and timers during it."""
        running = [s for s in self.open if not s.made and not s.held]
        begin = sum(not stream.rows for stream in running)
        step_s = self.machine.step_s(len(running), begin, self.rng) if running else 0.01
        until = self.now + step_s
        while self._wakes and self._wakes[0][0] <= until:
            self.now, _, stream, job = heappop(self._wakes)
            if job is not None:
                self._decoded(job)
            if not stream.is_done:
                self._go_on(stream)
        self.now = until
        for stream in running:
            stream.rows += 1
            if not stream.held:  # else the row was in progress when the talker was told to stop
                stream.pace.observe(1, self.now)
            if stream.rows > stream.settings.delay_rows:
                stream.schedule.on_frames(1)
            if stream.made:
                stream.schedule.on_finished()
                stream.pace.close()
            self._go_on(stream)
        self.closed += [stream for stream in self.open if stream.is_done]
        self.open = [stream for stream in self.open if not stream.is_done]
        self.trace.append((self.now, len(self.open), self.capacity.slots(self.now)))

    def _wake(self, stream: Stream, at: float, job: Job | None = None) -> None:
        heappush(self._wakes, (at, next(self._numbers), stream, job))

    def _bounds(self, settings: ScheduleSettings) -> PaceBounds:
        """Return the bounds, recomputed at least five times a second, as in the service."""
        live = self.pace.live
        bounds, at, beside = self._known.get(settings.frame_s, (None, -inf, 0))
        if bounds is None or self.now - at > 0.2 or beside != live:
            windows = len(self._jobs) + (self._decoding is not None)
            bounds = self.pace.bounds(settings, windows)
            self._known[settings.frame_s] = bounds, self.now, live
        return bounds

    def _go_on(self, stream: Stream) -> None:
        schedule = stream.schedule
        lead_s = schedule.dry_at - self.now
        held = lead_s >= _LEAD_S
        if held and not stream.held and not stream.made:
            stream.pace.pause()
            self._wake(stream, self.now + lead_s - _LEAD_S + 0.001)
        stream.held = held
        if not stream.emitted:
            schedule.update_bounds(self._bounds(stream.settings))
        decision = schedule.decide(self.now)
        if decision.new_frames:
            self._hand_over(stream, decision)
        elif decision.wake_at < inf:
            self._wake(stream, decision.wake_at)

    def _hand_over(self, stream: Stream, decision: ChunkDecision) -> None:
        """Queue a window for the codec, which takes the one with the earliest playback deadline
        first. Streams without audio so far can wait a little.
        """
        deadline = max(stream.schedule.dry_at, self.now)
        turn = deadline if stream.emitted else self.now + BEGIN_S
        new, lookahead = decision.new_frames, decision.lookahead
        seen = lookahead + decision.incomplete
        job = Job(turn, next(self._numbers), stream, new, seen, self.now, deadline)
        heappush(self._jobs, job)
        stream.schedule.on_emitted(new, lookahead)
        self._decode()

    def _decode(self) -> None:
        if self._decoding is not None or not self._jobs:
            return
        job = self._decoding = heappop(self._jobs)
        frames = min(10, job.stream.emitted) + job.new + job.lookahead
        cost_s = self.machine.window_s + self.machine.frame_s * frames
        slack_s = job.deadline - job.asked_at
        self.pace.decode.observe(frames, self.now - job.asked_at, cost_s, slack_s)
        self.capacity.codec.observe(job.new, cost_s, self.now)
        self._wake(job.stream, self.now + cost_s * self.neighbour, job)

    def _decoded(self, job: Job) -> None:
        stream, schedule = job.stream, job.stream.schedule
        gap_s = 0.0
        if stream.first_at is None:
            stream.first_at = self.now
        elif self.now > schedule.dry_at + 1e-6:
            gap_s = self.now - schedule.dry_at
            stream.gaps.append(gap_s)
        audio_s = job.new * stream.settings.frame_s
        self.capacity.underruns.observe(id(stream), audio_s, gap_s, len(self.open), self.now)
        schedule.update_bounds(self._bounds(stream.settings))
        schedule.on_sent(job.new, self.now)
        stream.emitted += job.new
        self._decoding = None
        self._decode()

    def run(self, until: float, arrivals_per_s: float, speeds: tuple[float, ...] = (1.0,)) -> None:
        """Let utterances of 2 to 10 seconds arrive at random, independently of the service."""
        next_at = self.now
        while self.now < until:
            while next_at <= self.now:
                self.offer(self.rng.randrange(50, 250), self.rng.choice(speeds))
                next_at += self.rng.expovariate(arrivals_per_s)
            self.step()

    def mean_open(self, since: float) -> float:
        """Mean number of open streams, weighted by time."""
        total = sum(
            n * (after - at)
            for (at, n, _), (after, _, _) in zip(self.trace, self.trace[1:], strict=False)
            if at >= since
        )
        return total / (self.trace[-1][0] - since)

    def slots(self, since: float) -> set[int]:
        """All values of ``capacity.slots`` since then."""
        return {slots for at, _, slots in self.trace if at >= since}

    def gap_free(self, since: float, until: float = inf) -> float:
        """Share of gap-free streams among those that began in this time."""
        heard = [s for s in self.closed if since <= s.began < until]
        assert len(heard) >= 10
        return sum(not stream.gaps for stream in heard) / len(heard)

"""A simulated service: its own estimates, schedules and admission, on a machine of known capacity.

Talker, codec and listeners are simulated; a gap is any silence at a listener.
"""

from __future__ import annotations

from bisect import bisect_right
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
#: Frames of left context, which cost as much as new ones here.
_CONTEXT = 10


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


#: Shortest and longest time for which another process takes the processor.
_BURST_S = 0.005, 0.1


class Stolen:
    """Another process, which takes ``share`` of the processor's time in bursts of 5 to 100 ms."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._rng = Random(seed)
        #: Of the bursts; the first is none.
        self._starts, self._ends = [0.0], [0.0]

    def wall_s(self, at: float, work_s: float) -> float:
        """Return how long ``work_s`` of work takes from ``at`` on."""
        if not self._share:
            return work_s
        end = at + work_s
        index = bisect_right(self._ends, at)
        while True:
            while self._ends[-1] <= end:
                self._extend()
            if index == len(self._ends) or self._starts[index] >= end:
                return end - at
            end += self._ends[index] - max(self._starts[index], at)
            index += 1

    def _extend(self) -> None:
        shortest, longest = _BURST_S
        burst_s = shortest * (longest / shortest) ** self._rng.random()
        free_s = burst_s * (1 - self._share) / self._share
        self._starts.append(self._ends[-1] + self._rng.expovariate(1 / free_s))
        self._ends.append(self._starts[-1] + burst_s)


@dataclass
class Stream:
    """One simulated utterance. Silence counts from ``dry_at``, as at a listener."""

    #: When it began, in simulated seconds.
    began: float
    #: Number of frames of the whole utterance.
    frames: int
    settings: ScheduleSettings
    #: Estimate of its rows' pace.
    pace: StreamPace
    schedule: ChunkSchedule
    #: Speed of the speech; a listener plays a frame in ``FRAME_S / speed``.
    speed: float = 1.0
    #: Rows generated so far.
    rows: int = 0
    #: Frames decoded so far.
    emitted: int = 0
    #: Seconds of each underrun.
    gaps: list[float] = field(default_factory=list)
    #: When its first chunk arrived.
    first_at: float | None = None
    #: Whether the talker has paused it.
    held: bool = False

    @property
    def is_generated(self) -> bool:
        """Whether the talker has generated all rows."""
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
    requested_at: float
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
        stolen: float = 0.0,
    ) -> None:
        self.machine = machine
        self.rng = Random(seed)
        #: What talker and codec lose at the same time.
        self.stolen = Stolen(stolen, seed)
        #: Factor by which a window takes longer than the estimates see.
        self.neighbour = 1.0
        whole_s = machine.window_s + machine.frame_s * _CONTEXT
        prior = PaceBounds(0.02, 0.1, 0.005, whole_s, machine.frame_s)
        self.capacity = capacity(CapacitySettings(FRAME_S, ceiling))
        self.pace = pace_estimator(FRAME_S, prior, self.capacity)
        #: Simulated seconds.
        self.now = 0.0
        #: Heap of timers: when, a number that breaks ties, the stream, and a finished job.
        self._wakes: list[tuple[float, int, Stream, Job | None]] = []
        #: Heap of windows that wait for the codec.
        self._jobs: list[Job] = []
        #: The window that is being decoded.
        self._decoding: Job | None = None
        self._numbers = count()
        #: By the duration of a frame: bounds of the pace, the time of their computation, and the
        #: number of streams at that time.
        self._known: dict[float, tuple[PaceBounds, float, int]] = {}
        #: Streams that speak.
        self.open: list[Stream] = []
        #: Streams that have ended.
        self.closed: list[Stream] = []
        #: When streams were refused.
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
            FRAME_S / speed, delay_rows=7, left_context_frames=_CONTEXT, incomplete_frames=2
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
        running = [s for s in self.open if not s.is_generated and not s.held]
        begin = sum(not stream.rows for stream in running)
        step_s = self.machine.step_s(len(running), begin, self.rng) if running else 0.01
        until = self.now + self.stolen.wall_s(self.now, step_s)
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
            if stream.is_generated:
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
            bounds = self.pace.bounds(settings, windows, self.now)
            self._known[settings.frame_s] = bounds, self.now, live
        return bounds

    def _go_on(self, stream: Stream) -> None:
        schedule = stream.schedule
        lead_s = schedule.dry_at - self.now
        held = lead_s >= _LEAD_S
        if held and not stream.held and not stream.is_generated:
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
        frames = job.new + job.lookahead
        whole = min(_CONTEXT, job.stream.emitted) + frames
        cost_s = self.machine.window_s + self.machine.frame_s * whole
        wall_s = self.stolen.wall_s(self.now, cost_s)
        slack_s = job.deadline - job.requested_at
        waited_s = self.now - job.requested_at
        now = self.now + wall_s
        self.pace.decode.observe(frames, waited_s, wall_s, slack_s, busy_s=cost_s, now=now)
        self.capacity.codec.observe(job.new, wall_s, self.now)
        self._wake(job.stream, self.now + wall_s * self.neighbour, job)

    def _decoded(self, job: Job) -> None:
        stream = job.stream
        schedule = job.stream.schedule
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
        streams = [s for s in self.closed if since <= s.began < until]
        assert len(streams) >= 10
        return sum(not stream.gaps for stream in streams) / len(streams)

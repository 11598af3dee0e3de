"""The estimate against talkers and codecs whose true capacity it is never told."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from streaming.bounds import PaceBounds, ScheduleSettings
from streaming.capacity import Capacity, CapacitySettings, CodecLoad, TalkerLoad
from streaming.pace import PaceEstimator, StreamPace
from streaming.schedule import ChunkSchedule

FRAME_S = 0.04
#: A stream so far ahead of its listener is held back.
_LEAD_S = 4.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A talker step takes ``fixed_s + stream_s * n``, times a jitter; a window in the codec
    ``window_s + frame_s * frames``. One stream is heard at the pace of ``FRAME_S / speed``.
    """

    fixed_s: float
    stream_s: float
    window_s: float = 0.002
    frame_s: float = 0.0001
    jitter: float = 0.15

    def carries(self, speed: float = 1.0) -> float:
        """The true capacity of the talker."""
        return (FRAME_S / speed - self.fixed_s) / self.stream_s

    def step_s(self, streams: int, rng: Random) -> float:
        mean = self.fixed_s + self.stream_s * streams
        return mean * rng.lognormvariate(-(self.jitter**2) / 2, self.jitter)


@dataclass
class Stream:
    """One utterance in the simulation; silence counts from ``dry_at``, as at a listener."""

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
        return self.rows >= self.frames + self.settings.delay_rows

    @property
    def is_done(self) -> bool:
        return self.emitted == self.frames


class Job(NamedTuple):
    """A window in the codec's queue, the most urgent first."""

    deadline: float
    number: int
    stream: Stream
    new: int
    lookahead: int
    asked_at: float


class Service:
    """Steps a talker, one codec and the streams' own schedules; admits by a ``Capacity``."""

    def __init__(self, machine: Machine, seed: int, ceiling: int = 64) -> None:
        self.machine, self.rng = machine, Random(seed)
        prior = PaceBounds(0.02, 0.1, 0.005, machine.window_s, machine.frame_s)
        self.capacity = Capacity(CapacitySettings(FRAME_S, ceiling))
        self.pace = PaceEstimator(FRAME_S, prior, self.capacity)
        self.now = 0.0
        self._wakes: list[tuple[float, int, Stream, Job | None]] = []
        self._jobs: list[Job] = []
        self._decoding: Job | None = None
        self._numbers = count()
        self._known: dict[float, tuple[PaceBounds, float]] = {}
        self.open: list[Stream] = []
        self.closed: list[Stream] = []
        self.refused: list[float] = []
        #: (time, open streams, places) at each step.
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
        settings = ScheduleSettings(FRAME_S / speed, delay_rows=7, left_context_frames=10)
        schedule = ChunkSchedule(settings, self._bounds(settings), expected_frames=frames)
        stream = Stream(self.now, frames, settings, self.pace.open(), schedule, speed)
        self.open.append(stream)

    def offer(self, frames: int, speed: float = 1.0) -> bool:
        speeds = [stream.speed for stream in self.open] + [speed]
        mean = sum(speeds) / len(speeds)
        if self.open and len(speeds) > self.capacity.places(self.now, max(speeds), mean):
            self.refused.append(self.now)
            return False
        self.begin(frames, speed)
        return True

    def step(self) -> None:
        """One step of the talker, and what the codec and the timers do meanwhile."""
        running = [s for s in self.open if not s.made and not s.held]
        until = self.now + (self.machine.step_s(len(running), self.rng) if running else 0.01)
        while self._wakes and self._wakes[0][0] <= until:
            self.now, _, stream, job = heappop(self._wakes)
            if job is not None:
                self._decoded(job)
            if not stream.is_done:
                self._go_on(stream)
        self.now = until
        for stream in running:
            stream.rows += 1
            stream.pace.observe(1, self.now)
            if stream.rows > stream.settings.delay_rows:
                stream.schedule.on_frames(1)
            if stream.made:
                stream.schedule.on_finished()
                stream.pace.close()
            self._go_on(stream)
        self.closed += [stream for stream in self.open if stream.is_done]
        self.open = [stream for stream in self.open if not stream.is_done]
        self.trace.append((self.now, len(self.open), self.capacity.places(self.now)))

    def _wake(self, stream: Stream, at: float, job: Job | None = None) -> None:
        heappush(self._wakes, (at, next(self._numbers), stream, job))

    def _bounds(self, settings: ScheduleSettings) -> PaceBounds:
        """Worked out anew ten times a second, as in the service."""
        bounds, at = self._known.get(settings.frame_s, (None, -inf))
        if bounds is None or self.now - at > 0.1:
            bounds = self.pace.bounds(settings)
            self._known[settings.frame_s] = bounds, self.now
        return bounds

    def _go_on(self, stream: Stream) -> None:
        schedule = stream.schedule
        lead_s = schedule.dry_at - self.now
        held = lead_s >= _LEAD_S
        if held and not stream.held and not stream.made:
            stream.pace.pause()
            self._wake(stream, self.now + lead_s - _LEAD_S + 0.001)
        stream.held = held
        decision = schedule.decide(self.now)
        if decision.new_frames:
            self._hand_over(stream, decision.new_frames, decision.lookahead)
        elif decision.wake_at < inf:
            self._wake(stream, decision.wake_at)

    def _hand_over(self, stream: Stream, new: int, lookahead: int) -> None:
        """A window waits for the codec, which takes the one whose listener runs dry first."""
        dry_at = stream.schedule.dry_at
        job = Job(max(dry_at, self.now), next(self._numbers), stream, new, lookahead, self.now)
        heappush(self._jobs, job)
        stream.schedule.on_emitted(new, lookahead, self.now)
        self._decode()

    def _decode(self) -> None:
        if self._decoding is not None or not self._jobs:
            return
        job = self._decoding = heappop(self._jobs)
        frames = min(10, job.stream.emitted) + job.new + job.lookahead
        cost_s = self.machine.window_s + self.machine.frame_s * frames
        self.pace.observe_decode(frames, self.now - job.asked_at, cost_s)
        self.capacity.codec.observe(job.new, cost_s, self.now)
        self._wake(job.stream, self.now + cost_s, job)

    def _decoded(self, job: Job) -> None:
        stream, schedule = job.stream, job.stream.schedule
        if stream.first_at is None:
            stream.first_at = self.now
        elif self.now > schedule.dry_at + 1e-6:
            stream.gaps.append(self.now - schedule.dry_at)
        schedule.update_bounds(self._bounds(stream.settings))
        schedule.on_sent(job.new, self.now)
        stream.emitted += job.new
        self._decoding = None
        self._decode()

    def run(self, until: float, arrivals_per_s: float, speeds: tuple[float, ...] = (1.0,)) -> None:
        """Utterances of 2 to 10 seconds arrive at random, whatever becomes of them."""
        next_at = self.now
        while self.now < until:
            while next_at <= self.now:
                self.offer(self.rng.randrange(50, 250), self.rng.choice(speeds))
                next_at += self.rng.expovariate(arrivals_per_s)
            self.step()

    def mean_open(self, since: float) -> float:
        """Streams open on average, weighted by time."""
        total = sum(
            n * (after - at)
            for (at, n, _), (after, _, _) in zip(self.trace, self.trace[1:], strict=False)
            if at >= since
        )
        return total / (self.trace[-1][0] - since)

    def places(self, since: float) -> set[int]:
        return {places for at, _, places in self.trace if at >= since}

    def gap_free(self, since: float, until: float = inf) -> float:
        """The share of the streams that began then whose listener never ran dry."""
        heard = [s for s in self.closed if since <= s.began < until]
        assert len(heard) >= 10
        return sum(not stream.gaps for stream in heard) / len(heard)


PARALLEL = Machine(0.012, 0.0014)
SERIAL = Machine(0.004, 0.0018)


@pytest.mark.parametrize(
    ("machine", "seed"), [(PARALLEL, 1), (SERIAL, 2), (Machine(0.02, 0.001), 3)]
)
def test_what_is_admitted_is_gap_free_and_the_machine_is_used(machine: Machine, seed: int) -> None:
    service = Service(machine, seed)
    began, true = service.now, machine.carries()
    service.run(began + 30, 2.5 * true / 6)
    assert len(service.refused) > 50
    assert max(n for _, n, _ in service.trace) <= true
    assert service.mean_open(began + 5) >= 0.8 * true  # of the whole, the gaps of arrivals too
    places = service.places(began + 5)
    assert min(places) >= 0.8 * true
    assert max(places) - min(places) <= 2, "the number of places swings"
    assert service.gap_free(began + 3) == 1
    assert service.gap_free(began) >= 0.95


def test_half_loaded_nobody_is_refused() -> None:
    service = Service(PARALLEL, 4)
    service.run(service.now + 30, 0.5 * PARALLEL.carries() / 6)
    assert not service.refused
    assert all(not stream.gaps for stream in service.closed)


def test_a_slower_machine_takes_fewer_and_a_faster_one_more_again() -> None:
    service = Service(PARALLEL, 5)
    began = service.now
    service.run(began + 10, 12)
    slower = Machine(1.5 * PARALLEL.fixed_s, 1.5 * PARALLEL.stream_s)
    service.machine = slower
    changed = service.now
    service.run(changed + 25, 12)
    places = service.places(changed + 12)
    assert 0.75 * slower.carries() <= min(places) <= max(places) <= slower.carries()
    assert service.gap_free(changed + 12, changed + 25) >= 0.95
    service.machine = PARALLEL
    again = service.now
    service.run(again + 30, 12)
    places = service.places(again + 20)
    assert 0.8 * PARALLEL.carries() <= min(places) <= max(places) <= PARALLEL.carries()


def test_streams_that_are_heard_faster_need_more_of_the_talker() -> None:
    service = Service(PARALLEL, 6)
    began = service.now
    service.run(began + 25, 10, speeds=(1.0, 1.5))
    fast = [stream for stream in service.closed if stream.speed > 1 and stream.began > began + 3]
    assert len(fast) > 10
    assert all(not stream.gaps for stream in fast)
    most = max(n for at, n, _ in service.trace if at > began + 3)
    assert 0.6 * PARALLEL.carries(1.5) <= most


def test_a_slow_codec_decides_too() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    capacity.talker.observe(1000, 2.0, 1, 1.0)
    assert capacity.streams(1.0) > 8
    for second in range(20):
        capacity.codec.observe(25, 25 * 0.008, 1.0 + second)  # a fifth of the time, per stream
    assert capacity.streams(21.0) == pytest.approx(0.8 * 5)
    assert capacity.streams(21.0, fastest=2.0, mean=2.0) == pytest.approx(0.8 * 5 / 2)


def feed(load: TalkerLoad, streams: int, row_s: float, since: float, until: float) -> None:
    at = since
    while at < until:
        at += row_s
        for _ in range(streams):
            load.observe(1, row_s, streams, at)


def test_before_anything_is_known_the_ceiling_holds() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 16))
    assert capacity.streams(0.0) == 16
    assert capacity.places(0.0) == 16
    assert capacity.full_row_s(0.0) == 0


def test_one_stream_says_nothing_of_many() -> None:
    load = TalkerLoad()
    feed(load, 1, 0.01, 0, 5)
    assert load.streams(FRAME_S, 5) == pytest.approx(4, rel=0.01)


def test_the_line_is_found_and_not_believed_far_beyond_what_ran() -> None:
    load = TalkerLoad()
    for lap in range(6):
        streams = (1, 4)[lap % 2]
        feed(load, streams, 0.010 + 0.0001 * streams, 2 * lap, 2 * lap + 2)
    assert load.row_s(4, 12) == pytest.approx(0.0104, rel=0.02)
    assert load.row_s(8, 12) == pytest.approx(0.0108, rel=0.05)
    assert load.streams(FRAME_S, 12) == pytest.approx(16, rel=0.05)  # by the line, 299
    feed(load, 16, 0.0116, 12, 14)
    assert load.streams(FRAME_S, 14) == pytest.approx(64, rel=0.05)


def test_an_idle_service_remembers_its_warm_up() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    feed(capacity.talker, 1, 0.004, 0, 3)
    capacity.settle()
    warm = capacity.streams(3)
    feed(capacity.talker, 1, 0.04, 3, 30)
    busy = capacity.streams(30)
    assert busy < 1.1
    assert capacity.places(30) == 1, "without one nothing would be learned"
    later = [capacity.streams(30 + minutes * 60) for minutes in (1, 3, 10)]
    assert busy < later[0] < later[1] < later[2]
    assert later[2] == pytest.approx(warm, rel=0.02)


def test_a_pause_is_no_slow_row() -> None:
    load = TalkerLoad()
    feed(load, 4, 0.01, 0, 5)
    before = load.row_s(4, 5)
    feed(load, 4, 0.01, 65, 66)
    assert load.row_s(4, 66) == pytest.approx(before, rel=0.05)


def test_the_number_of_places_does_not_flicker() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    capacity.settle()
    rng, seen = Random(1), []
    for second in range(200):
        row_s = FRAME_S * 0.92 / 16 * 1.0 * rng.uniform(0.995, 1.005)
        feed(capacity.talker, 1, row_s, second, second + 1)
        seen.append(capacity.places(second + 1))
    changes = sum(a != b for a, b in pairwise(seen[20:]))
    assert changes <= 4


def test_codec_cost_is_that_of_the_last_seconds() -> None:
    load = CodecLoad()
    assert load.frame_s == 0
    for second in range(100):
        load.observe(10, 0.01 if second < 50 else 0.04, float(second))
    assert load.frame_s == pytest.approx(0.004, rel=0.05)


@pytest.mark.parametrize("wrong", [{"ceiling": 0}, {"frame_s": 0.0}, {"target": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"positive|shares"):
        CapacitySettings(**{"frame_s": FRAME_S, "ceiling": 4, **wrong})  # type: ignore[arg-type]

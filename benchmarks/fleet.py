"""A fleet of replicas under conversations that arrive at random, event by event.

A conversation has a socket, and a socket stays with its replica: turn after turn goes there,
until it ends or the replica drains. A turn opens a context; where the replica has no place left
it is refused. Nothing queues. All of it is drawn from one seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.hpa import Autoscaler, Rules


@dataclass(frozen=True, slots=True)
class Replica:
    """What a pod is like. Times in seconds.

    ``start_s``: from its creation until it is ready; meanwhile it shows ``shown_at_start`` places
    to Prometheus. Told to end it takes no new sockets; after ``pre_stop_s`` it refuses new
    contexts, and after ``drain_s`` more it ends whatever still speaks.
    """

    capacity: int = 16
    start_s: float = 60.0
    shown_at_start: int = 1
    pre_stop_s: float = 10.0
    drain_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Talks:
    """What conversations are like: turns drawn evenly from a range; the seconds that a turn's
    context is open and those until the next turn, both exponential with these means.
    ``retries``: how often a refused turn is tried on a new socket before the caller hangs up.
    """

    turns: tuple[int, int] = (2, 18)
    open_s: float = 4.7
    pause_s: float = 6.0
    retries: int = 0

    @property
    def contexts(self) -> float:
        """Contexts of a conversation, on average."""
        return sum(self.turns) / 2


@dataclass(slots=True)
class Pod:
    """A replica's present state."""

    born: float
    state: Literal["starting", "ready", "leaving", "draining", "gone"] = "starting"
    active: int = 0


@dataclass(slots=True)
class Talk:
    """A conversation under way."""

    turns: int
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment: all contexts and all places, pods that are ready, pods that cost."""

    at: float
    active: int
    places: int
    ready: int
    pods: int


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    offered: int = 0
    refused: int = 0
    cut: int = 0
    moved: int = 0
    lost_talks: int = 0
    replica_s: float = 0.0
    changes: int = 0
    samples: list[Sample] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)


class Fleet:
    """One run. ``arrivals``: when conversations begin, ascending. Where ``routing`` is ``least``
    a new socket goes to the replica with the fewest contexts, otherwise to any.
    """

    def __init__(
        self,
        replica: Replica,
        talks: Talks,
        rules: Rules,
        routing: Literal["random", "least"] = "random",
        seed: int = 1,
    ) -> None:
        self._replica, self._talks, self._rules = replica, talks, rules
        self._routing, self._random = routing, random.Random(seed)
        self._scaler = Autoscaler(rules)
        self._events: list[tuple[float, int, str, Talk | Pod | None]] = []
        self._order = itertools.count()
        self._pods = [Pod(0.0, "ready") for _ in range(rules.least)]
        self._wanted = rules.least
        self._metric: float | None = None
        self.outcome = Outcome()

    def run(self, arrivals: Sequence[float], until: float) -> Outcome:
        """Everything that happens before ``until``."""
        self._at(0.0, "sync", None)
        upcoming = iter(arrivals)
        arrival = next(upcoming, until)
        while True:
            if arrival <= self._events[0][0]:
                now = arrival
                if now >= until:
                    break
                self._begin(now, Talk(self._random.randint(*self._talks.turns)))
                arrival = next(upcoming, until)
                continue
            now, _, kind, subject = heapq.heappop(self._events)
            if now >= until:
                break
            self._happen(now, kind, subject)
        self.outcome.replica_s += sum(until - pod.born for pod in self._pods)
        return self.outcome

    def _at(self, time: float, kind: str, subject: Talk | Pod | None) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, subject))

    def _happen(self, now: float, kind: str, subject: Talk | Pod | None) -> None:
        match kind, subject:
            case "turn", Talk():
                self._begin(now, subject)
            case "end", Talk():
                self._end(now, subject)
            case "started", Pod():
                if subject.state == "starting":
                    subject.state = "ready"
            case "drain", Pod():
                subject.state = "draining"
                self._at(now + self._replica.drain_s, "gone", subject)
                self._leave_if_empty(now, subject)
            case "gone", Pod():
                if subject.state != "gone":
                    self.outcome.cut += subject.active
                    self._remove(now, subject)
            case _:
                self._sync(now)

    def _begin(self, now: float, talk: Talk) -> None:
        """A turn is due."""
        self.outcome.offered += 1
        if talk.pod is not None and talk.pod.state in ("draining", "gone"):
            talk.pod = None
            self.outcome.moved += 1
        for attempt in range(1 + self._talks.retries):
            if talk.pod is None or attempt:
                talk.pod = self._route()
            if talk.pod is not None and talk.pod.active < self._replica.capacity:
                talk.pod.active += 1
                self._at(now + self._random.expovariate(1 / self._talks.open_s), "end", talk)
                return
        self.outcome.refused += 1
        self.outcome.refused_at.append(now)
        self.outcome.lost_talks += 1

    def _end(self, now: float, talk: Talk) -> None:
        """A turn's context has been spoken, or was cut with its pod."""
        pod = talk.pod
        assert pod is not None
        if pod.state != "gone":
            pod.active -= 1
            self._leave_if_empty(now, pod)
        talk.turns -= 1
        if talk.turns:
            self._at(now + self._random.expovariate(1 / self._talks.pause_s), "turn", talk)

    def _route(self) -> Pod | None:
        """Where a new socket goes; None while nobody is ready."""
        ready = [pod for pod in self._pods if pod.state == "ready"]
        if not ready:
            return None
        if self._routing == "least":
            return min(ready, key=lambda pod: pod.active)
        return self._random.choice(ready)

    def _sync(self, now: float) -> None:
        """The autoscaler reads the metric as it was scraped at its last turn, and decides."""
        ready = sum(pod.state in ("ready", "leaving") for pod in self._pods)
        self._scale(now, self._scaler.decide(now, self._wanted, ready, self._metric))
        active = sum(pod.active for pod in self._pods)
        starting = sum(pod.state == "starting" for pod in self._pods)
        places = self._replica.capacity * (len(self._pods) - starting)
        shown = places + self._replica.shown_at_start * starting
        self._metric = active / shown if shown else None
        self.outcome.samples.append(Sample(now, active, places, ready, len(self._pods)))
        self._at(now + self._rules.sync_s, "sync", None)

    def _scale(self, now: float, wanted: int) -> None:
        self.outcome.changes += wanted != self._wanted
        for _ in range(self._wanted, wanted):
            self._pods.append(pod := Pod(now))
            self._at(now + self._replica.start_s, "started", pod)
        for _ in range(wanted, self._wanted):
            self._retire(now)
        self._wanted = wanted

    def _retire(self, now: float) -> None:
        """As a ReplicaSet chooses: what is not ready goes first, then the youngest."""
        living = [pod for pod in self._pods if pod.state in ("starting", "ready")]
        pod = max(living, key=lambda pod: (pod.state == "starting", pod.born))
        if pod.state == "starting":
            return self._remove(now, pod)
        pod.state = "leaving"
        self._at(now + self._replica.pre_stop_s, "drain", pod)

    def _leave_if_empty(self, now: float, pod: Pod) -> None:
        if pod.state == "draining" and not pod.active:
            self._remove(now, pod)

    def _remove(self, now: float, pod: Pod) -> None:
        pod.state = "gone"
        self._pods.remove(pod)
        self.outcome.replica_s += now - pod.born

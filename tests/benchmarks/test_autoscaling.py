"""The simulated fleet and autoscaler against what is known without simulating."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from benchmarks.autoscaling import DAY_S, HOURS, Day, arrivals, figures, run, shape
from benchmarks.fleet import Fleet, Outcome, Replica, Talks
from benchmarks.hpa import Autoscaler, Rules, raw_recommendation

ONE_TURN = Talks(turns=(1, 1), open_s=5.0)
#: Calls of a run: a standard error near 0.004 at worst. The draws are seeded, so what comes of
#: them is fixed.
CALLS = 30_000


def erlang_b(servers: int, load: float) -> float:
    """The share that finds every server busy (Erlang's first formula, by its recursion)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def steady(rate: float, seed: int, calls: int = CALLS) -> list[float]:
    chance = random.Random(seed)
    return list(itertools.accumulate(chance.expovariate(rate) for _ in range(calls)))


def held(replicas: int) -> Rules:
    return Rules(least=replicas, most=replicas)


def refusals(fleet: Fleet, load: float, seed: int) -> Outcome:
    """Calls of one turn: ``load`` erlangs."""
    begun = steady(load / ONE_TURN.open_s, seed)
    return fleet.run(begun, begun[-1])


@pytest.mark.parametrize(("places", "load"), [(1, 0.5), (4, 3.0), (16, 12.0), (16, 20.0)])
def test_one_replica_refuses_what_erlang_says(places: int, load: float) -> None:
    fleet = Fleet(Replica(capacity=places), ONE_TURN, held(1))
    outcome = refusals(fleet, load, 11)
    share = outcome.refused / outcome.offered
    assert share == pytest.approx(erlang_b(places, load), abs=0.015)
    carried = sum(s.active for s in outcome.samples) / len(outcome.samples)
    assert carried == pytest.approx(load * (1 - share), rel=0.05)


@pytest.mark.parametrize(
    ("routing", "expected"),
    [("least", erlang_b(32, 28.0)), ("random", erlang_b(8, 7.0))],
)
def test_routing_by_load_makes_one_pool_and_random_routing_does_not(
    routing: str, expected: float
) -> None:
    fleet = Fleet(Replica(capacity=8), ONE_TURN, held(4), routing, seed=3)  # type: ignore[arg-type]
    outcome = refusals(fleet, 28.0, 13)
    assert outcome.refused / outcome.offered == pytest.approx(expected, abs=0.015)


def test_a_second_try_finds_room_elsewhere_as_often_as_chance_has_it() -> None:
    """With n independent replicas: b for the first, 1/n + (1 - 1/n) b for the second, and second
    tries are load as well.
    """
    talks = dataclasses.replace(ONE_TURN, retries=1)
    outcome = refusals(Fleet(Replica(capacity=16), talks, held(10), seed=5), 120.0, 15)
    busy = 0.0
    for _ in range(50):
        busy = erlang_b(16, 12.0 * (1 + busy))
    expected = busy * (0.1 + 0.9 * busy)
    assert outcome.refused / outcome.offered == pytest.approx(expected, rel=0.2)
    assert expected < erlang_b(16, 12.0) / 3


def test_with_room_for_everybody_nobody_is_refused_and_littles_law_holds() -> None:
    talks = Talks(turns=(3, 5), open_s=4.0, pause_s=6.0)
    fleet = Fleet(Replica(capacity=10_000), talks, held(1), seed=7)
    begun = steady(2.0, 17, 12_000)
    outcome = fleet.run(begun, begun[-1])
    assert outcome.refused == 0
    settled = [s.active for s in outcome.samples if s.at > 500]
    assert sum(settled) / len(settled) == pytest.approx(2.0 * 4 * 4.0, rel=0.03)
    assert outcome.replica_s == begun[-1]


def test_the_same_seed_is_the_same_day_and_another_is_not() -> None:
    one, same, other = (
        figures(run(Replica(), Talks(), Rules(), Day(peak=10), "random", seed), Replica(), DAY_S)
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_arrivals_follow_the_curve_and_bursts_come_on_top() -> None:
    talks = Talks()
    calm = Day(peak=60, bursts=0)
    found = arrivals(calm, talks, DAY_S, 4)
    assert found == sorted(found)
    usual = calm.peak / (talks.open_s * talks.contexts)
    for hour in (3, 10, 20):
        want = usual * 3600 * (HOURS[hour] + HOURS[hour + 1]) / 2
        there = sum(hour * 3600 <= at < (hour + 1) * 3600 for at in found)
        assert there == pytest.approx(want, abs=4 * math.sqrt(want))
    assert shape(10 * 3600) == 1.0
    assert shape(DAY_S + 5400) == pytest.approx((HOURS[1] + HOURS[2]) / 2)
    stormy = Day(peak=60, bursts=24, burst_s=600, burst_factor=3.0)
    assert len(arrivals(stormy, talks, DAY_S, 4)) > 1.2 * len(found)


def test_a_pod_that_goes_serves_its_talks_out_and_they_move() -> None:
    """Load falls to nothing: pods leave one by one, nothing is cut, and no talk is lost."""
    rules = Rules(least=1, most=6, down_window_s=60, down_period_s=30)
    talks = Talks(turns=(20, 20), open_s=4.0, pause_s=1.0)
    fleet = Fleet(Replica(capacity=64), talks, rules, seed=9)
    early = steady(3.0, 19, 2_700)
    outcome = fleet.run(early, 3_000.0)
    assert max(s.pods for s in outcome.samples) > 1
    assert outcome.samples[-1].pods == 1
    assert outcome.moved > 0
    assert outcome.cut == 0
    assert outcome.lost_talks > 0, "the load should have outrun the first pod"
    assert outcome.refused == outcome.lost_talks
    # talks that were not lost had all their turns; the others had at most twenty
    whole = 20 * (len(early) - outcome.lost_talks)
    assert whole < outcome.offered <= whole + 20 * outcome.lost_talks


def test_what_still_speaks_when_the_drain_is_over_is_cut() -> None:
    short = Replica(capacity=8, start_s=10, drain_s=20)
    talks = Talks(turns=(1, 1), open_s=2_000.0)
    crowd = [float(n) for n in range(8)] + [60.0 + n for n in range(6)]
    quick = Rules(least=1, most=3, target=0.7, down_window_s=30, down_period_s=15)
    outcome = Fleet(short, talks, quick, "least", seed=2).run(crowd, 6_000.0)
    assert outcome.cut > 0


# --- the autoscaler ---


@pytest.mark.parametrize(
    ("replicas", "ready", "metric", "wanted"),
    [
        (4, 4, 0.70, 4),
        (4, 4, 0.76, 4),  # within a tenth of the target
        (4, 4, 0.64, 4),
        (4, 4, 0.80, 5),
        (4, 4, 1.00, 6),
        (4, 4, 0.35, 2),
        (6, 4, 1.00, 6),  # pods that are not ready do not count
        (4, 4, 0.00, 0),
    ],
)
def test_the_metric_asks_for_ready_pods_times_the_ratio(
    replicas: int, ready: int, metric: float, wanted: int
) -> None:
    assert raw_recommendation(Rules(target=0.7), replicas, ready, metric) == wanted


def test_scaling_up_is_bounded_by_the_defaults_policies() -> None:
    """100 % or four pods within 15 seconds, whichever is more."""
    scaler = Autoscaler(Rules(target=0.1, least=1, most=1000))
    now, replicas, seen = 0.0, 1, []
    for _ in range(5):
        replicas = scaler.decide(now, replicas, replicas, 1.0)
        seen.append(replicas)
        now += 15.0
    assert seen == [5, 10, 20, 40, 80]


def test_scaling_down_waits_for_its_window_and_goes_one_by_one() -> None:
    scaler = Autoscaler(Rules(least=2, most=8))
    now, replicas, seen = 0.0, 6, []
    replicas = scaler.decide(now, replicas, 6, 0.7)
    while replicas > 2:
        now += 15.0
        fewer = scaler.decide(now, replicas, replicas, 0.05)
        if fewer < replicas:
            seen.append((now, fewer))
        replicas = fewer
    times = [at for at, _ in seen]
    assert [n for _, n in seen] == [5, 4, 3, 2]
    assert times[0] == 615.0
    assert [later - at for at, later in itertools.pairwise(times)] == [180.0] * 3


def test_without_a_metric_the_number_stays() -> None:
    scaler = Autoscaler(Rules())
    assert scaler.decide(0.0, 5, 5, None) == 5


class SlowScaler:
    """The same rules read off the whole history each time, as the documentation words them."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.history, self.counts = rules, [], []

    def decide(self, now: float, replicas: int, ready: int, metric: float) -> int:
        r = self.rules
        wanted = replicas
        if not 1 - r.tolerance <= metric / r.target <= 1 + r.tolerance:
            wanted = math.ceil(ready * metric / r.target - 1e-6)
        self.history.append((now, min(max(wanted, r.least), r.most)))
        if not self.counts:
            self.counts.append((-math.inf, replicas))
        lowest = min(n for at, n in self.history if now - at <= r.up_window_s)
        highest = max(n for at, n in self.history if now - at <= r.down_window_s)
        chosen = replicas
        if lowest > replicas:
            before = self._count_at(now - r.up_period_s)
            room = max(before + r.up_pods, math.ceil(before * (1 + r.up_share)), replicas)
            chosen = min(lowest, room)
        elif highest < replicas:
            before = self._count_at(now - r.down_period_s)
            chosen = max(highest, min(before - r.down_pods, replicas))
        chosen = min(max(chosen, r.least), r.most)
        self.counts.append((now, chosen))
        return chosen

    def _count_at(self, time: float) -> int:
        return [n for at, n in self.counts if at <= time][-1]


@pytest.mark.parametrize("seed", range(20))
def test_any_history_decides_as_the_slow_reading_of_the_rules(seed: int) -> None:
    chance = random.Random(seed)
    rules = Rules(
        least=2,
        most=40,
        up_window_s=chance.choice([0.0, 60.0]),
        up_pods=chance.choice([1, 4]),
        up_share=chance.choice([0.1, 1.0]),
        up_period_s=chance.choice([15.0, 60.0]),
        down_window_s=chance.choice([0.0, 120.0, 300.0]),
        down_pods=chance.choice([1, 3]),
        down_period_s=chance.choice([15.0, 180.0]),
    )
    quick, slow = Autoscaler(rules), SlowScaler(rules)
    replicas, load, changes = 2, 1.0, 0
    for turn in range(400):
        load = min(30.0, max(0.2, load * chance.uniform(0.75, 1.35)))
        ready = max(1, replicas - chance.randrange(2))
        metric = min(1.0, load / replicas)
        chosen = quick.decide(15.0 * turn, replicas, ready, metric)
        assert chosen == slow.decide(15.0 * turn, replicas, ready, metric)
        changes += chosen != replicas
        replicas = chosen
    assert changes > 10

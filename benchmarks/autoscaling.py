"""A day of conversations on an autoscaled fleet: what each target costs, and whom it turns away.

    python -m benchmarks.autoscaling --json benchmarks/results/autoscaling.json \
        --plot benchmarks/results/autoscaling.png

A simulation (benchmarks.fleet) with Kubernetes' own rules (benchmarks.hpa). What was measured
and what is assumed of its inputs is in docs/scaling.md; each can be given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.fleet import Fleet, Outcome, Replica, Talks
from benchmarks.hpa import Rules
from benchmarks.report import markdown_table

DAY_S = 86_400.0
#: Load by the hour over the peak hour's: an office-hours curve with two humps (assumed).
HOURS = (
    0.08, 0.06, 0.05, 0.05, 0.06, 0.10, 0.20, 0.40, 0.70, 0.92, 1.00, 0.97,
    0.85, 0.88, 0.97, 1.00, 0.95, 0.82, 0.66, 0.52, 0.40, 0.28, 0.18, 0.12,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Day:
    """The load: contexts open at the peak, if nothing is refused, and what comes on top of it.
    Bursts begin at random, ``bursts`` a day; while one lasts the rate is ``burst_factor`` times
    the usual.
    """

    peak: float = 60.0
    bursts: float = 6.0
    burst_s: float = 180.0
    burst_factor: float = 1.8


def shape(at: float) -> float:
    """The share of the peak's load at this second of the day, linear between the hours."""
    hour, rest = divmod(at % DAY_S / 3600, 1)
    return HOURS[int(hour)] * (1 - rest) + HOURS[(int(hour) + 1) % 24] * rest


def arrivals(day: Day, talks: Talks, until: float, seed: int) -> list[float]:
    """When conversations begin: a Poisson process whose rate follows the day, by thinning."""
    chance = random.Random(seed)
    starts: list[float] = []
    at = chance.expovariate(day.bursts / DAY_S) if day.bursts else until
    while at < until:
        starts.append(at)
        at += day.burst_s + chance.expovariate(day.bursts / DAY_S)
    usual = day.peak / (talks.open_s * talks.contexts)
    most = usual * max(1.0, day.burst_factor)
    found: list[float] = []
    at = chance.expovariate(most)
    while at < until:
        in_burst = any(start <= at < start + day.burst_s for start in starts)
        rate = usual * shape(at) * (day.burst_factor if in_burst else 1.0)
        if chance.random() < rate / most:
            found.append(at)
        at += chance.expovariate(most)
    return found


def figures(outcome: Outcome, replica: Replica, until: float) -> dict[str, float]:
    """What a row of the table says. Shares are of contexts, ``used`` of places that were ready."""
    busy = sum(s.active for s in outcome.samples)
    places = sum(s.ready for s in outcome.samples) * replica.capacity
    hours = outcome.replica_s / 3600
    return {
        "contexts": outcome.offered,
        "refused": outcome.refused / max(1, outcome.offered),
        "worst_5_min": _worst(outcome.refused_at, 300.0),
        "cut": outcome.cut,
        "moved": outcome.moved,
        "used": busy / max(1, places),
        "most_pods": max(s.pods for s in outcome.samples),
        "changes": outcome.changes,
        "replica_hours": hours * DAY_S / until,
    }


def _worst(times: Sequence[float], width_s: float) -> int:
    """The most refusals within any window of that width."""
    first, most = 0, 0
    for last, at in enumerate(times):
        while times[first] <= at - width_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def run(
    replica: Replica,
    talks: Talks,
    rules: Rules,
    day: Day,
    routing: Literal["random", "least"],
    seed: int,
) -> Outcome:
    """One simulated day."""
    return Fleet(replica, talks, rules, routing, seed).run(
        arrivals(day, talks, DAY_S, seed + 1), DAY_S
    )


def fixed(rules: Rules, replicas: int) -> Rules:
    """The same with a number that never changes."""
    return dataclasses.replace(rules, least=replicas, most=replicas)


HEAD = {
    "contexts": "contexts",
    "refused": "refused",
    "worst_5_min": "refused in the worst 5 min",
    "cut": "cut off",
    "moved": "talks moved",
    "used": "places in use",
    "most_pods": "most pods",
    "changes": "changes",
    "replica_hours": "replica hours",
}
_SHARES = ("refused", "used")


def table(rows: dict[str, dict[str, float]]) -> str:
    """All runs as Markdown."""
    return markdown_table(
        ["run", *HEAD.values()],
        [[name, *(_cell(key, row[key]) for key in HEAD)] for name, row in rows.items()],
    )


def _cell(key: str, value: float) -> str:
    return f"{100 * value:.2f} %" if key in _SHARES else f"{value:.0f}"


def plot(outcome: Outcome, title: str, path: Path) -> None:
    """Open contexts, ready places and refusals over the day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    hours = [s.at / 3600 for s in outcome.samples]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 5), height_ratios=(3, 1), layout="constrained"
    )
    upper.plot(hours, [s.places for s in outcome.samples], color="C1", label="places of all pods")
    upper.plot(
        hours, [s.active for s in outcome.samples], color="C0", lw=0.6, label="open contexts"
    )
    upper.set(ylabel="contexts", title=title, ylim=(0, None))
    upper.legend(loc="upper left")
    lower.hist([at / 3600 for at in outcome.refused_at], bins=288, range=(0, 24), color="C3")
    lower.set(ylabel="refused\nin 5 min", xlabel="hour of the day", xlim=(0, 24))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--targets", default="0.5,0.6,0.7,0.8,0.9")
    parser.add_argument("--fixed", default="6,8", help="runs with so many replicas, never changed")
    parser.add_argument("--routing", choices=("random", "least"), default="random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="the day at --plot-target")
    parser.add_argument("--plot-target", type=float, default=0.7)
    for part in (Replica, Talks, Rules, Day):
        for field in dataclasses.fields(part):
            if isinstance(field.default, int | float):
                name = f"--{field.name.replace('_', '-')}"
                if field.name != "target":
                    parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--turns", type=int, nargs=2, default=Talks().turns)
    return parser.parse_args(argv)


def _part(part: type[Any], given: argparse.Namespace) -> Any:
    names = [f.name for f in dataclasses.fields(part) if f.name != "target"]
    values = {name: getattr(given, name) for name in names}
    return part(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    given = _options(argv)
    replica, talks, rules, day = (_part(p, given) for p in (Replica, Talks, Rules, Day))
    plans = {
        f"target {t}": dataclasses.replace(rules, target=float(t)) for t in given.targets.split(",")
    }
    plans |= {f"always {n}": fixed(rules, int(n)) for n in given.fixed.split(",") if n}
    rows = {}
    for name, plan in plans.items():
        outcome = run(replica, talks, plan, day, given.routing, given.seed)
        rows[name] = figures(outcome, replica, DAY_S)
        if given.plot and name == f"target {given.plot_target}":
            plot(outcome, f"{name}: a simulated day", given.plot)
    print(table(rows))
    if given.json:
        inputs = [dataclasses.asdict(p) for p in (replica, talks, rules, day)]
        names = ("replica", "talks", "rules", "day")
        made = {"inputs": dict(zip(names, inputs, strict=True)), "routing": given.routing}
        given.json.write_text(
            json.dumps({**made, "seed": given.seed, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

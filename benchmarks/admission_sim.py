"""Simulates a service that admits by its measured capacity, on machines of known capacity.

::

    python -m benchmarks.admission_sim

The estimates, the schedules and the admission are the service's own; talker, codec and listeners
are simulated (``benchmarks.simulated_service``). TTFA is counted from the talker's first step; a
gap is any silence at a listener. In the last columns another process takes part of the processor's
time in bursts of 5 to 100 ms, as on shared hosts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.simulated_service import Machine, Service, Stream
from loadtest.program import failing

#: The table's machines: (name, machine, maximum number of contexts).
MACHINES = (
    ("a GPU", Machine(0.004, 0.0002, start_s=0.004), 64),
    ("two cores, small voice", Machine(0.0045, 0.0004, 0.002, 0.0004, start_s=0.004), 16),
    ("20 streams at most", Machine(0.012, 0.0014, start_s=0.005), 64),
    ("codec-bound", Machine(0.0045, 0.0002, 0.004, 0.003, start_s=0.004), 64),
)


#: Share of the processor's time that another process takes.
STOLEN = 0.3


def carried(machine: Machine, ceiling: int) -> float:
    """Number of streams that the machine carries."""
    return min(ceiling, machine.carries(), machine.carries_codec())


def under_load(
    machine: Machine, ceiling: int, share: float, seed: int, stolen: float = 0.0
) -> Service:
    """Run a minute of random arrivals that would keep this share of its capacity busy."""
    service = Service(machine, seed, ceiling, stolen=stolen)
    service.run(service.now + 60, share * carried(machine, ceiling) / 6)
    return service


def bursts(machine: Machine, ceiling: int, seed: int) -> Service:
    """Run a minute at 30 % of its capacity, with an additional burst about every ten seconds of as
    many utterances as it carries.
    """
    service = Service(machine, seed, ceiling)
    many = int(carried(machine, ceiling))
    rng = service.rng
    began = service.now
    burst_at = began + 3
    next_at = began
    while service.now < began + 60:
        while next_at <= service.now:
            service.offer(rng.randrange(50, 250))
            next_at += rng.expovariate(0.3 * many / 6)
        if service.now >= burst_at:
            for _ in range(many):
                service.offer(rng.randrange(50, 250))
            burst_at += rng.uniform(8, 12)
        service.step()
    return service


def summary(streams: Sequence[Stream], refused: int) -> str:
    """Format TTFA p50/p95, the share of gap-free streams, and the share of refusals."""
    waited_ms = [1000 * (s.first_at - s.began) for s in streams if s.first_at is not None]
    p50, p95 = np.quantile(waited_ms, [0.5, 0.95])
    free = sum(not stream.gaps for stream in streams) / len(streams)
    turned_away = refused / (refused + len(streams))
    return f"{p50:.0f}/{p95:.0f} ms, {free:.1%}, {turned_away:.0%}"


def simulate(seed: int) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    shares = (0.05, 0.25, 0.5, 0.9, 3.0)
    beside = (0.05, 0.5)
    heads = [f"{x:.0%}" for x in shares] + ["bursts"]
    heads += [f"{x:.0%}, {STOLEN:.0%} stolen" for x in beside]
    yield "| machine | carries | " + " | ".join(heads) + " |"
    yield "|---|---|" + "---|" * len(heads)
    for name, machine, ceiling in MACHINES:
        runs = [under_load(machine, ceiling, share, seed) for share in shares]
        runs.append(bursts(machine, ceiling, seed))
        runs += [under_load(machine, ceiling, share, seed, STOLEN) for share in beside]
        cells = " | ".join(summary(run.closed, len(run.refused)) for run in runs)
        yield f"| {name} | {carried(machine, ceiling):.0f} | {cells} |"


@failing("benchmarks.admission_sim")
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.admission_sim", description="Simulate admission and first chunks."
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("TTFA p50/p95, share of gap-free streams, share refused, by the load offered:\n")
    for line in simulate(options.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()

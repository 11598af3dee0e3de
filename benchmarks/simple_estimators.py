"""Simple, well-known estimators compared with the service's own, in the simulation of admission.

::

    python -m benchmarks.simple_estimators --seeds 3

*Sliding window*: the pace is a quantile of the lateness of the last streams, whatever their load;
the codec's time is divided as in the service. *Gradient limit*: as in gradient concurrency limits,
the number of slots follows the ratio of the time allowed per row to the time taken, and grows by
its square root while that ratio is at least 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from math import floor, inf, sqrt

import numpy as np

from benchmarks.admission_sim import MACHINES, carried, summary
from benchmarks.report import bounded, failing
from benchmarks.simulated_service import Machine, Service
from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import PaceBounds, ScheduleSettings, start_frames
from streaming.latency import PaceEstimator

_WINDOW, _QUANTILE = 32, 0.95
_PERIOD_S, _SMOOTHING = 0.25, 0.2


class SlidingWindowPace(PaceEstimator):
    """Estimates the pace by a quantile of the last streams' lateness."""

    def bounds(self, settings: ScheduleSettings, windows: int = 0) -> PaceBounds:
        """See PaceEstimator."""
        cost = self._among_others(self.decode.bounds(), settings, windows)
        newest = [
            (self._closed - 1 - back) % len(self._lateness_s)
            for back in range(min(self._closed, _WINDOW))
        ]
        seen = [self._lateness_s[slot] for slot in newest]
        seen += [stream.lateness_s for stream in self._live.values() if stream.rows >= 16]
        if not seen:
            return replace(cost, row_s=self._prior.row_s, burst_s=self._prior.burst_s)
        bursts_s = np.quantile(seen, _QUANTILE, axis=0, method="higher")
        pairs = [
            replace(cost, row_s=float(rate_s), burst_s=float(burst_s))
            for rate_s, burst_s in zip(self.rates_s, bursts_s, strict=True)
        ]
        left = settings.horizon_frames
        return min(
            pairs, key=lambda pair: (start_frames(settings, pair, left_frames=left), pair.burst_s)
        )


class GradientCapacity(Capacity):
    """Sets the slots by a gradient limit on the time per row, and on the codec's time."""

    def __init__(self, settings: CapacitySettings) -> None:
        super().__init__(settings)
        self._limit = settings.ceiling / 4
        self._at = -inf

    def streams(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> float:
        """See Capacity."""
        mine = self.settings
        if now - self._at >= _PERIOD_S and self._at > -inf:
            self._at = now
            running = self.talker._quick.running
            row_s = self.talker._quick.row_s or mine.frame_s
            gradient = min(1.0, max(0.5, mine.target * mine.frame_s / fastest / row_s))
            if busy_s := self.codec.frame_s:
                used = max(1.0, running) * busy_s * mean / mine.frame_s
                gradient = min(gradient, max(0.5, mine.codec_target / used))
            aim = self._limit * gradient + (sqrt(self._limit) if gradient == 1 else 0)
            self._limit += _SMOOTHING * (aim - self._limit)
        elif self._at == -inf:
            self._at = now
        self._limit = min(float(mine.ceiling), max(1.0, self._limit))
        return self._limit

    def slots(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> int:
        """See Capacity."""
        return max(1, floor(self.streams(now, fastest, mean)))

    def soon_row_s(self, streams: int, now: float) -> float:
        """See Capacity; the current pace is also the prediction."""
        return min(self.settings.frame_s, self.talker._quick.row_s)


METHODS: dict[str, tuple[type[PaceEstimator], type[Capacity]]] = {
    "the service's own": (PaceEstimator, Capacity),
    "sliding window": (SlidingWindowPace, Capacity),
    "gradient limit": (PaceEstimator, GradientCapacity),
    "both": (SlidingWindowPace, GradientCapacity),
}


def under_load(
    method: tuple[type[PaceEstimator], type[Capacity]],
    machine: Machine,
    ceiling: int,
    share: float,
    seeds: int,
) -> str:
    """Run a minute of random arrivals per seed that would keep ``share`` of the capacity busy."""
    closed, refused = [], 0
    for seed in range(1, seeds + 1):
        service = Service(machine, seed, ceiling, *method)
        service.run(service.now + 60, share * carried(machine, ceiling) / 6)
        closed += service.closed
        refused += len(service.refused)
    return summary(closed, refused)


def simulate(seeds: int) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    shares = (0.05, 0.5, 0.9, 3.0)
    yield "| machine | method | " + " | ".join(f"{x:.0%}" for x in shares) + " |"
    yield "|---|---|" + "---|" * len(shares)
    for name, machine, ceiling in MACHINES:
        for title, method in METHODS.items():
            cells = " | ".join(under_load(method, machine, ceiling, x, seeds) for x in shares)
            yield f"| {name} | {title} | {cells} |"


@failing("benchmarks.simple_estimators")
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.simple_estimators", description="Compare estimators by simulation."
    )
    parser.add_argument("--seeds", type=bounded(int, 1), default=2)
    options = parser.parse_args()
    print("TTFA p50/p95, share of gap-free streams, share refused, by the load offered:\n")
    for line in simulate(options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Kubernetes' horizontal autoscaler as KEDA drives it with one external metric, as a pure function.

What is modelled is ``metricType: Value``, as in deploy/k8s/components/autoscale: the ratio of
metric to target times the *ready* pods, a tolerance about 1, a stabilisation window for each
direction, and policies that bound the change within a period. Sources: the Kubernetes
documentation, "Horizontal Pod Autoscaling" (algorithm details, scaling policies, stabilization
window), and KEDA's, "ScaledObject specification".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rules:
    """What a ScaledObject says; where ours says nothing, the API server's defaults.

    Up: at most ``up_share`` more or ``up_pods`` more within ``up_period_s``, whichever is more.
    Down: at most ``down_pods`` fewer within ``down_period_s``.
    """

    target: float = 0.7
    least: int = 2
    most: int = 8
    tolerance: float = 0.1
    sync_s: float = 15.0
    up_window_s: float = 0.0
    up_share: float = 1.0
    up_pods: int = 4
    up_period_s: float = 15.0
    down_window_s: float = 600.0
    down_pods: int = 1
    down_period_s: float = 180.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.target <= 0:
            raise ValueError("1 <= least <= most, and a target above 0")


@dataclass(slots=True)
class Autoscaler:
    """One HPA. ``decide`` is called every ``sync_s``, with times that grow."""

    rules: Rules
    _wanted: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now: float, replicas: int, ready: int, metric: float | None) -> int:
        """How many replicas there shall be.

        ``replicas``: as many as the Deployment asks for now; ``ready``: pods that are; ``metric``:
        None where there is no value, which leaves the number as it is.
        """
        if metric is None:
            return replicas
        wanted = self._bounded(raw_recommendation(self.rules, replicas, ready, metric))
        self._wanted.append((now, wanted))
        chosen = self._limited(now, replicas, self._steadied(now, replicas))
        if chosen != replicas:
            self._changes.append((now, chosen - replicas))
        self._forget(now)
        return chosen

    def _bounded(self, count: int) -> int:
        return max(self.rules.least, min(self.rules.most, count))

    def _steadied(self, now: float, replicas: int) -> int:
        """Up to the least of what was wanted in the window, down to the most of it."""
        rules = self.rules
        up = min(n for at, n in self._wanted if at >= now - rules.up_window_s)
        down = max(n for at, n in self._wanted if at >= now - rules.down_window_s)
        return min(max(replicas, up), down)

    def _limited(self, now: float, replicas: int, wanted: int) -> int:
        rules = self.rules
        if wanted > replicas:
            start = replicas - self._changed(now - rules.up_period_s)
            most = max(start + rules.up_pods, math.ceil(start * (1 + rules.up_share)))
            return self._bounded(min(wanted, max(most, replicas)))
        start = replicas - self._changed(now - rules.down_period_s)
        return self._bounded(max(wanted, min(start - rules.down_pods, replicas)))

    def _changed(self, since: float) -> int:
        return sum(change for at, change in self._changes if at > since)

    def _forget(self, now: float) -> None:
        rules = self.rules
        window_s = max(rules.up_window_s, rules.down_window_s)
        period_s = max(rules.up_period_s, rules.down_period_s)
        self._wanted = [(at, n) for at, n in self._wanted if at >= now - window_s]
        self._changes = [(at, n) for at, n in self._changes if at > now - period_s]


def raw_recommendation(rules: Rules, replicas: int, ready: int, metric: float) -> int:
    """What the metric alone asks for, before windows and policies."""
    ratio = metric / rules.target
    if abs(1 - ratio) <= rules.tolerance:
        return replicas
    # without the rounding a ratio of 3.0000000000000004 would cost a pod
    return math.ceil(round(ratio * ready, 6))

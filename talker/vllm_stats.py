"""Counts vLLM's preemptions and prefix-cache hits, when statistics are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Totals:
    """Since the start: preempted requests, and prompt positions found in the prefix cache."""

    preempted: int = 0
    cached: int = 0


def logger_factory(totals: Totals) -> Callable[..., Any]:
    """A stat logger for vLLM that adds to ``totals``."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Counter(StatLoggerBase):  # type: ignore[misc]  # untyped base
        """Adds up what each iteration reports."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(
            self, scheduler_stats: Any = None, iteration_stats: Any = None, **_: Any
        ) -> None:
            if iteration_stats is not None:
                totals.preempted += iteration_stats.num_preempted_reqs
            if scheduler_stats is not None:
                totals.cached += scheduler_stats.prefix_cache_stats.hits

        def log_engine_initialized(self) -> None:
            pass

    return Counter

"""Absence of underruns while the bounds hold, for which each part of the schedule is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given

from streaming import chunk_schedule as bounds_module
from streaming import chunk_schedule as schedule_module
from streaming.chunk_schedule import (
    ChunkDecision,
    ChunkSchedule,
    PaceBounds,
    ScheduleSettings,
    start_frames,
)
from tests.streaming.schedule_cases import FRAME_S, SEEDS, random_case


@given(SEEDS)
def test_schedule_does_not_underrun_within_bounds(seed: int) -> None:
    case = random_case(seed)
    played = case.run()
    assert sum(item.frames for item in played.sent) == case.frames
    assert played.gaps == []


def test_schedule_does_not_underrun_in_3000_cases() -> None:
    assert [seed for seed in range(3000) if random_case(seed).run().gaps] == []


def _mutant_start(change: Callable[[PaceBounds], PaceBounds], fewer: int = 0) -> Any:
    def mutant(settings: ScheduleSettings, bounds: PaceBounds, **more: Any) -> int:
        return max(1, start_frames(settings, change(bounds), **more) - fewer)

    return mutant


class _DeadlineWithout(ChunkSchedule):
    """A schedule with other settings and bounds after the first chunk."""

    settings: ClassVar[dict[str, Any]] = {}
    bounds: ClassVar[dict[str, float]] = {}

    def _keep_up(self, now: float) -> ChunkDecision:
        kept = self._settings, self._bounds
        self._settings = replace(self._settings, **self.settings)
        self._bounds = replace(self._bounds, **self.bounds)
        try:
            return super()._keep_up(now)
        finally:
            self._settings, self._bounds = kept


class _NoGuard(_DeadlineWithout):
    settings: ClassVar = {"guard_s": 0.0}


class _NoQueue(_DeadlineWithout):
    bounds: ClassVar = {"queue_s": 0.0}


class _NoDecode(_DeadlineWithout):
    bounds: ClassVar = {"decode_fixed_s": 0.0, "decode_frame_s": 0.0}


MUTANT_STARTS = {
    "one frame fewer": _mutant_start(lambda bounds: bounds, 1),
    "no burst": _mutant_start(lambda bounds: replace(bounds, burst_s=0.0)),
    "no decode": _mutant_start(
        lambda bounds: replace(bounds, decode_fixed_s=0.0, decode_frame_s=0.0)
    ),
    "nothing is trimmed": lambda settings, bounds, **more: start_frames(
        settings, bounds, **more | {"trimmed_s": 0.0}
    ),
    "no others that begin": _mutant_start(lambda bounds: replace(bounds, beginners_s=0.0)),
    "slow talker taken for a fast one": _mutant_start(
        lambda bounds: replace(bounds, row_s=min(bounds.row_s, FRAME_S))
    ),
}


def gaps_among(cases: int, **options: Any) -> int:
    return sum(len(random_case(seed).run(**options).gaps) for seed in range(cases))


@pytest.mark.parametrize("name", MUTANT_STARTS)
def test_schedule_underruns_with_wrong_first_chunk(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "start_frames", MUTANT_STARTS[name])
    assert gaps_among(1000) > 0


@pytest.mark.parametrize("mutant", [_NoGuard, _NoQueue, _NoDecode])
def test_schedule_underruns_with_wrong_deadline(mutant: type[ChunkSchedule]) -> None:
    assert gaps_among(500, schedule=mutant) > 0


def test_schedule_underruns_without_timers() -> None:
    assert gaps_among(500, timers=False) > 0


def test_schedule_underruns_with_unsustainable_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (schedule_module, bounds_module):
        monkeypatch.setattr(module, "sustainable_frames", lambda settings, bounds: 1)
    assert gaps_among(500) > 0

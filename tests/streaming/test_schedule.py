from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.schedule_sim import Sent, gaps, speak
from streaming import bounds as bounds_module
from streaming import schedule as schedule_module
from streaming.bounds import start_frames, sustainable_frames
from streaming.schedule import ChunkDecision, ChunkSchedule, PaceBounds, ScheduleSettings
from tests.streaming.schedule_cases import FRAME_S, random_case

SETTINGS = ScheduleSettings(frame_s=FRAME_S, delay_rows=7, left_context_frames=10)
BOUNDS = PaceBounds(
    row_s=0.014,
    burst_s=0.05,
    queue_s=0.01,
    decode_fixed_s=0.005,
    decode_frame_s=0.0005,
    decode_floor=0.9,
)
SEEDS = st.integers(0, 2**32 - 1)


# -- the promise


@given(SEEDS)
def test_no_underrun_if_the_pace_holds(seed: int) -> None:
    case = random_case(seed)
    played = case.run()
    assert sum(item.frames for item in played.sent) == case.frames
    assert played.gaps == []


def test_no_underrun_if_the_pace_holds_at_length() -> None:
    assert [seed for seed in range(3000) if random_case(seed).run().gaps] == []


def _mutant_start(change: Callable[[PaceBounds], PaceBounds], fewer: int = 0) -> Any:
    def mutant(settings: ScheduleSettings, bounds: PaceBounds, **more: Any) -> int:
        return max(1, start_frames(settings, change(bounds), **more) - fewer)

    return mutant


class _DeadlineWithout(ChunkSchedule):
    """Ignores something after the first chunk."""

    settings: ClassVar[dict[str, float]] = {}
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
    "slow talker taken for a fast one": _mutant_start(
        lambda bounds: replace(bounds, row_s=min(bounds.row_s, FRAME_S))
    ),
}


def gaps_among(cases: int, **options: Any) -> int:
    return sum(len(random_case(seed).run(**options).gaps) for seed in range(cases))


@pytest.mark.parametrize("name", MUTANT_STARTS)
def test_the_promise_fails_for_a_wrong_first_chunk(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "start_frames", MUTANT_STARTS[name])
    assert gaps_among(1000) > 0


@pytest.mark.parametrize("mutant", [_NoGuard, _NoQueue, _NoDecode])
def test_the_promise_fails_for_a_wrong_deadline(mutant: type[ChunkSchedule]) -> None:
    assert gaps_among(500, schedule=mutant) > 0


def test_the_promise_fails_without_timers() -> None:
    assert gaps_among(500, timers=False) > 0


def test_the_promise_fails_for_chunks_that_cannot_be_sustained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (schedule_module, bounds_module):
        monkeypatch.setattr(module, "sustainable_frames", lambda settings, bounds: 1)
    assert gaps_among(500) > 0


# -- starting while earlier audio still plays


@given(SEEDS)
def test_an_utterance_in_time_leaves_no_gap_before_it(seed: int) -> None:
    case = random_case(seed, slow=False)
    settings, bounds = case.settings, case.bounds
    rows, codec = case.talker()
    first = start_frames(settings, bounds, left_frames=case.frames)
    needed = min(first + settings.lookahead_frames + settings.delay_rows, len(rows))
    window = first + settings.lookahead_frames
    dry_at = rows[needed - 1] + bounds.queue_s + bounds.decode_s(window) + settings.guard_s + 1e-6
    sent = speak(ChunkSchedule(settings, bounds, dry_at=dry_at), settings, rows, codec)
    assert gaps(sent, FRAME_S, dry_at=dry_at) == []


def test_the_first_chunk_may_be_larger_while_audio_plays() -> None:
    rows = [0.014 * (i + 1) for i in range(150)]

    def first(dry_at: float) -> Sent:
        schedule = ChunkSchedule(SETTINGS, BOUNDS, dry_at=dry_at)
        return speak(schedule, SETTINGS, rows, lambda frames, at: at + 0.02)[0]

    assert first(-inf) == first(0.0)
    assert first(-inf).frames == start_frames(SETTINGS, BOUNDS, left_frames=0)
    assert first(10.0).frames > first(-inf).frames
    assert first(0.3).frames > first(-inf).frames
    assert first(0.3).at <= 0.3


def test_a_slow_talker_does_not_start_early_only_because_audio_plays() -> None:
    slow = replace(BOUNDS, row_s=1.2 * FRAME_S, burst_s=0.0)
    schedule = ChunkSchedule(SETTINGS, slow, dry_at=1.0, expected_frames=100)
    schedule.on_frames(8)
    assert schedule.decide(0.99).new_frames == 0
    held = start_frames(SETTINGS, slow, left_frames=100)
    schedule.on_frames(held + SETTINGS.first_lookahead_frames - 8)
    assert schedule.decide(1.5).new_frames == held


def test_too_little_audio_to_wait_for_does_not_shorten_the_first_chunk() -> None:
    bounds = replace(BOUNDS, burst_s=0.2)
    first = start_frames(SETTINGS, bounds, left_frames=0)
    m0 = sustainable_frames(SETTINGS, bounds)
    assert m0 + 4 < first + 2
    schedule = ChunkSchedule(SETTINGS, bounds, dry_at=0.005)  # nothing is decoded by then
    schedule.on_frames(m0 + 4)
    assert schedule.decide(0.0).new_frames == 0
    schedule.on_frames(first - m0 - 2)
    assert schedule.decide(0.0).new_frames == first


def test_audio_that_still_plays_counts_towards_the_start() -> None:
    for bounds in (replace(BOUNDS, burst_s=0.5), replace(BOUNDS, row_s=0.05)):

        def start(lead_s: float, bounds: PaceBounds = bounds) -> int:
            return start_frames(SETTINGS, bounds, left_frames=100, lead_s=lead_s)

        assert start(0.0) > start(0.2) > start(0.4) >= sustainable_frames(SETTINGS, bounds)


# -- lookahead


@given(SEEDS, st.integers(0, 10))
def test_a_full_lookahead_is_never_downgraded(seed: int, field: int) -> None:
    case = random_case(seed)
    settings = replace(case.settings, first_lookahead_frames=field, lookahead_frames=field)

    class Watched(ChunkSchedule):
        def decide(self, now: float) -> ChunkDecision:
            # A codec that is late with everything asks for the narrowest window there is.
            decision = super().decide(now)
            rest = self._frames - self._emitted - decision.new_frames
            if decision.new_frames and decision.lookahead != field:
                assert self._finished
                assert decision.lookahead == rest < field
            return decision

    rows, codec = case.talker()
    schedule = Watched(settings, case.bounds)
    sent = speak(schedule, settings, rows, lambda frames, at: codec(frames, at) + 0.1)
    assert sum(item.frames for item in sent) == case.frames


def test_the_narrow_lookahead_is_used_only_when_the_wide_one_would_be_late() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule.on_frames(first + 2)
    assert schedule.decide(0.0) == ChunkDecision(first, 2, inf)
    schedule.on_emitted(first, 2, 0.0)
    schedule.on_sent(first, 0.02)
    dry_at = 0.02 + first * FRAME_S
    assert schedule.dry_at == pytest.approx(dry_at)
    # 2 + 2 frames in hand: enough for the narrow one only, and there is time.
    schedule.on_frames(2)
    waiting = schedule.decide(0.03)
    assert waiting.new_frames == 0
    cost_s = BOUNDS.queue_s + BOUNDS.decode_s(first + 2 + 2)
    assert waiting.wake_at == pytest.approx(dry_at - cost_s)
    assert schedule.decide(waiting.wake_at) == ChunkDecision(2, 2, inf)
    # With two frames more, the wide one is ready in time.
    schedule.on_frames(2)
    late = schedule.decide(schedule.decide(0.03).wake_at)
    assert late == ChunkDecision(2, 4, inf)


# -- sizes


def test_chunks_grow_up_to_the_cap_and_end_without_crumbs() -> None:
    rows = [0.002 * (i + 1) for i in range(300 + 7)]
    quick = replace(BOUNDS, row_s=0.002)
    sent = speak(ChunkSchedule(SETTINGS, quick), SETTINGS, rows, lambda frames, at: at + 0.01)
    sizes = [item.frames for item in sent]
    assert sum(sizes) == 300
    assert all(small <= large for small, large in pairwise(sizes[:-1]))
    assert max(sizes[:-1]) == SETTINGS.max_chunk_frames
    assert 0.5 * SETTINGS.max_chunk_frames <= sizes[-1] <= 1.5 * SETTINGS.max_chunk_frames


@given(SEEDS)
def test_no_chunk_is_larger_than_it_may_be(seed: int) -> None:
    case = random_case(seed)
    cap = case.settings.max_chunk_frames
    first, *rest = [item.frames for item in case.run().sent]
    start = start_frames(case.settings, case.bounds, left_frames=case.frames)
    assert first <= 1.5 * max(cap, start)
    assert all(size <= 1.5 * cap for size in rest)


def test_a_fixed_first_chunk_is_exactly_that_and_only_the_first() -> None:
    settings = replace(SETTINGS, first_chunk_frames=1)
    rows = [0.014 * (i + 1) for i in range(60)]
    for dry_at in (-inf, 0.5):
        schedule = ChunkSchedule(settings, BOUNDS, dry_at=dry_at)
        sent = speak(schedule, settings, rows, lambda frames, at: at + 0.01)
        assert sent[0].frames == 1
        assert max(item.frames for item in sent[1:]) > 1
    at_once = ChunkSchedule(settings, BOUNDS)
    at_once.on_frames(3)
    assert at_once.decide(0.0) == ChunkDecision(1, 2, inf)


def test_an_utterance_shorter_than_its_first_chunk_leaves_when_it_ends() -> None:
    for frames in (1, 2, 3):
        schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=1.0))
        schedule.on_frames(frames)
        assert schedule.decide(0.0) == ChunkDecision(0, 0, inf)
        schedule.on_finished()
        assert schedule.decide(0.0) == ChunkDecision(frames, 0, inf)


def test_once_the_talker_has_ended_nothing_is_held_back_against_it() -> None:
    schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=1.0))
    schedule.on_frames(20)
    assert schedule.decide(0.0).new_frames == 0
    schedule.on_finished()
    decision = schedule.decide(0.0)
    assert decision.new_frames == sustainable_frames(SETTINGS, BOUNDS)
    assert decision.lookahead == SETTINGS.lookahead_frames


@pytest.mark.parametrize(("more", "lookahead"), [(2, 2), (3, 2), (4, 4), (9, 4)])
def test_a_start_takes_the_wide_lookahead_if_it_is_in_hand(more: int, lookahead: int) -> None:
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    schedule.on_frames(first + more)
    assert schedule.decide(0.0) == ChunkDecision(first, lookahead, inf)


def test_what_is_held_back_for_a_slow_talker_is_bounded() -> None:
    slow = replace(BOUNDS, row_s=3 * FRAME_S)
    schedule = ChunkSchedule(SETTINGS, slow)
    schedule.on_frames(151)
    assert schedule.decide(0.0).new_frames == 0
    schedule.on_frames(1)
    assert schedule.decide(0.0).new_frames == SETTINGS.max_chunk_frames


def test_the_smallest_sustainable_chunk_lasts_as_long_as_its_decode() -> None:
    for seed in range(200):
        case = random_case(seed)
        context = case.settings.left_context_frames + case.settings.lookahead_frames
        m0 = sustainable_frames(case.settings, case.bounds)

        def spare_s(frames: int, bounds: PaceBounds = case.bounds, more: int = context) -> float:
            cost_s = bounds.queue_s + bounds.decode_s(more + frames)
            return frames * FRAME_S - cost_s

        assert spare_s(m0) >= -1e-6
        assert m0 == case.settings.min_chunk_frames or spare_s(m0 - 1) < 1e-6
    hopeless = replace(BOUNDS, decode_frame_s=FRAME_S)
    assert sustainable_frames(SETTINGS, hopeless) == SETTINGS.max_chunk_frames


# -- when promises are broken


def test_after_an_underrun_it_starts_again() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule.on_frames(first + 2)
    schedule.on_emitted(first, 2, 0.0)
    schedule.on_sent(first, 0.01)
    dry_at = schedule.dry_at
    schedule.on_frames(first - 1)  # the talker stalls: too few to start again
    assert schedule.decide(dry_at + 1).new_frames == 0
    schedule.on_frames(1)
    assert schedule.decide(dry_at + 1).new_frames == first
    schedule.on_emitted(first, 2, dry_at + 1)
    schedule.on_sent(first, dry_at + 1.5)
    assert schedule.dry_at == pytest.approx(dry_at + 1.5 + first * FRAME_S)


def test_new_bounds_are_used_at_once() -> None:
    schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=2.0))
    schedule.on_frames(30)
    assert schedule.decide(0.0).new_frames == 0
    schedule.update_bounds(BOUNDS)
    assert schedule.decide(0.0).new_frames > 0


@given(SEEDS, st.floats(1.5, 20))
def test_every_frame_is_sent_even_if_all_promises_are_broken(seed: int, times: float) -> None:
    case = random_case(seed)
    rows, codec = case.talker()
    late = [at * times for at in rows]
    schedule = ChunkSchedule(case.settings, case.bounds)
    sent = speak(schedule, case.settings, late, lambda frames, at: codec(frames, at) + 0.05 * times)
    assert sum(item.frames for item in sent) == case.frames


def test_one_window_at_a_time_and_no_impossible_events() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    with pytest.raises(ValueError):
        schedule.on_frames(-1)
    with pytest.raises(ValueError):
        schedule.on_sent(1, 0.0)
    schedule.on_frames(20)
    with pytest.raises(ValueError):
        schedule.on_emitted(18, 4, 0.0)
    schedule.on_emitted(8, 4, 0.0)
    with pytest.raises(ValueError):
        schedule.on_emitted(1, 4, 0.0)
    assert schedule.decide(0.0) == ChunkDecision(0, 0, inf)
    with pytest.raises(ValueError):
        schedule.on_sent(9, 0.0)
    schedule.on_sent(8, 0.1)
    schedule.on_finished()
    with pytest.raises(ValueError):
        schedule.on_frames(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame_s": 0.0},
        {"frame_s": inf},
        {"delay_rows": -1},
        {"left_context_frames": -1},
        {"first_lookahead_frames": 5},
        {"min_chunk_frames": 0},
        {"min_chunk_frames": 51},
        {"first_chunk_frames": 0},
        {"growth": 0.9},
        {"growth": float("nan")},
        {"guard_s": -0.1},
        {"max_hold_frames": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize(
    "wrong", [{"row_s": -1.0}, {"burst_s": inf}, {"queue_s": float("nan")}, {"decode_floor": 1.1}]
)
def test_bounds_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(BOUNDS, **wrong)

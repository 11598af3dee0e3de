"""Times and lookahead of chunks, also if the bounds do not hold."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.chunk_schedule import (
    ChunkDecision,
    ChunkSchedule,
    PaceBounds,
    start_frames,
    sustainable_frames,
)
from tests.streaming.schedule_cases import BOUNDS, FRAME_S, SEEDS, SETTINGS, random_case
from tests.streaming.schedule_sim import Sent, gaps, speak

# -- starting while earlier audio still plays


@given(SEEDS)
def test_utterance_in_time_follows_without_gap(seed: int) -> None:
    case = random_case(seed, slow=False)
    settings, bounds = case.settings, case.bounds
    rows, codec = case.talker()
    first = start_frames(settings, bounds, left_frames=case.frames)
    needed = min(first + settings.lookahead_frames + settings.delay_rows, len(rows))
    window = first + settings.lookahead_frames
    dry_at = rows[needed - 1] + bounds.wait_s + bounds.decode_s(window) + settings.guard_s + 1e-6
    sent = speak(ChunkSchedule(settings, bounds, dry_at=dry_at), settings, rows, codec)
    assert gaps(sent, FRAME_S, dry_at=dry_at) == []


def test_finished_utterance_that_begins_late_has_no_gap_inside() -> None:
    """Its first chunk cannot be decoded before ``dry_at``, but outlasts the next one's decode."""
    for seed in range(2000):
        case = random_case(seed)
        settings, bounds = case.settings, replace(case.bounds, trimmed_s=0.0)
        rows, codec = case.talker()
        smallest = min(case.frames, sustainable_frames(settings, bounds))
        window = smallest + settings.first_lookahead_frames
        needed_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window)
        dry_at = Random(seed).uniform(0, needed_s)
        schedule = ChunkSchedule(settings, bounds, dry_at=dry_at)
        sent = speak(schedule, settings, [0.0] * len(rows), codec)
        assert gaps(sent, FRAME_S, dry_at=max(dry_at, sent[0].at)) == []


def test_first_chunk_is_larger_while_audio_plays() -> None:
    rows = [0.014 * (i + 1) for i in range(150)]

    def first(dry_at: float) -> Sent:
        schedule = ChunkSchedule(SETTINGS, BOUNDS, dry_at=dry_at)
        return speak(schedule, SETTINGS, rows, lambda frames, at: at + 0.02)[0]

    assert first(-inf) == first(0.0)
    assert first(-inf).frames == start_frames(SETTINGS, BOUNDS, left_frames=0)
    assert first(10.0).frames > first(-inf).frames
    assert first(0.3).frames > first(-inf).frames
    assert first(0.3).at <= 0.3


def test_slow_talker_does_not_start_early_while_audio_plays() -> None:
    slow = replace(BOUNDS, row_s=1.2 * FRAME_S, burst_s=0.0)
    schedule = ChunkSchedule(SETTINGS, slow, dry_at=1.0, expected_frames=100)
    schedule.on_frames(8)
    assert schedule.decide(0.9) == ChunkDecision(0, 0, inf)  # while there is time
    assert schedule.decide(0.99).new_frames == 0
    held = start_frames(SETTINGS, slow, left_frames=100)
    schedule.on_frames(held + SETTINGS.first_lookahead_frames - 8)
    assert schedule.decide(1.5).new_frames == held


def test_short_lead_does_not_shorten_first_chunk() -> None:
    bounds = replace(BOUNDS, burst_s=0.2)
    first = start_frames(SETTINGS, bounds, left_frames=0)
    m0 = sustainable_frames(SETTINGS, bounds)
    assert m0 + 4 < first + 2
    schedule = ChunkSchedule(SETTINGS, bounds, dry_at=7.005)  # nothing is decoded by then
    schedule.on_frames(m0 + 4)
    assert schedule.decide(7.0).new_frames == 0
    schedule.on_frames(first - m0 - 2)
    assert schedule.decide(7.0).new_frames == first


def test_lead_reduces_start_frames() -> None:
    for bounds in (replace(BOUNDS, burst_s=0.5), replace(BOUNDS, row_s=0.05)):

        def start(lead_s: float, bounds: PaceBounds = bounds) -> int:
            return start_frames(SETTINGS, bounds, left_frames=100, lead_s=lead_s)

        assert start(0.0) > start(0.2) > start(0.4) >= sustainable_frames(SETTINGS, bounds)


# -- what is missing for the next chunk


@pytest.mark.parametrize("playing", [False, True])
@given(seed=SEEDS)
def test_chunk_is_emitted_once_missing_frames_have_come(seed: int, *, playing: bool) -> None:
    """While nothing plays or, if there is no hurry, while other audio does."""
    case, rng = random_case(seed, slow=False), Random(seed)
    schedule = ChunkSchedule(case.settings, case.bounds, dry_at=1e6 if playing else -inf)
    for now in (0.0, 1e3, 2e3, 3e3):
        missing = schedule.missing_frames(playing=playing)
        if missing:
            schedule.on_frames(missing - 1)
            assert not schedule.decide(now).new_frames
            schedule.on_frames(1)
            assert not schedule.missing_frames(playing=playing)
        chosen = schedule.decide(now)
        schedule.on_emitted(chosen.new_frames, chosen.lookahead)
        schedule.on_sent(chosen.new_frames, now)
        schedule.on_frames(rng.randrange(4))


# -- lookahead


@given(SEEDS, st.integers(0, 10))
def test_full_lookahead_is_never_narrowed(seed: int, field: int) -> None:
    case = random_case(seed)
    settings = replace(
        case.settings,
        first_lookahead_frames=field,
        lookahead_frames=field,
        incomplete_frames=0,
    )

    class Watched(ChunkSchedule):
        def decide(self, now: float) -> ChunkDecision:
            # With a codec that is always late, the narrowest window would be chosen.
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


def test_first_chunk_does_not_wait_for_begun_frames_of_its_lookahead() -> None:
    settings = replace(SETTINGS, incomplete_frames=2)
    schedule = ChunkSchedule(settings, BOUNDS)
    first = start_frames(settings, BOUNDS, left_frames=0)
    assert schedule.missing_frames(playing=False) == first
    schedule.on_frames(first - 1)
    assert schedule.decide(0.0) == ChunkDecision(0, 0, inf)
    schedule.on_frames(1)
    assert schedule.decide(0.0) == ChunkDecision(first, 0, inf, incomplete=2)
    schedule.on_frames(1)
    assert schedule.decide(0.0) == ChunkDecision(first, 1, inf, incomplete=1)
    schedule.on_finished()
    assert schedule.decide(0.0) == ChunkDecision(first + 1, 0, inf), "no more frames begin"


def test_narrow_lookahead_is_used_only_if_wide_would_be_late() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule.on_frames(first + 2)
    assert schedule.decide(0.0) == ChunkDecision(first, 2, inf)
    schedule.on_emitted(first, 2)
    schedule.on_sent(first, 0.02)
    dry_at = 0.02 + first * FRAME_S
    assert schedule.dry_at == pytest.approx(dry_at)
    # 2 + 2 frames in hand: enough only for the narrow one, and there is time to wait.
    schedule.on_frames(2)
    waiting = schedule.decide(0.03)
    assert waiting.new_frames == 0
    cost_s = BOUNDS.queue_s + BOUNDS.decode_s(2 + 2)
    assert waiting.wake_at == pytest.approx(dry_at - cost_s)
    assert schedule.decide(waiting.wake_at) == ChunkDecision(2, 2, inf)
    # With two frames more, the wide one is ready in time.
    schedule.on_frames(2)
    late = schedule.decide(schedule.decide(0.03).wake_at)
    assert late == ChunkDecision(2, 4, inf)


# -- if the bounds do not hold


def test_schedule_starts_again_after_underrun() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule.on_frames(first + 2)
    schedule.on_emitted(first, 2)
    schedule.on_sent(first, 0.01)
    dry_at = schedule.dry_at
    schedule.on_frames(first - 1)  # the talker stalls: too few to start again
    assert schedule.decide(dry_at + 1).new_frames == 0
    schedule.on_frames(1)
    assert schedule.decide(dry_at + 1).new_frames == first
    schedule.on_emitted(first, 2)
    schedule.on_sent(first, dry_at + 1.5)
    assert schedule.dry_at == pytest.approx(dry_at + 1.5 + first * FRAME_S)


@pytest.mark.parametrize("expected", [1, 60, 200])
def test_restart_after_underrun_holds_back_for_remaining_frames_only(expected: int) -> None:
    """The deficit of a slow talker was held back for the whole utterance; silence was trimmed."""
    bounds = replace(BOUNDS, row_s=1.2 * FRAME_S, trimmed_s=0.3)
    schedule = ChunkSchedule(SETTINGS, bounds, expected_frames=expected, is_trimmed=True)
    schedule.on_frames(52)
    schedule.on_emitted(50, 2)
    schedule.on_sent(50, 0.0, bounds.trimmed_s)
    held = start_frames(SETTINGS, bounds, left_frames=max(1, expected - 50))
    assert schedule.missing_frames(playing=False) == held
    schedule.on_frames(held - 1)
    assert schedule.decide(9.0).new_frames == 0
    schedule.on_frames(1)
    assert schedule.decide(9.0).new_frames == min(held, SETTINGS.max_chunk_frames)


def test_chunk_waits_for_target_as_long_as_its_window_can_be_decoded_in_time() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    schedule.on_frames(40)
    schedule.on_emitted(30, 4)
    schedule.on_sent(30, 0.0)
    window = 6 + SETTINGS.lookahead_frames
    due = schedule.dry_at - BOUNDS.queue_s - BOUNDS.decode_s(window)
    waits: Any = pytest.approx(due)
    assert schedule.decide(0.0) == ChunkDecision(0, 0, waits)
    assert schedule.decide(due) == ChunkDecision(6, 4, inf)


@pytest.mark.parametrize("now", [0.0, 0.1, 7.7, 12345.678])
def test_chunk_that_is_trimmed_as_a_whole_does_not_begin_playback(now: float) -> None:
    bounds = replace(BOUNDS, burst_s=0.2)
    first = start_frames(SETTINGS, bounds, left_frames=0)
    assert sustainable_frames(SETTINGS, bounds) < first - 1
    schedule = ChunkSchedule(SETTINGS, bounds, is_trimmed=True)
    schedule.on_frames(first + 2)
    schedule.on_emitted(first, 2)
    schedule.on_sent(first, now, first * FRAME_S)
    schedule.on_frames(first - 1)
    assert schedule.decide(now) == ChunkDecision(0, 0, inf)
    schedule.on_frames(1)
    assert schedule.decide(now).new_frames == first


def test_new_bounds_are_used_at_once() -> None:
    schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=2.0))
    schedule.on_frames(30)
    assert schedule.decide(0.0).new_frames == 0
    schedule.update_bounds(BOUNDS)
    assert schedule.decide(0.0).new_frames > 0


@given(SEEDS, st.floats(1.5, 20))
def test_every_frame_is_sent_even_if_all_bounds_are_broken(seed: int, times: float) -> None:
    case = random_case(seed)
    rows, codec = case.talker()
    late = [at * times for at in rows]
    schedule = ChunkSchedule(case.settings, case.bounds)
    sent = speak(schedule, case.settings, late, lambda frames, at: codec(frames, at) + 0.05 * times)
    assert sum(item.frames for item in sent) == case.frames


def test_schedule_refuses_second_window_and_impossible_events() -> None:
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    with pytest.raises(ValueError):
        schedule.on_frames(-1)
    with pytest.raises(ValueError):
        schedule.on_sent(1, 0.0)
    schedule.on_frames(20)
    with pytest.raises(ValueError):
        schedule.on_emitted(18, 4)
    with pytest.raises(ValueError):
        schedule.on_emitted(0, 4)
    schedule.on_emitted(8, 4)
    with pytest.raises(ValueError):
        schedule.on_emitted(1, 4)
    assert schedule.decide(0.0) == ChunkDecision(0, 0, inf)
    for sent in (0, 9):
        with pytest.raises(ValueError):
            schedule.on_sent(sent, 0.0)
    schedule.on_sent(8, 0.1)
    with pytest.raises(ValueError):
        schedule.on_emitted(9, 4)  # 12 are left
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
def test_schedule_settings_refuse_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_s": -1.0},
        {"burst_s": inf},
        {"queue_s": float("nan")},
        {"queue_s": -0.1, "beginners_s": 0.2},
        {"beginners_s": -0.001},
        {"decode_floor": 1.1},
    ],
)
def test_pace_bounds_refuse_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(BOUNDS, **wrong)

"""Sizes of chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given

from streaming.chunk_schedule import (
    ChunkDecision,
    ChunkSchedule,
    PaceBounds,
    ScheduleSettings,
    start_frames,
    sustainable_frames,
)
from tests.streaming.schedule_cases import BOUNDS, FRAME_S, SEEDS, SETTINGS, random_case
from tests.streaming.schedule_sim import speak


def test_chunks_grow_to_maximum_and_last_chunk_is_not_tiny() -> None:
    rows = [0.002 * (i + 1) for i in range(300 + 7)]
    quick = replace(BOUNDS, row_s=0.002)
    sent = speak(ChunkSchedule(SETTINGS, quick), SETTINGS, rows, lambda frames, at: at + 0.01)
    sizes = [item.frames for item in sent]
    assert sum(sizes) == 300
    assert all(small <= large for small, large in pairwise(sizes[:-1]))
    assert max(sizes[:-1]) == SETTINGS.max_chunk_frames
    assert 0.5 * SETTINGS.max_chunk_frames <= sizes[-1] <= 1.5 * SETTINGS.max_chunk_frames


@given(SEEDS)
def test_chunks_do_not_exceed_maximum_size(seed: int) -> None:
    case = random_case(seed)
    cap = case.settings.max_chunk_frames
    first, *rest = [item.frames for item in case.run().sent]
    bounds = case.bounds
    start = start_frames(case.settings, bounds, left_frames=case.frames, trimmed_s=bounds.trimmed_s)
    assert first <= 1.5 * max(cap, start)
    assert all(size <= 1.5 * cap for size in rest)


def test_chunk_is_limited_by_codec_share_but_sustainable() -> None:
    def second(share: float, *, finished: bool = False) -> int:
        bounds = replace(BOUNDS, decode_frame_s=0.004, codec_share=share)
        schedule = ChunkSchedule(SETTINGS, bounds)
        schedule.on_frames(90)
        first = schedule.decide(0.0)
        schedule.on_emitted(first.new_frames, first.lookahead)
        schedule.on_sent(first.new_frames, 9.0)
        if finished:
            schedule.on_finished()
        chosen = schedule.decide(9.0)
        took_s = bounds.decode_s(chosen.new_frames + chosen.lookahead)
        least = sustainable_frames(SETTINGS, bounds)
        share_s = share * first.new_frames * FRAME_S
        assert chosen.new_frames == least or took_s <= share_s
        most_s = min(share_s, first.new_frames * FRAME_S - bounds.queue_s)
        assert not finished or took_s > most_s - bounds.decode_frame_s, "none is left unused"
        assert chosen.new_frames >= least
        return chosen.new_frames

    whole = second(1.0)
    assert whole > second(0.6) > second(0.01)
    assert second(1.0, finished=True) > second(0.6, finished=True) > second(0.01)


@pytest.mark.parametrize("growth", [1.0, 2.0, 100.0])
def test_burst_of_rows_leaves_half_of_time_until_deadline(growth: float) -> None:
    """A chunk above its target does not occupy the codec until its own deadline."""
    settings = replace(SETTINGS, growth=growth, max_chunk_frames=500)
    bounds = replace(BOUNDS, decode_frame_s=0.004)
    schedule = ChunkSchedule(settings, bounds)
    schedule.on_frames(20)
    first = schedule.decide(0.0)
    schedule.on_emitted(first.new_frames, first.lookahead)
    schedule.on_sent(first.new_frames, 0.0)
    schedule.on_frames(1000)
    chosen = schedule.decide(0.0)
    start_by = schedule.dry_at - bounds.wait_s - bounds.decode_fixed_s
    in_time = start_by / bounds.decode_frame_s
    target = max(sustainable_frames(settings, bounds), growth * first.new_frames)
    half = (in_time - SETTINGS.lookahead_frames) / 2
    assert half - 1 < chosen.new_frames <= max(target, half)
    assert (chosen.new_frames > target) == (growth < 100.0)


def test_chunk_outlasts_wait_for_beginners_despite_small_codec_share() -> None:
    bounds = replace(BOUNDS, decode_frame_s=0.004, codec_share=0.01, beginners_s=0.2)
    schedule = ChunkSchedule(SETTINGS, bounds, dry_at=5.0)
    schedule.on_frames(90)
    first = schedule.decide(0.0)
    schedule.on_emitted(first.new_frames, first.lookahead)
    schedule.on_sent(first.new_frames, 0.0)
    least = sustainable_frames(SETTINGS, replace(bounds, queue_s=bounds.wait_s))
    assert least > sustainable_frames(SETTINGS, bounds)
    assert first.new_frames >= least
    assert schedule.decide(0.0).new_frames >= least


def test_first_chunk_outlasts_decode_of_next_chunk() -> None:
    """Even if the first chunk itself is late."""
    for seed in range(3000):
        case = random_case(seed)
        settings, bounds = case.settings, case.bounds
        window = settings.lookahead_frames + sustainable_frames(settings, bounds)
        decoded_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window)
        first = start_frames(settings, bounds, left_frames=case.frames)
        assert first * FRAME_S >= decoded_s - 1e-6


def test_fixed_first_chunk_size_applies_only_to_first_chunk() -> None:
    settings = replace(SETTINGS, first_chunk_frames=1)
    rows = [0.014 * (i + 1) for i in range(60)]
    for dry_at in (-inf, 0.5):
        schedule = ChunkSchedule(settings, BOUNDS, dry_at=dry_at)
        sent = speak(schedule, settings, rows, lambda frames, at: at + 0.01)
        assert sent[0].frames == 1
        assert sent[1].frames > 1
    silent = ChunkSchedule(settings, replace(BOUNDS, burst_s=0.2), is_trimmed=True)
    silent.on_frames(5)
    silent.on_emitted(1, 2)
    silent.on_sent(1, 0.0, FRAME_S)  # not heard, so that another one is the first
    assert silent.decide(0.0).new_frames == 1
    at_once = ChunkSchedule(settings, BOUNDS)
    at_once.on_frames(3)
    assert at_once.decide(0.0) == ChunkDecision(1, 2, inf)


def test_utterance_shorter_than_first_chunk_is_emitted_at_end() -> None:
    for frames in (1, 2, 3):
        schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=1.0))
        schedule.on_frames(frames)
        assert schedule.decide(0.0) == ChunkDecision(0, 0, inf)
        schedule.on_finished()
        assert schedule.decide(0.0) == ChunkDecision(frames, 0, inf)


@pytest.mark.parametrize(("lookahead", "longest"), [(4, 30), (15, 35)])
def test_short_rest_of_utterance_is_one_chunk(lookahead: int, longest: int) -> None:
    """Up to 1.5 times the target, 20, or if it would be decoded anyway as lookahead."""
    settings = replace(SETTINGS, lookahead_frames=lookahead, max_chunk_frames=20)
    for rest in (longest, longest + 1):
        schedule = ChunkSchedule(settings, BOUNDS)
        schedule.on_frames(10 + rest)
        schedule.on_emitted(10, 2)
        schedule.on_sent(10, 0.0)
        schedule.on_finished()
        assert schedule.decide(0.0).new_frames == (rest if rest == longest else 20)


def test_finished_talker_needs_no_frames_held_back() -> None:
    schedule = ChunkSchedule(SETTINGS, replace(BOUNDS, burst_s=1.0))
    schedule.on_frames(20)
    assert schedule.decide(0.0).new_frames == 0
    schedule.on_finished()
    decision = schedule.decide(0.0)
    assert decision.new_frames == sustainable_frames(SETTINGS, BOUNDS)
    assert decision.lookahead == SETTINGS.lookahead_frames


@pytest.mark.parametrize(("more", "lookahead"), [(2, 2), (3, 2), (4, 4), (9, 4)])
def test_start_uses_wide_lookahead_if_in_hand(more: int, lookahead: int) -> None:
    first = start_frames(SETTINGS, BOUNDS, left_frames=0)
    schedule = ChunkSchedule(SETTINGS, BOUNDS)
    schedule.on_frames(first + more)
    assert schedule.decide(0.0) == ChunkDecision(first, lookahead, inf)


def test_held_back_frames_for_slow_talker_are_limited() -> None:
    slow = replace(BOUNDS, row_s=3 * FRAME_S)
    schedule = ChunkSchedule(SETTINGS, slow)
    schedule.on_frames(151)
    assert schedule.decide(0.0).new_frames == 0
    schedule.on_frames(1)
    assert schedule.decide(0.0).new_frames == SETTINGS.max_chunk_frames


@pytest.mark.parametrize("slower", [1, 4, 16])
def test_sustainable_chunk_is_smallest_allowed_that_outlasts_its_decode(slower: int) -> None:
    """Or the largest allowed, if none does."""
    for seed in range(200):
        case = random_case(seed)
        settings, bounds = case.settings, case.bounds
        bounds = replace(
            bounds,
            queue_s=slower * bounds.queue_s,
            decode_fixed_s=slower * bounds.decode_fixed_s,
            decode_frame_s=slower * bounds.decode_frame_s,
        )
        lookahead = settings.lookahead_frames
        lasting = [
            frames
            for frames in range(settings.min_chunk_frames, settings.max_chunk_frames)
            if frames * FRAME_S >= bounds.queue_s + bounds.decode_s(lookahead + frames)
        ]
        smallest = lasting[0] if lasting else settings.max_chunk_frames
        assert sustainable_frames(settings, bounds) == smallest


def lasts(
    frames: int, settings: ScheduleSettings, bounds: PaceBounds, left: int, lead_s: float
) -> bool:
    """Whether a first chunk cannot end in an underrun, by the definition in steps 2 and 5."""
    m0, slow_s = sustainable_frames(settings, bounds), max(0.0, bounds.row_s - FRAME_S)
    window = m0 + settings.lookahead_frames
    decoded_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window) + bounds.trimmed_s
    next_s = m0 * bounds.row_s + bounds.burst_s + decoded_s + left * slow_s
    first = settings.first_lookahead_frames + (0 if slow_s else frames)
    heard_s = max(lead_s, bounds.decode_floor * bounds.decode_s(first))
    in_time = heard_s + frames * (FRAME_S + slow_s) >= next_s - 1e-9
    return in_time and frames >= m0 and frames * FRAME_S >= decoded_s - 1e-9


@pytest.mark.parametrize("lead_s", [0.0, 0.01, 0.1, 1.0])
def test_first_chunk_is_smallest_that_cannot_underrun(lead_s: float) -> None:
    """A larger one would be heard later."""
    for seed in range(300):
        case = random_case(seed)
        settings, bounds = replace(case.settings, max_hold_frames=200), case.bounds
        found = start_frames(
            settings, bounds, left_frames=300, lead_s=lead_s, trimmed_s=bounds.trimmed_s
        )
        sizes = range(1, settings.max_hold_frames)
        enough = (n for n in sizes if lasts(n, settings, bounds, 300, lead_s))
        assert found == next(enough, settings.max_hold_frames)

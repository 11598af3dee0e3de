"""Estimates of capacity, against simulated talkers and codecs whose true capacity is known."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random

import pytest

from benchmarks.admission_sim import bursts
from benchmarks.simulated_service import FRAME_S, Machine, Service
from streaming.capacity import Capacity, CapacitySettings, CodecLoad, TalkerLoad, UnderrunLimit

PARALLEL = Machine(0.012, 0.0014)
SERIAL = Machine(0.004, 0.0018)


@pytest.mark.parametrize(
    ("machine", "seed"), [(PARALLEL, 1), (SERIAL, 2), (Machine(0.02, 0.001), 3)]
)
def test_admission_is_gap_free_and_uses_machine(machine: Machine, seed: int) -> None:
    service = Service(machine, seed)
    began, true = service.now, machine.carries()
    service.run(began + 30, 2.5 * true / 6)
    assert len(service.refused) > 50
    assert max(n for _, n, _ in service.trace) <= true
    assert service.mean_open(began + 5) >= 0.8 * true  # including pauses between arrivals
    slots = service.slots(began + 5)
    assert min(slots) >= 0.8 * true
    assert max(slots) - min(slots) <= 2, "the number of slots swings"
    assert service.gap_free(began + 3) == 1
    assert service.gap_free(began) >= 0.95


def test_admission_refuses_no_stream_at_half_load() -> None:
    service = Service(PARALLEL, 4)
    service.run(service.now + 30, 0.5 * PARALLEL.carries() / 6)
    assert not service.refused
    assert all(not stream.gaps for stream in service.closed)


def test_slots_follow_machine_speed() -> None:
    service = Service(PARALLEL, 5)
    began = service.now
    service.run(began + 10, 12)
    slower = Machine(1.5 * PARALLEL.fixed_s, 1.5 * PARALLEL.stream_s)
    service.machine = slower
    changed = service.now
    service.run(changed + 25, 12)
    slots = service.slots(changed + 12)
    assert 0.75 * slower.carries() <= min(slots) <= max(slots) <= slower.carries()
    assert service.gap_free(changed + 12, changed + 25) >= 0.95
    service.machine = PARALLEL
    again = service.now
    service.run(again + 30, 12)
    slots = service.slots(again + 20)
    assert 0.8 * PARALLEL.carries() <= min(slots) <= max(slots) <= PARALLEL.carries()


def test_admission_with_faster_playback_is_gap_free() -> None:
    service = Service(PARALLEL, 6)
    began = service.now
    service.run(began + 25, 10, speeds=(1.0, 1.5))
    fast = [stream for stream in service.closed if stream.speed > 1 and stream.began > began + 3]
    assert len(fast) > 10
    assert all(not stream.gaps for stream in fast)
    most = max(n for at, n, _ in service.trace if at > began + 3)
    assert 0.6 * PARALLEL.carries(1.5) <= most


def test_capacity_is_limited_by_slow_codec() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    capacity.talker.observe(1000, 2.0, 1, 1.0)
    assert capacity.streams(1.0) > 8
    for second in range(20):
        capacity.codec.observe(25, 25 * 0.008, 1.0 + second)  # a fifth of the time, per stream
    assert capacity.streams(21.0) == pytest.approx(0.7 * 5)
    assert capacity.streams(21.0, fastest=2.0, mean=2.0) == pytest.approx(0.7 * 5 / 2)
    assert capacity.streams(21.0, fastest=2.0, mean=1.25) == pytest.approx(0.7 * 5 / 1.25)
    capacity.codec.workers = 2
    assert capacity.limits(21.0)["codec"] == pytest.approx(0.7 * 5 * 2)


#: Carries ten streams if its windows have the maximum size.
CODEC_BOUND = Machine(0.0045, 0.0002, 0.004, 0.003, start_s=0.004)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_admission_with_slow_codec_is_gap_free_and_starts_soon(seed: int) -> None:
    service = Service(CODEC_BOUND, seed)
    began = service.now
    service.run(began + 30, 2.5 * CODEC_BOUND.carries_codec() / 6)
    assert len(service.refused) > 50
    # at 250 % of what it carries, with windows that are not cut into pieces here
    gaps_s = [gap_s for stream in service.closed for gap_s in stream.gaps]
    assert len(gaps_s) <= 1
    assert max(gaps_s, default=0) < 0.03
    slots = service.slots(began + 5)
    assert 5 <= min(slots) <= max(slots) <= CODEC_BOUND.carries_codec()
    waits_s = sorted(s.first_at - s.began for s in service.closed if s.first_at is not None)
    assert waits_s[len(waits_s) // 2] < 0.5, "harmless waits have become expected ones"


@pytest.mark.parametrize("seed", range(4))
def test_bursts_on_slow_codec_are_gap_free(seed: int) -> None:
    service = bursts(CODEC_BOUND, 64, seed)
    assert len(service.closed) > 40
    assert service.refused
    assert not any(stream.gaps for stream in service.closed)


@pytest.mark.parametrize("machine", [PARALLEL, Machine(0.004, 0.0002, start_s=0.004)])
def test_full_load_arriving_at_once_is_gap_free(machine: Machine) -> None:
    service = Service(machine, 1)
    for _ in range(2):
        for _ in range(min(64, int(machine.carries()))):
            service.offer(service.rng.randrange(50, 250))
        while service.open:
            service.step()
    assert len(service.closed) > 20
    assert not any(stream.gaps for stream in service.closed)


def feed(load: TalkerLoad, streams: int, row_s: float, since: float, until: float) -> None:
    at = since
    while at < until:
        at += row_s
        for _ in range(streams):
            load.observe(1, row_s, streams, at)


def test_capacity_without_observations_is_ceiling() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 16))
    assert capacity.streams(0.0) == 16
    assert capacity.slots(0.0) == 16
    assert capacity.soon_row_s(1, 0.0) == 0


def test_soon_row_s_assumes_load_growth_up_to_slots() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    for second in range(20):
        streams = (1, 10)[second % 2]
        feed(capacity.talker, streams, 0.010 + 0.001 * (streams - 1), second, second + 1)
    slots = capacity.slots(20)
    assert 20 < slots < 64
    for streams, soon in ((1, 6), (5, 14), (60, slots)):
        expected = capacity.talker.row_s(soon, 20)
        assert capacity.soon_row_s(streams, 20) == min(FRAME_S, expected)


def test_soon_row_s_is_at_most_frame_duration() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    feed(capacity.talker, 1, 2 * FRAME_S, 0, 5)
    assert capacity.soon_row_s(1, 5) == FRAME_S


def test_talker_load_assumes_no_parallelism_after_one_stream() -> None:
    load = TalkerLoad()
    feed(load, 1, 0.01, 0, 5)
    assert load.streams(FRAME_S, 5) == pytest.approx(4, rel=0.01)


def test_talker_load_extrapolates_to_four_times_observed_streams() -> None:
    load = TalkerLoad()
    for lap in range(6):
        streams = (1, 4)[lap % 2]
        feed(load, streams, 0.010 + 0.0001 * streams, 2 * lap, 2 * lap + 2)
    assert load.row_s(4, 12) == pytest.approx(0.0104, rel=0.02)
    assert load.row_s(8, 12) == pytest.approx(0.0108, rel=0.05)
    assert load.streams(FRAME_S, 12) == pytest.approx(16, rel=0.05)  # the line alone would give 299
    feed(load, 16, 0.0116, 12, 14)
    assert load.streams(FRAME_S, 14) == pytest.approx(64, rel=0.05)


def test_capacity_respects_row_limit() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    for second in range(20):  # a step takes nearly a frame's duration even with few streams
        streams = (1, 8)[second % 2]
        row_s = FRAME_S * (0.75 + 0.0125 * (streams - 1))
        feed(capacity.talker, streams, row_s, second, second + 1)
    admitted = capacity.streams(20)
    assert admitted > 12
    assert capacity.talker.row_s(admitted, 20) <= 0.921 * FRAME_S


def test_capacity_returns_to_warm_up_estimate_when_idle() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    feed(capacity.talker, 1, 0.004, 0, 3)
    capacity.settle()
    warm = capacity.streams(3)
    feed(capacity.talker, 1, 0.04, 3, 30)
    busy = capacity.streams(30)
    assert busy < 1.1
    assert capacity.slots(30) == 1, "without one nothing would be learned"
    assert capacity.slots(30, 2.0, 2.0) == 1
    later = [capacity.streams(30 + minutes * 60) for minutes in (1, 3, 10)]
    assert busy < later[0] < later[1] < later[2]
    assert later[2] == pytest.approx(warm, rel=0.02)


def test_talker_load_ignores_pause() -> None:
    load = TalkerLoad()
    feed(load, 4, 0.01, 0, 5)
    before = load.row_s(4, 5)
    feed(load, 4, 0.01, 65, 66)
    assert load.row_s(4, 66) == pytest.approx(before, rel=0.05)


def test_talker_load_follows_slowdown_quickly_and_speedup_slowly() -> None:
    load = TalkerLoad()
    feed(load, 1, 0.01, 0, 30)
    feed(load, 1, 0.02, 30, 33)
    assert load.row_s(1, 33) > 0.017
    feed(load, 1, 0.02, 33, 60)
    feed(load, 1, 0.01, 60, 63)
    assert load.row_s(1, 63) > 0.015
    feed(load, 1, 0.01, 63, 100)
    assert load.row_s(1, 100) < 0.011


def test_talker_load_forgets_pace_after_long_pause() -> None:
    load = TalkerLoad()
    feed(load, 4, 0.02, 0, 30)
    before = load.row_s(4, 30)
    feed(load, 4, 0.01, 90, 92)
    assert load.row_s(4, 92) == pytest.approx(before / 2, rel=0.05)


def test_talker_load_forgets_old_stream_counts() -> None:
    load = TalkerLoad()
    for lap in range(6):
        streams = (1, 16)[lap % 2]
        feed(load, streams, 0.010 + 0.0001 * streams, 2 * lap, 2 * lap + 2)
    busy = load.streams(FRAME_S, 12)
    feed(load, 1, 0.0101, 12, 14)
    assert load.streams(FRAME_S, 14) == pytest.approx(busy, rel=0.05)
    assert load.streams(FRAME_S, 14 + 3600) < busy / 4


def test_talker_load_counts_each_row_of_batch() -> None:
    load = TalkerLoad()
    for lap in range(6):
        streams, at = (1, 4)[lap % 2], 2.0 * lap
        for step in range(40):
            for _ in range(streams):
                load.observe(5, 5 * (0.0097 + 0.0003 * streams), streams, at + 0.05 * step)
    assert load.row_s(4, 12) == pytest.approx(0.0109, rel=0.02)
    assert load.row_s(1, 12) == pytest.approx(0.0100, rel=0.02)


def test_slots_reach_ceiling() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 8))
    capacity.settle()
    for second in range(60):  # at first seven slots, then room for twenty
        row_s = 0.9 * FRAME_S / (7.5 if second < 30 else 20)
        feed(capacity.talker, 1, row_s, second, second + 1)
        slots = capacity.slots(second + 1)
        assert second != 29 or slots == 7
    assert slots == 8


def test_slots_do_not_flicker_with_noise() -> None:
    capacity = Capacity(CapacitySettings(FRAME_S, 64))
    capacity.settle()
    rng, seen = Random(1), []
    for second in range(200):
        row_s = FRAME_S * 0.92 / 16 * 1.0 * rng.uniform(0.995, 1.005)
        feed(capacity.talker, 1, row_s, second, second + 1)
        seen.append(capacity.slots(second + 1))
    changes = sum(a != b for a, b in pairwise(seen[20:]))
    assert changes <= 4


def test_codec_load_averages_recent_seconds() -> None:
    load = CodecLoad()
    assert load.frame_s == 0
    for second in range(100):
        load.observe(10, 0.01 if second < 50 else 0.04, float(second))
    assert load.frame_s == pytest.approx(0.004, rel=0.05)


@pytest.mark.parametrize(
    "wrong",
    [{"ceiling": 0}, {"frame_s": 0.0}, {"target": 0.0}, {"codec_target": 0.0}, {"row_limit": 1.5}],
)
def test_capacity_settings_refuse_invalid_values(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"positive|shares"):
        CapacitySettings(**{"frame_s": FRAME_S, "ceiling": 4, **wrong})  # type: ignore[arg-type]


def test_codec_load_limits_weight_of_window_after_pause() -> None:
    load = CodecLoad()
    for second in range(30):
        load.observe(25, 0.1, float(second))
    load.observe(25, 1.0, 600.0)
    assert load.frame_s < 0.012


@pytest.mark.parametrize("seed", range(3))
def test_underruns_reduce_slots_until_gaps_end(
    seed: int,
) -> None:
    service = Service(SERIAL, seed)
    service.run(service.now + 20, 6)
    before, began = max(service.slots(service.now - 5)), service.now
    service.neighbour = 20.0  # windows take twenty times as long as reported
    service.run(began + 25, 6)
    first_gap = min(at for at, _, slots in service.trace if at > began and slots < before)
    assert min(service.slots(first_gap + 3)) <= 0.7 * before
    assert first_gap - began < 5
    assert service.gap_free(began + 5) > 0.8  # about half without the limit
    service.neighbour, ended = 1.0, service.now
    service.run(ended + 60, 6)
    assert max(service.slots(ended + 50)) >= before - 1


def gaps(limit: UnderrunLimit, streams: int, active: int, lost: float, until: float) -> None:
    """For one second, a share ``lost`` of the audio is late at ``streams`` of all streams."""
    for step in range(10):
        at = until - 1 + 0.1 * step
        for stream in range(active):
            gap_s = 0.1 * lost if stream < streams else 0.0
            limit.observe(stream, 0.1 - gap_s, gap_s, active, at)


def test_underrun_limit_falls_by_lost_share() -> None:
    limit = UnderrunLimit()
    gaps(limit, 20, 20, 0.5, 1.0)
    # each stream's first gap does not count
    assert 0.4 * 20 <= limit.streams(1.0) <= 0.9 * 0.55 * 20
    assert limit.streams(4.0) == limit.streams(1.0)
    assert limit.streams(10.0) > limit.streams(1.0)


def test_short_first_gap_grows_start_and_only_second_one_refuses() -> None:
    limit = UnderrunLimit()
    for stream in (0, 1):
        limit.observe(stream, 0.1, 0.05, 2, 0.15)
    assert limit.streams(0.2) == inf
    for stream in (0, 1):
        limit.observe(stream, 0.1, 0.05, 2, 0.5)
    assert limit.streams(0.5) < 2


def test_long_first_gap_refuses_at_once() -> None:
    limit = UnderrunLimit()
    for stream in (0, 1):
        limit.observe(stream, 0.1, 0.3, 8, 0.15)
    assert limit.streams(0.2) < 8


def test_codec_limit_is_that_of_chunks_under_load() -> None:
    """A stream alone has small chunks, at which a frame costs more."""
    load = CodecLoad()
    for number in range(60):
        size = (1, 2, 4, 8, 16)[number % 5]
        load.observe(size, 0.009 + 0.0015 * size, 0.2 * number)
    assert load.frame_s == pytest.approx(0.0015 + 0.009 / 16, rel=0.05)
    usual_s = load.frame_s
    load.observe(4, 0.515, 12.0)  # one window in bad luck
    assert load.frame_s < 1.25 * usual_s
    assert load.weight(16) == pytest.approx(1.0, abs=0.1)
    assert load.weight(1) > 3


def test_underrun_limit_ignores_gaps_of_single_stream() -> None:
    limit = UnderrunLimit()
    for second in range(1, 10):
        gaps(limit, 1, 20, 0.9, float(second))
    assert limit.streams(10.0) == inf


def test_underrun_limit_needs_two_streams_that_are_late_within_two_seconds() -> None:
    limit = UnderrunLimit()
    for stream in range(5):
        limit.observe(stream, 0.1, 0.5, 20, 3.0 * stream)
    assert limit.streams(12.0) == inf
    limit.observe(5, 0.1, 0.5, 20, 13.0)
    assert limit.streams(13.0) == pytest.approx(0.9 * 0.3 * 20), "no more is taken for lost"


def test_underrun_limit_holds_longer_after_repeated_gaps() -> None:
    held_s = []
    limit, now = UnderrunLimit(), 0.0
    for _ in range(3):
        gaps(limit, 10, 20, 0.3, now := now + 1)
        low, since = limit.streams(now), now
        while limit.streams(now) <= low:
            now += 0.5
        held_s.append(now - since)
    assert held_s[0] < held_s[1] < held_s[2]

"""The deadline queue: order, batches, pieces and limits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.batching import BatchLimits, DeadlineQueue, DecodeCost, QueueFull, cut
from loadtest.fakes.codec import FakeDecoder
from streaming.spec import CodecSpec
from streaming.window import DecodeWindow

REACH = 4
SPEC = CodecSpec(24_000, 3, (50,) * 2, REACH, REACH)
HIGGS = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)
#: One second per frame, and room for any batch.
COST = DecodeCost(0.0, 1.0)
ROOMY = BatchLimits(seconds=1e9)
FAR = 1e9


def window(left: int = 4, new: int = 5, lookahead: int = 2) -> DecodeWindow:
    return DecodeWindow(np.zeros((2, left + new + lookahead), np.int16), left, new, lookahead)


def queue(limits: BatchLimits = ROOMY, cost: DecodeCost = COST) -> DeadlineQueue:
    return DeadlineQueue(SPEC, cost, limits)


def finish(waiting: DeadlineQueue, batch: list, now: float = 0.0) -> list[int]:
    done = []
    for job in batch:
        if waiting.finish(job, np.full(job.next_piece.new_frames, job.id, np.float32), now):
            done.append(job.id)
    return done


def ids(batch: list) -> list[int]:
    return [job.id for job in batch]


def test_empty_queue_has_no_batch() -> None:
    assert queue().take(0.0) == []


def test_queue_orders_windows_by_deadline() -> None:
    waiting, order = queue(BatchLimits(rows=1)), []
    for id, deadline in enumerate([5.0, 1.0, 3.0, 1.0, 4.0]):
        waiting.add(id, window(), deadline, 0.0)
    while batch := waiting.take(0.0):
        order += finish(waiting, batch)
    assert order == [1, 3, 2, 4, 0]
    assert len(waiting) == 0


def test_late_arrival_with_earlier_deadline_goes_first() -> None:
    waiting = queue(BatchLimits(rows=1))
    waiting.add(0, window(), 9.0, 0.0)
    waiting.add(1, window(), 8.0, 0.0)
    assert finish(waiting, waiting.take(0.0)) == [1]
    waiting.add(2, window(), 2.0, 1.0)
    assert finish(waiting, waiting.take(1.0)) == [2]


def test_queue_batches_equal_shapes_in_deadline_order() -> None:
    waiting = queue()
    for id, (new, deadline) in enumerate([(5, FAR + 3), (6, FAR), (5, FAR + 2), (6, FAR + 1)]):
        waiting.add(id, window(new=new), deadline, 0.0)
    batch = waiting.take(0.0)
    assert ids(batch) == [1, 3]
    finish(waiting, batch)
    assert ids(waiting.take(0.0)) == [2, 0]


def test_queue_ignores_context_beyond_receptive_field() -> None:
    waiting = queue()
    waiting.add(0, window(left=4, lookahead=4), FAR, 0.0)
    waiting.add(1, window(left=9, lookahead=6), FAR, 0.0)
    waiting.add(2, window(left=3, lookahead=4), FAR, 0.0)
    assert ids(waiting.take(0.0)) == [0, 1]


def test_batch_rows_are_bounded() -> None:
    waiting = queue(BatchLimits(rows=3, seconds=1e9))
    for id in range(5):
        waiting.add(id, window(), FAR, 0.0)
    assert ids(waiting.take(0.0)) == [0, 1, 2]


def test_batch_seconds_are_bounded_but_single_window_always_runs() -> None:
    waiting = queue(BatchLimits(seconds=23.0))  # windows of 11 frames cost 11 s
    for id in range(5):
        waiting.add(id, window(), FAR, 0.0)
    assert ids(waiting.take(0.0)) == [0, 1]
    waiting = queue(BatchLimits(seconds=1.0))
    waiting.add(0, window(), FAR, 0.0)
    assert ids(waiting.take(0.0)) == [0]


def test_batch_does_not_make_most_urgent_window_late() -> None:
    waiting = queue()
    for id in range(4):
        waiting.add(id, window(), 125.0 + id, 0.0)
    assert ids(waiting.take(100.0)) == [0, 1]  # 22 s fit into 25, 33 do not


@pytest.mark.parametrize(
    ("limits", "in_time_s", "batch"),
    [
        (BatchLimits(seconds=22.0), FAR, [0, 1]),
        (ROOMY, 22.0, [0, 1]),
        (ROOMY, 11.0, [0]),  # it is not late yet
    ],
)
def test_batch_may_take_exactly_the_time_there_is(
    limits: BatchLimits, in_time_s: float, batch: list[int]
) -> None:
    """A window of 11 frames takes 11 s."""
    waiting = queue(limits)
    for id in range(3):
        waiting.add(id, window(), in_time_s, 0.0)
    assert ids(waiting.take(0.0)) == batch


def test_batch_counts_fixed_cost_once() -> None:
    waiting = queue(BatchLimits(seconds=145.0), DecodeCost(100.0, 1.0))
    for id in range(5):
        waiting.add(id, window(), FAR, 0.0)
    assert ids(waiting.take(0.0)) == [0, 1, 2, 3]


def test_late_window_is_batched_with_others() -> None:
    waiting = queue()
    for id in range(4):
        waiting.add(id, window(), 5.0, 0.0)
    assert ids(waiting.take(100.0)) == [0, 1, 2, 3]


def test_window_marked_alone_is_batched_with_no_other() -> None:
    waiting = queue()
    waiting.add(0, window(), FAR, 0.0, alone=True)
    waiting.add(1, window(), FAR + 1, 0.0)
    waiting.add(2, window(), FAR + 2, 0.0, alone=True)
    waiting.add(3, window(), FAR + 3, 0.0)
    order = []
    while batch := waiting.take(0.0):
        order.append(ids(batch))
        finish(waiting, batch)
    assert order == [[0], [1, 3], [2]]


def test_cancelled_window_is_not_taken() -> None:
    waiting = queue()
    for id in range(3):
        waiting.add(id, window(), FAR, 0.0)
    assert waiting.cancel(1)
    assert not waiting.cancel(1)
    assert not waiting.cancel(77)
    assert ids(waiting.take(0.0)) == [0, 2]


def test_window_cancelled_during_decoding_is_never_finished() -> None:
    waiting = queue()
    waiting.add(0, window(), FAR, 0.0)
    batch = waiting.take(0.0)
    waiting.cancel(0)
    assert finish(waiting, batch) == []
    waiting.add(0, window(), FAR, 0.0)
    assert finish(waiting, batch) == []
    assert len(waiting) == 1


def test_queue_is_bounded() -> None:
    waiting = queue(BatchLimits(queued=2, seconds=1e9))
    waiting.add(0, window(), FAR, 0.0)
    waiting.add(1, window(), FAR, 0.0)
    with pytest.raises(QueueFull):
        waiting.add(2, window(), 0.0, 0.0)
    assert finish(waiting, waiting.take(0.0)) == [0, 1]
    waiting.add(2, window(), FAR, 0.0)


def test_queue_refuses_duplicate_id() -> None:
    waiting = queue()
    waiting.add(0, window(), FAR, 0.0)
    with pytest.raises(ValueError, match="already"):
        waiting.add(0, window(), FAR, 0.0)


def test_urgent_window_waits_for_only_one_piece_of_long_window() -> None:
    waiting = queue(BatchLimits(piece_frames=10))
    waiting.add(0, window(0, 95, 0), 50.0, 0.0)
    order = []
    for turn in range(11):
        if turn == 3:
            waiting.add(1, window(), 20.0, 0.0)
        batch = waiting.take(0.0)
        order += ids(batch)
        assert all(job.next_piece.new_frames <= 10 for job in batch)
        finish(waiting, batch)
    assert order == [0, 0, 0, 1, *[0] * 7]
    assert len(waiting) == 0


def test_long_first_window_yields_to_streams_close_to_underrun() -> None:
    """Its deadline is early, as for all first windows. A piece of ten frames takes .1 s here."""
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(0, 105, 0), 0.25, 0.0, begins=True)
    waiting.add(1, window(), 0.9, 0.0)
    waiting.add(2, window(), 5.0, 0.0)
    order, now = [], 0.0
    while batch := waiting.take(now):
        order += ids(batch)
        now += 0.1
        finish(waiting, batch, now)
    assert order == [0, 1, *[0] * 10, 2]


def test_long_first_window_is_never_due_earlier_than_at_first() -> None:
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(0, 105, 0), 5.0, 0.0, begins=True)
    finish(waiting, waiting.take(0.0), 0.1)
    waiting.add(1, window(), 4.0, 0.1)
    assert ids(waiting.take(0.1)) == [1]


@pytest.mark.parametrize("frames", [20, 100])
def test_short_first_window_is_not_interrupted(frames: int) -> None:
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(0, frames, 0), 0.25, 0.0, begins=True)
    waiting.add(1, window(), 0.9, 0.0)
    order = []
    while batch := waiting.take(0.0):
        order += ids(batch)
        finish(waiting, batch)
    assert order == [*[0] * (frames // 10), 1]


@pytest.mark.parametrize(("deadline_s", "goes_first"), [(1.25, True), (1.75, False)])
def test_first_window_of_101_frames_yields_to_windows_due_within_a_second(
    deadline_s: float, goes_first: bool
) -> None:
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(0, 101, 0), 0.25, 0.0, begins=True)
    finish(waiting, waiting.take(0.0), 0.5)
    waiting.add(1, window(), deadline_s, 0.5)
    assert ids(waiting.take(0.5)) == [1 if goes_first else 0]


def test_long_window_of_playing_stream_is_not_interrupted() -> None:
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(4, 105, 0), 0.5, 0.0)
    waiting.add(1, window(), 0.9, 0.0)
    order = []
    while batch := waiting.take(0.0):
        order += ids(batch)
        finish(waiting, batch)
    assert order == [*[0] * 11, 1]


def test_long_first_window_progresses_under_constant_load() -> None:
    waiting = queue(BatchLimits(piece_frames=10), DecodeCost(0.0, 0.01))
    waiting.add(0, window(0, 95, 0), 0.25, 0.0, begins=True)
    now, turns, done_at = 0.0, list[float](), dict[int, float]()
    for id in range(1, 200):
        waiting.add(id, window(), now + 0.5, now)
        batch = waiting.take(now)
        turns += [now for job in batch if job.id == 0]
        now += 0.1
        done_at |= dict.fromkeys(finish(waiting, batch, now), now)
    assert 0 in done_at
    assert max(b - a for a, b in pairwise(turns)) < 2
    late = [done_at[id] - (0.1 * (id - 1) + 0.5) for id in done_at if id]
    assert max(late) < 0.7


@settings(max_examples=80, deadline=None)
@given(
    left=st.integers(0, 12),
    new=st.integers(1, 60),
    lookahead=st.integers(0, 12),
    piece=st.integers(1, 20),
)
def test_cut_pieces_give_samples_of_whole_window(
    left: int, new: int, lookahead: int, piece: int
) -> None:
    fake = FakeDecoder(SPEC)
    codes = np.random.default_rng(new).integers(0, 50, (2, left + new + lookahead))
    whole = DecodeWindow(codes.astype(np.int16), left, new, lookahead, 100, True)
    pieces = list(cut(whole, piece, SPEC))
    samples = np.concatenate(fake.decode_windows(pieces))
    assert np.array_equal(samples, fake.decode_windows([whole])[0])
    sizes = [part.new_frames for part in pieces]
    assert max(sizes) <= piece
    assert max(sizes) - min(sizes) <= 1
    assert max(max(part.left_context, part.lookahead) for part in pieces) <= REACH
    assert [part.is_last for part in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[0].first_frame == 100
    assert pieces[-1].first_frame + pieces[-1].new_frames == 100 + new


@settings(max_examples=40, deadline=None)
@given(before=st.integers(0, 30), new=st.integers(1, 40), piece=st.integers(1, 20))
def test_cut_gives_each_piece_its_history(before: int, new: int, piece: int) -> None:
    spec = CodecSpec(24_000, 3, (50, 20), 2, 0, history_frames=9)
    fake, rng = FakeDecoder(spec), np.random.default_rng(new)
    codes = np.stack([rng.integers(0, size, before + new) for size in (50, 20)]).astype(np.int16)
    left = min(before, spec.left_frames)
    history = codes[:, max(0, before - 11) : before - left]
    whole = DecodeWindow(
        codes[:, before - left :], left, new, 0, before, True,
        history if history.size else None,
    )  # fmt: skip
    pieces = list(cut(whole, piece, spec))
    for part in pieces:
        kept = part.left_context + (0 if part.history is None else part.history.shape[1])
        assert kept == min(part.first_frame, 11)
    samples = np.concatenate(fake.decode_windows(pieces))
    assert np.array_equal(samples, fake.decode([codes])[0][before * spec.hop_length :])


@pytest.mark.parametrize(
    ("frame_s", "frames"), [(1e-5, 50), (4e-4, 30), (6e-4, 20), (0.1, 20), (0.0, 50)]
)
def test_pieces_are_shorter_on_slow_machines(frame_s: float, frames: int) -> None:
    assert BatchLimits().affordable(DecodeCost(0.0, frame_s), HIGGS).piece_frames == frames


def test_pieces_leave_room_for_fixed_cost() -> None:
    assert BatchLimits().affordable(DecodeCost(0.008, 2e-4), HIGGS).piece_frames == 40


def test_pieces_without_context_have_five_frames_at_least() -> None:
    spec = CodecSpec(24_000, 960, (1024,) * 8, 0, 0)
    assert BatchLimits().affordable(DecodeCost(0.0, 0.1), spec).piece_frames == 5


@pytest.mark.parametrize(("frames", "rows"), [(25, 8), (24.5, 1)])
def test_limits_allow_batches_if_fixed_cost_is_that_of_shortest_window(
    frames: float, rows: int
) -> None:
    """It has five new frames between contexts of ten."""
    cost = DecodeCost(frames * 2**-10, 2**-10)
    assert BatchLimits().affordable(cost, HIGGS).rows == rows


@pytest.mark.parametrize(("fixed_s", "rows"), [(0.006, 8), (0.001, 1), (0.0, 1)])
def test_limits_allow_batches_only_if_fixed_cost_is_high(fixed_s: float, rows: int) -> None:
    assert BatchLimits().affordable(DecodeCost(fixed_s, 2e-4), HIGGS).rows == rows

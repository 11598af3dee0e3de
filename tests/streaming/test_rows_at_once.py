"""Number of rows that the talker sends together, and the delay with which they are taken."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streaming.events import TextAppended
from streaming.session import Session
from streaming.utterance_queue import rows_at_once
from streaming.window import DecodeWindow
from tests.streaming.session_world import ROW_S, SPEC, World, settings

SECONDS = st.floats(0, 10)


def delay_at(session: Session, now: float, row_s: float) -> float:
    queue = session._queue
    return queue.row_delay_s(queue.playback.lead_s(now), row_s)


@given(st.sampled_from([1, 4, 8]), SECONDS, SECONDS)
def test_rows_at_once_are_generated_within_delay(
    present: int, delay_s: float, row_s: float
) -> None:
    rows = rows_at_once(present, delay_s, row_s)
    assert rows == 1 or 0 < rows * row_s <= delay_s
    assert rows <= present or 2 * rows * row_s <= delay_s
    assert rows_at_once(rows, delay_s, row_s) == rows, "once told, it stays"


def test_rows_at_once_grow_with_delay() -> None:
    assert [rows_at_once(1, s, 1.0) for s in (0.0, 7.9, 8.0, 15.9, 16.0)] == [1, 1, 4, 4, 8]
    assert [rows_at_once(8, s, 1.0) for s in (8.0, 7.9, 4.0, 3.9)] == [8, 4, 4, 1]
    assert rows_at_once(1, 0.4, 0.0) == 1, "nobody knows how fast they come"


def test_row_delay_is_at_most_half_of_audio_still_playing() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    session = world.session
    assert delay_at(session, 0.0, 0.0) == 0, "nobody knows how fast they come"
    world.run(until=0.5)
    assert world.sent
    sent_s = world.samples / SPEC.sample_rate
    delay_s = delay_at(session, world.now, ROW_S)
    assert 0 < delay_s <= sent_s / 2
    assert delay_at(session, world.now + sent_s, ROW_S) == 0, "the listener has run dry"


def test_row_delay_before_first_chunk_is_half_of_missing_rows() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    delays: list[tuple[float, float]] = []
    while not world.windows:
        delays.append((world.now, delay_at(world.session, world.now, ROW_S)))
        world.run(until=world.now + ROW_S)
    assert delays[0][1] >= 3 * ROW_S
    assert all(at + 2 * delay_s <= world.now + 1e-9 for at, delay_s in delays)
    delay_s = delay_at(world.session, world.now, ROW_S)
    assert delay_s <= world.windows[0].window.new_frames * SPEC.frame_s / 2


def test_row_delay_leaves_time_for_two_windows() -> None:
    plan = settings()
    dear = replace(plan.queue.bounds(1.0), queue_s=0.15)
    world = World(replace(plan, queue=replace(plan.queue, bounds=lambda _: dear)), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    queue, schedule, looks = world.session._queue, plan.queue.schedule, 0
    while world.now < 1.5 and queue._utterances:
        world.run(until=world.now + 0.001)
        head = queue._utterances[0] if queue._utterances else None
        if not world.sent or head is None or head.decoding is None:
            continue
        assert isinstance(head.decoding, DecodeWindow)
        needed_s = dear.wait_s + dear.decode_s(schedule.lookahead_frames + head.waiting_frames)
        lead_s = queue.playback.lead_s(world.now) + head.decoding.new_frames * SPEC.frame_s
        delay_s = delay_at(world.session, world.now, ROW_S)
        assert delay_s <= max(0.0, lead_s - 2 * needed_s) / 2 + 1e-9
        looks += 1
    assert looks


def test_whole_mode_does_not_delay_rows() -> None:
    world = World(settings("whole"))
    world.post(TextAppended("A sentence of some length. "))
    world.run(until=0.05)
    assert delay_at(world.session, world.now, ROW_S) == 0

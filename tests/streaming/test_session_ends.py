"""Ends of contexts: without speech, by failure, at maximum length. Also the delay of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.events import (
    Done,
    EndAsked,
    Failed,
    FlushAsked,
    NothingToSay,
    RowsReceived,
    TextAppended,
    WordsSent,
)
from streaming.ports import Arrival, TalkerRows
from tests.streaming.session_world import ROW_S, SPEC, World, rows_of, settings


def spoken(batch: TalkerRows, text: str = "One sentence.", at: float = 0.1) -> World:
    """A context with one utterance, whose rows come in one batch."""
    world = World(settings())
    world.post(TextAppended(text))
    world.post(EndAsked())
    world._rows = [(at, RowsReceived(0, batch))]
    world.run()
    return world


def test_utterance_with_nothing_to_say_is_skipped() -> None:
    world = World(settings())
    world.post(TextAppended("Great! \N{SMILING FACE WITH SUNGLASSES}"))
    world.post(EndAsked())
    spoken, world._rows = world._rows, []
    world.post(NothingToSay(0))
    assert world.talked == ["Great!", "\N{SMILING FACE WITH SUNGLASSES}"]
    world.run()
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.reason == "complete"
    assert spoken
    assert {int(1024 * value) for a in world.sent for value in a.samples} == {101}


def test_context_with_nothing_to_say_ends_with_error() -> None:
    world = World(settings())
    world.post(TextAppended("\N{SMILING FACE WITH SUNGLASSES}"))
    world.post(EndAsked())
    world.post(NothingToSay(0))
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.reason == "error"
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_context_without_text_ends_with_error() -> None:
    world = World(settings())
    world.post(TextAppended(""))
    world.post(EndAsked())
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_request_after_end_is_refused_without_effect() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence."))
    world.post(EndAsked())
    for event in (TextAppended("More."), FlushAsked("f"), EndAsked()):
        with pytest.raises(RequestError) as caught:
            world.post(event)
        assert caught.value.code is ErrorCode.CONTEXT_CLOSED
    world.run()
    assert world.talked == ["One sentence."]


def test_text_over_limit_is_refused_and_context_continues() -> None:
    world = World(settings(chars=20))
    world.post(TextAppended("Ten chars."))
    with pytest.raises(RequestError) as caught:
        world.post(TextAppended(" Too many here."))
    assert caught.value.code is ErrorCode.TEXT_TOO_LONG
    world.post(TextAppended(" Fits."))
    world.post(EndAsked())
    world.run()
    assert "".join(world.talked).replace(" ", "") == "Tenchars.Fits."


def test_failure_ends_context_with_its_error() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence. "))
    error = BackendError(ErrorCode.ENGINE_FAILED, "no")
    world.post(Failed(error))
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].error is error
    assert world.session.handle(TextAppended("x"), 0.0) == []


def test_utterance_at_maximum_length_ends_with_reason_length() -> None:
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))[:9]
    world = spoken(TalkerRows(rows, "length"))
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "length"
    assert world.samples == (9 - SPEC.num_codebooks + 1) * SPEC.hop_length


def test_end_code_in_last_allowed_row_is_complete() -> None:
    world = spoken(TalkerRows(rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16)), "length"))
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "complete"


def test_words_beyond_maximum_length_are_not_reported() -> None:
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))[:9]
    first_word = np.zeros(9, np.float32)  # position in the text of each row
    world = spoken(TalkerRows(rows, "length", first_word), "One two three four.")
    told = [word.text for one in world.told if isinstance(one, WordsSent) for word in one.timings]
    assert told == ["One"]


def test_rtf_ends_at_arrival_of_last_row() -> None:
    rows = rows_of(np.full((20, SPEC.num_codebooks), 7, np.int16))
    batch = TalkerRows(rows, "stop", None, (Arrival(len(rows), 0.2),))
    soon, late = (spoken(batch, at=at).told[-1] for at in (0.2, 0.6))
    assert isinstance(soon, Done)
    assert isinstance(late, Done)
    assert soon.report.rtf == late.report.rtf


def test_pause_in_text_is_no_underrun() -> None:
    world = World(settings(), frames=10)
    world.post(TextAppended("One is here. "))
    world.run(5.0)
    world.post(TextAppended("Two is here. "))
    world.post(EndAsked())
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].report.underruns == 0
    assert not any(audio.late for audio in world.sent)


def test_row_delay_is_at_most_half_of_audio_still_playing() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    session = world.session
    assert session._queue.row_delay_s(0.0, 0.0) == 0, "nobody knows how fast they come"
    world.run(until=0.5)
    assert world.sent
    sent_s = world.samples / SPEC.sample_rate
    delay_s = session._queue.row_delay_s(world.now, ROW_S)
    assert 0 < delay_s <= sent_s / 2
    assert session._queue.row_delay_s(world.now + sent_s, ROW_S) == 0, "the listener has run dry"


def test_row_delay_before_first_chunk_is_half_of_missing_rows() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    delays: list[tuple[float, float]] = []
    while not world.windows:
        delays.append((world.now, world.session._queue.row_delay_s(world.now, ROW_S)))
        world.run(until=world.now + ROW_S)
    assert delays[0][1] >= 3 * ROW_S
    assert all(at + 2 * delay_s <= world.now + 1e-9 for at, delay_s in delays)
    delay_s = world.session._queue.row_delay_s(world.now, ROW_S)
    assert delay_s <= world.windows[0].window.new_frames * SPEC.frame_s / 2


def test_row_delay_leaves_time_for_two_windows() -> None:
    plan = settings()
    dear = replace(plan.queue.bounds(), queue_s=0.15)
    world = World(replace(plan, queue=replace(plan.queue, bounds=lambda: dear)), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    queue, schedule, looks = world.session._queue, plan.queue.schedule, 0
    context = schedule.left_context_frames + schedule.lookahead_frames
    while world.now < 1.5 and queue._utterances:
        world.run(until=world.now + 0.001)
        head = queue._utterances[0] if queue._utterances else None
        if not world.sent or head is None or head.decoding is None:
            continue
        needed_s = dear.wait_s + dear.decode_s(context + head.waiting_frames)
        lead_s = queue.lead_s(world.now) + head.decoding.new_frames * SPEC.frame_s
        delay_s = world.session._queue.row_delay_s(world.now, ROW_S)
        assert delay_s <= max(0.0, lead_s - 2 * needed_s) / 2 + 1e-9
        looks += 1
    assert looks


def test_whole_mode_does_not_delay_rows() -> None:
    world = World(settings("whole"))
    world.post(TextAppended("A sentence of some length. "))
    world.run(until=0.05)
    assert world.session._queue.row_delay_s(world.now, ROW_S) == 0

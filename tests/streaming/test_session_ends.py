"""How contexts end: with nothing to say, refused text, failures, at their longest."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.events import (
    Broke,
    CancelAsked,
    Done,
    EndAsked,
    FlushAsked,
    NothingToSay,
    RowsCame,
    TextAppended,
)
from streaming.ports import TalkerRows
from tests.streaming.session_world import ROW_S, SPEC, World, rows_of, settings


def test_an_utterance_with_nothing_to_say_is_passed_over() -> None:
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


def test_a_context_with_nothing_to_say_at_all_ends_with_an_error() -> None:
    world = World(settings())
    world.post(TextAppended("\N{SMILING FACE WITH SUNGLASSES}"))
    world.post(EndAsked())
    world.post(NothingToSay(0))
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.reason == "error"
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_a_context_without_text_ends_with_an_error() -> None:
    world = World(settings())
    world.post(TextAppended(""))
    world.post(EndAsked())
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_text_after_the_end_is_refused_and_changes_nothing() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence."))
    world.post(EndAsked())
    for event in (TextAppended("More."), FlushAsked("f"), EndAsked()):
        with pytest.raises(RequestError) as caught:
            world.post(event)
        assert caught.value.code is ErrorCode.CONTEXT_CLOSED
    world.run()
    assert world.talked == ["One sentence."]


def test_text_over_the_limit_is_refused_whole_and_the_rest_goes_on() -> None:
    world = World(settings(chars=20))
    world.post(TextAppended("Ten chars."))
    with pytest.raises(RequestError) as caught:
        world.post(TextAppended(" Too many here."))
    assert caught.value.code is ErrorCode.TEXT_TOO_LONG
    world.post(TextAppended(" Fits."))
    world.post(EndAsked())
    world.run()
    assert "".join(world.talked).replace(" ", "") == "Tenchars.Fits."


def test_a_failure_ends_the_context_with_its_error() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence. "))
    error = BackendError(ErrorCode.ENGINE_FAILED, "no")
    world.post(Broke(error))
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].error is error
    assert world.session.handle(TextAppended("x"), 0.0) == []


def test_an_utterance_at_its_longest_is_told() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence."))
    world.post(EndAsked())
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))[:9]
    world._rows = [(0.1, RowsCame(0, TalkerRows(rows, "length")))]
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "length"
    assert world.samples == (9 - SPEC.num_codebooks + 1) * SPEC.hop_length


def test_a_pause_in_the_text_is_no_underrun() -> None:
    world = World(settings(), frames=10)
    world.post(TextAppended("One is here. "))
    world.run(5.0)
    world.post(TextAppended("Two is here. "))
    world.post(EndAsked())
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].report.underruns == 0
    assert not any(audio.late for audio in world.sent)


def test_rows_may_pile_up_only_while_enough_is_playing() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    session = world.session
    assert session.row_patience_s(0.0, 0.0) == 0, "nobody knows how fast they come"
    world.run(until=0.5)
    assert world.sent
    sent_s = world.samples / SPEC.sample_rate
    patience_s = session.row_patience_s(world.now, ROW_S)
    assert 0 < patience_s <= sent_s / 2
    assert session.row_patience_s(world.now + sent_s, ROW_S) == 0, "the listener has run dry"
    world.post(CancelAsked())
    assert session.row_patience_s(world.now, ROW_S) == 0


def test_before_the_first_sound_rows_pile_up_for_half_of_what_it_is_short_of() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A sentence of some length. "))
    patience: list[tuple[float, float]] = []
    while not world.windows:
        patience.append((world.now, world.session.row_patience_s(world.now, ROW_S)))
        world.run(until=world.now + ROW_S)
    assert patience[0][1] >= 3 * ROW_S
    assert all(at + 2 * nap_s <= world.now + 1e-9 for at, nap_s in patience)
    napping_s = world.session.row_patience_s(world.now, ROW_S)
    assert napping_s <= world.windows[0].window.new_frames * SPEC.frame_s / 2


def test_whole_mode_takes_each_row_at_once() -> None:
    world = World(settings("whole"))
    world.post(TextAppended("A sentence of some length. "))
    world.run(until=0.05)
    assert world.session.row_patience_s(world.now, ROW_S) == 0

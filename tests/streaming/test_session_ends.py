"""Ends of contexts: without speech, by failure, at maximum length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.events import (
    Cancelled,
    CancelRequested,
    Done,
    EndRequested,
    Failed,
    Flushed,
    FlushRequested,
    NothingToSay,
    RowsReceived,
    TextAppended,
)
from streaming.ports import Arrival, TalkerRows
from tests.streaming.session_world import ROW_S, SPEC, World, is_of, rows_of, settings, words_of


def spoken(batch: TalkerRows, text: str = "One sentence.", at: float = 0.1) -> World:
    """A context with one utterance, whose rows come in one batch."""
    world = World(settings())
    world.post(TextAppended(text))
    world.post(EndRequested())
    world._rows = [(at, RowsReceived(0, batch))]
    world.run()
    return world


def test_utterance_with_nothing_to_say_is_skipped() -> None:
    world = World(settings())
    world.post(TextAppended("Great! \N{SMILING FACE WITH SUNGLASSES}"))
    world.post(EndRequested())
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
    world.post(EndRequested())
    world.post(NothingToSay(0))
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.reason == "error"
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_flush_after_utterance_with_nothing_to_say_is_told_after_silence() -> None:
    world = World(replace(settings(), silence_s=0.25))
    world.post(TextAppended("Great! "))
    world._rows.clear()
    world.post(NothingToSay(0))
    assert world.sent == []
    world.post(FlushRequested("f1"))
    world.post(FlushRequested("f2"))
    assert world.told[1:] == [*world.sent, Flushed("f1"), Flushed("f2")]
    assert [len(audio.samples) for audio in world.sent] == [round(0.25 * SPEC.sample_rate)]


@pytest.mark.parametrize(("text", "silent"), [("\N{PARTY POPPER}", True), ("\u041f\u0430", False)])
def test_only_symbols_are_silent_and_only_at_end(text: str, silent: bool) -> None:
    world = World(replace(settings(), silence_s=0.25, only_symbols_silent=True))
    world.post(TextAppended(text))
    world.post(FlushRequested("f"))
    world._rows.clear()
    world.post(NothingToSay(0))
    assert world.told[-1] == Flushed("f")
    assert world.sent == []
    world.post(EndRequested())
    done = world.told[-1]
    assert isinstance(done, Done)
    assert (done.reason == "complete") is silent
    assert bool(world.sent) is silent


def test_context_without_text_ends_with_error() -> None:
    world = World(settings())
    world.post(TextAppended(""))
    world.post(EndRequested())
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.error is not None
    assert done.error.code is ErrorCode.INVALID_TEXT


def test_request_after_end_is_refused_without_effect() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence."))
    world.post(EndRequested())
    for event in (TextAppended("More."), FlushRequested("f"), EndRequested()):
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
    world.post(TextAppended(" It fits!!"))  # exactly
    world.post(EndRequested())
    world.run()
    assert "".join(world.talked).replace(" ", "") == "Tenchars.Itfits!!"


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


def test_context_with_cut_utterance_before_complete_one_ends_with_reason_length() -> None:
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))
    world = World(settings())
    world.post(TextAppended("One sentence. Another one."))
    world.post(EndRequested())
    world._rows = [(0.1, RowsReceived(0, TalkerRows(rows[:9], "length")))]
    world.run(until=0.1)
    assert world.talked == ["One sentence.", "Another one."]
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "length"


def test_text_of_cut_utterance_is_unspoken_until_later_audio_is_heard() -> None:
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))
    world = World(settings())
    world.post(TextAppended("One two three four five six. "))
    world._rows = [(0.1, RowsReceived(0, TalkerRows(rows[:9], "length")))]
    world.run(until=30.0)
    world.post(CancelRequested())
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    spoken_and_rest = (cancelled.text_spoken, cancelled.text_remaining)
    assert spoken_and_rest == ("One", " two three four five six. ")


def test_end_code_in_last_allowed_row_is_complete() -> None:
    world = spoken(TalkerRows(rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16)), "length"))
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "complete"


def test_words_beyond_maximum_length_are_not_reported() -> None:
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))[:9]
    first_word = np.zeros(9, np.float32)  # position in the text of each row
    text = "One two three four five six seven eight nine ten eleven twelve thirteen."
    world = spoken(TalkerRows(rows, "length", first_word), text)
    assert [word.text for word in words_of(world)] == ["One"]


def test_words_of_frames_that_are_never_complete_are_not_reported() -> None:
    """The talker's last rows lack codes, so that the words they begin are not heard."""
    rows = rows_of(np.full((9, SPEC.num_codebooks), 7, np.int16))[:9]
    heard = 9 - SPEC.num_codebooks + 1
    places = np.where(np.arange(9) < heard, 1, 5).astype(np.float32)
    world = spoken(TalkerRows(rows, "length", places), "One two three four.")
    words = words_of(world)
    assert [word.text for word in words] == ["One"]


def test_last_word_that_talker_does_not_quite_reach_has_a_duration() -> None:
    rows = rows_of(np.full((12, SPEC.num_codebooks), 200, np.int16))
    places = np.minimum(np.arange(len(rows)) / 3, 3.4).astype(np.float32)
    world = spoken(TalkerRows(rows, "stop", places), "One two.")
    words = words_of(world)
    assert [word.text for word in words] == ["One", "two."]
    assert all(word.start_ms < word.end_ms for word in words)


def test_last_word_is_spoken_once_all_audio_is_played() -> None:
    """At this speed its end, in tenths of a millisecond, is rounded to beyond the audio."""
    frames = np.full((12, SPEC.num_codebooks), 200, np.int16)
    rows, text = rows_of(frames), "One two. "
    places = np.interp(np.arange(len(rows)), [0, 12], [0, len(text)]).astype(np.float32)
    world = World(settings(speed=1.1))
    world.post(TextAppended(text))
    world._rows = [(0.1, RowsReceived(0, TalkerRows(rows, "stop", places)))]
    world.run(until=30.0)
    world.post(CancelRequested())
    words = words_of(world)
    assert [word.text for word in words] == ["One", "two."]
    assert words[-1].end_ms > 1000 * world.samples / (1.1 * SPEC.sample_rate)
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert (cancelled.text_spoken, cancelled.text_remaining) == ("One two.", " ")


def test_rtf_ends_at_arrival_of_last_row() -> None:
    rows = rows_of(np.full((20, SPEC.num_codebooks), 7, np.int16))
    batch = TalkerRows(rows, "stop", None, (Arrival(len(rows), 0.2),))
    soon, late = (spoken(batch, at=at).told[-1] for at in (0.2, 0.6))
    assert isinstance(soon, Done)
    assert isinstance(late, Done)
    assert soon.report.rtf == late.report.rtf


def test_late_utterance_whose_text_came_in_time_is_underrun() -> None:
    world = World(settings(), frames=10)
    world.post(TextAppended("One is here. Two is here."))
    world.post(EndRequested())
    while len(world.talked) < 2:
        world.run(until=world.now + ROW_S)
    world._rows = [(at + 5.0 * is_of(e, 1), e) for at, e in world._rows]
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].report.underruns == 1
    assert [audio.late for audio in world.sent if audio.gap_s] == [True]


def test_pause_in_text_is_no_underrun() -> None:
    world = World(settings(), frames=10)
    world.post(TextAppended("One is here. "))
    world.run(5.0)
    world.post(TextAppended("Two is here. "))
    world.post(EndRequested())
    world.run()
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].report.underruns == 0
    assert not any(audio.late for audio in world.sent)

"""Contexts whose text is spoken word by word while it arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.delay import RowLayout
from streaming.events import (
    AppendText,
    AudioDecoded,
    Cancelled,
    CancelRequested,
    Command,
    Decode,
    Done,
    EndRequested,
    Event,
    Flushed,
    FlushRequested,
    NothingToSay,
    RowsReceived,
    SendAudio,
    StartTalker,
    TextAppended,
)
from streaming.ports import TalkerRows
from streaming.session import Session, SessionSettings, State
from tests.streaming.session_world import SPEC, settings
from text.segmenter import SegmentSettings


def by_words(chars: int = 300) -> SessionSettings:
    made = settings(chars=100_000)
    return replace(
        made,
        queue=replace(made.queue, layout=RowLayout.WHOLE),
        segments=SegmentSettings(chars),
        by_words=True,
    )


class Talk:
    """A session, the text that its talker has of each utterance, and its codec."""

    def __init__(self, config: SessionSettings | None = None) -> None:
        self.session, self.now = Session(config or by_words()), 0.0
        self.texts: dict[int, str] = {}
        self.complete: set[int] = set()
        self.told: list[Command] = []
        self.sent: list[SendAudio] = []

    def post(self, event: Event) -> None:
        for command in self.session.handle(event, self.now):
            match command:
                case StartTalker(utterance, text, is_open=is_open):
                    assert utterance not in self.texts
                    assert is_open is not None
                    self.texts[utterance] = text
                    self.complete |= set() if is_open else {utterance}
                case AppendText(utterance, text, is_last):
                    assert utterance not in self.complete
                    self.texts[utterance] += text
                    self.complete |= {utterance} if is_last else set()
                case Decode(utterance, window):
                    samples = np.full(window.new_frames * SPEC.hop_length, 0.5, np.float32)
                    self.now += 0.001
                    self.post(AudioDecoded(utterance, samples))
                case SendAudio():
                    self.sent.append(command)
                case _:
                    self.told.append(command)

    def write(self, text: str) -> None:
        for letter in text:
            self.post(TextAppended(letter))

    def speak(self, utterance: int, rows: int, **more: object) -> None:
        codes = np.full((rows, SPEC.num_codebooks), 7, np.int16)
        self.post(RowsReceived(utterance, TalkerRows(codes, **more), 0.005))  # type: ignore[arg-type]

    @property
    def frames(self) -> float:
        return sum(len(audio.samples) for audio in self.sent) / SPEC.hop_length


def test_words_go_to_running_generation() -> None:
    talk = Talk()
    talk.write("The quick brown")
    assert (talk.texts, talk.complete) == ({0: "The quick"}, set())
    talk.write(" fox. It jumps")
    assert talk.texts == {0: "The quick brown fox. It"}
    talk.post(EndRequested())
    assert (talk.texts, talk.complete) == ({0: "The quick brown fox. It jumps"}, {0})
    talk.speak(0, 40, finish="stop")
    assert talk.frames == 40
    assert isinstance(talk.told[-1], Done)
    assert talk.told[-1].reason == "complete"


def test_audio_is_sent_before_text_has_ended() -> None:
    talk = Talk()
    talk.write("The quick brown fox jum")
    talk.speak(0, 30)
    assert talk.frames > 0
    assert not talk.session.is_idle


@pytest.mark.parametrize("rows", [0, 30])
def test_context_is_idle_only_while_talker_waits_for_text(rows: int) -> None:
    talk = Talk()
    talk.write("The quick bro")
    assert not talk.session.is_idle
    talk.speak(0, rows, waits=True)
    assert talk.session.is_idle
    assert not talk.session.is_settled  # the text's end is not spoken yet
    talk.write("wn fox")
    assert not talk.session.is_idle


def test_gap_while_talker_waits_is_no_underrun() -> None:
    talk = Talk()
    talk.write("The quick bro")
    talk.speak(0, 20, waits=True)
    before = talk.frames
    assert before > 0
    talk.now += 30.0
    talk.write("wn fox jumps")
    talk.speak(0, 20)
    assert talk.frames > before
    assert not any(audio.late for audio in talk.sent)
    sent = len(talk.sent)
    talk.now += 30.0  # but the talker's own gaps are
    talk.speak(0, 20)
    assert any(audio.late for audio in talk.sent[sent:])


def test_next_utterance_waits_for_end_of_first() -> None:
    talk = Talk(by_words(20))
    talk.write("One two. Three four. Five si")
    assert talk.texts == {0: "One two. Three four."}
    assert talk.complete == {0}
    talk.speak(0, 40, finish="stop")
    assert talk.texts[1] == "Five"
    assert talk.complete == {0}
    talk.post(EndRequested())
    assert talk.texts[1] == "Five si"
    assert talk.complete == {0, 1}


def test_flush_ends_utterance_and_is_told_after_its_audio() -> None:
    talk = Talk()
    talk.write("The quick brown")
    talk.post(FlushRequested("f"))
    assert (talk.texts, talk.complete) == ({0: "The quick brown"}, {0})
    talk.write("fox ju")
    assert 1 not in talk.texts
    talk.speak(0, 40, finish="stop")
    assert talk.told[-1] == Flushed("f")
    assert talk.texts[1] == "fox"


def test_pause_in_text_ends_utterance() -> None:
    talk = Talk()
    talk.write('One two <break time="500ms"/> three fo')
    assert (talk.texts, talk.complete) == ({0: "One two"}, {0})


def test_cancel_divides_text_at_what_was_heard() -> None:
    talk = Talk()
    talk.write("The quick brown fox jum")
    talk.speak(0, 30)
    talk.post(CancelRequested(played_samples=0))
    cancelled = talk.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert (cancelled.text_spoken, cancelled.text_remaining) == ("", "The quick brown fox jum")
    assert talk.session.state is State.CLOSED


def test_text_after_maximum_length_is_lost_up_to_end_of_utterance() -> None:
    talk = Talk()
    talk.write("The quick brown")
    talk.speak(0, 20, finish="length")
    talk.write(" fox jumps")
    assert talk.texts == {0: "The quick"}
    assert talk.session.is_idle
    talk.post(EndRequested())
    assert isinstance(talk.told[-1], Done)
    assert talk.told[-1].reason == "length"
    assert talk.frames == 20


def test_text_that_turns_out_unspeakable_ends_after_its_frames() -> None:
    talk = Talk()
    talk.write("The quick brown")
    talk.speak(0, 5)
    talk.post(NothingToSay(0))
    talk.post(EndRequested())
    assert talk.frames == 5
    assert isinstance(talk.told[-1], Done)


def test_marks_alone_are_asked_for_only_at_end() -> None:
    talk = Talk()
    talk.write("... !! ")
    assert talk.texts == {}
    talk.post(EndRequested())
    assert (talk.texts, talk.complete) == ({0: "... !!"}, {0})

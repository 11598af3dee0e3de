"""Turns: the text of a generation and its delivery."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from streaming.errors import CapacityError
from streaming.events import (
    EndRequested,
    Flushed,
    FlushRequested,
    StartTalker,
    StopTalker,
    TextAppended,
    TimerFired,
)
from streaming.session import Session, SessionSettings
from tests.streaming.session_world import ROW_S, SPEC, World, settings
from text.segmenter import SegmentSettings
from text.turns import PendingText, TurnSettings, chars_within, speech_chars

DELIVERY = {
    "<|emotion:anger|>": "emotion",
    "<|emotion:sadness|>": "emotion",
    "<|style:shouting|>": "style",
    "<|prosody:speed_slow|>": "speed",
}
SHOUTED = "<|emotion:anger|><|style:shouting|>No, that is not okay! We cannot ship it."
CRIED = "<|emotion:sadness|><|sfx:crying|>I... I'm sorry. <|sfx:sniff|>Sff, We really tried."


def turning(most: int = 600) -> SessionSettings:
    return replace(settings(), turns=TurnSettings(most, DELIVERY))


def starts(session: Session, *events: object) -> list[tuple[str, str]]:
    """Delivery and text of the talker's requests, without those that were stopped."""
    asked: list[tuple[str, str]] = []
    for event in events:
        for command in session.handle(event, 0.0):  # type: ignore[arg-type]
            if isinstance(command, StartTalker):
                asked.append((command.delivery, command.text))
            elif isinstance(command, StopTalker):
                asked.pop()
    return asked


@pytest.mark.parametrize("text", [SHOUTED, CRIED, "One. Two is here.\n\nAnd a third paragraph."])
@pytest.mark.parametrize("last", [EndRequested(), FlushRequested("f")])
def test_complete_text_is_spoken_unchanged_in_one_generation(text: str, last: object) -> None:
    assert starts(Session(turning()), TextAppended(text), last) == [("", text)]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_talker_is_restarted_only_before_first_rows(rows: int) -> None:
    world = World(turning())
    world.post(TextAppended("The first sentence. The second"))
    assert world.talked == ["The first sentence."]
    world.run(until=(rows + 0.5) * ROW_S)
    world.post(TextAppended(" one is here. And the"))
    world.post(TextAppended(" third."))
    world.post(FlushRequested("f"))
    world.run()
    first, rest = "The first sentence.", "The second one is here. And the third."
    assert world.talked == ([first, rest] if rows else [f"{first} {rest}"])
    assert world.told[-1] == Flushed("f")


def test_unfinished_turn_is_spoken_sentence_by_sentence() -> None:
    world = World(turning())
    world.post(TextAppended("The first sentence. The second sentence. The third sentence. "))
    world.run()
    assert world.talked == [f"The {nth} sentence." for nth in ("first", "second", "third")]


def test_long_turn_is_split_evenly() -> None:
    sentences = [f"This is the sentence {letter * 7}." for letter in "abcdefghij"]
    world = World(turning(most=200))
    world.post(TextAppended(" ".join(sentences)))
    world.post(EndRequested())
    world.run()
    assert " ".join(world.talked) == " ".join(sentences)
    assert [text.count("sentence") for text in world.talked] == [5, 5]


def test_talker_is_not_restarted_for_text_that_it_will_not_get() -> None:
    session = Session(turning(most=100))
    texts = [f"This is the sentence {letter * 7}. " for letter in "abcdefg"]
    asked = starts(session, TextAppended("".join(texts)), FlushRequested("f"))
    assert asked == [("", "".join(texts[:3]).strip())]
    again = [
        FlushRequested("g"),
        FlushRequested("h"),
        TextAppended("More."),
        FlushRequested("i"),
        EndRequested(),
    ]
    for event in again:
        assert not [c for c in session.handle(event, 0.0) if isinstance(c, StopTalker)]


def test_refused_flush_leaves_talker_as_it_is() -> None:
    session = Session(turning(most=100))
    text = "".join(f"This is the sentence {letter * 7}. " for letter in "abcdefg")
    running: list[int] = []
    events = [
        TextAppended(text),
        *(FlushRequested(str(number)) for number in range(65)),
        TimerFired(),
    ]
    for event in events:
        with suppress(CapacityError):
            for command in session.handle(event, 0.0):
                if isinstance(command, StartTalker):
                    running.append(command.utterance)
                elif isinstance(command, StopTalker):
                    running.remove(command.utterance)
    assert running == [0]


def test_text_takes_64_flushes() -> None:
    session = Session(turning())
    session.handle(TextAppended("A sentence."), 0.0)
    for number in range(64):
        session.handle(FlushRequested(str(number)), 0.0)
    with pytest.raises(CapacityError, match="64 flushes"):
        session.handle(FlushRequested("64"), 0.0)


def test_flush_ends_turn_and_its_delivery() -> None:
    world = World(turning())
    world.hold = True
    world.post(TextAppended("<|emotion:anger|>One sentence. Another sentence."))
    world.post(FlushRequested("f1"))
    world.post(TextAppended("Then a third one. And a fourth."))
    world.post(FlushRequested("f2"))
    world.hold = False
    world.run()
    assert world.talked[-2:] == [
        "<|emotion:anger|>One sentence. Another sentence.", "Then a third one. And a fourth.",
    ]  # fmt: skip
    assert world.delivered == ["", ""]
    assert [t for t in world.told if isinstance(t, Flushed)] == [Flushed("f1"), Flushed("f2")]


def test_turn_that_ends_after_talker_was_asked_is_not_joined_to_next() -> None:
    world = World(turning())
    world.hold = True
    world.post(TextAppended("The first sentence. "))
    world.post(FlushRequested("f1"))
    world.post(TextAppended("The second one is here."))
    world.post(FlushRequested("f2"))
    world.hold = False
    world.run()
    assert world.talked == ["The first sentence.", "The second one is here."]
    assert [t for t in world.told if isinstance(t, Flushed)] == [Flushed("f1"), Flushed("f2")]


def test_long_turn_has_no_generation_over_maximum_length() -> None:
    pending = PendingText(TurnSettings(100, DELIVERY))
    for letter in "abc":  # an even half would be 90 characters, which needs two of them
        pending.add(letter * 60, 0.0)
    pending.end_turn()
    assert [len(pending.take()) for _ in range(3)] == [1, 1, 1]


def test_piece_repeats_delivery_in_force() -> None:
    pending = PendingText(TurnSettings(0, DELIVERY))
    for text in (
        "<|emotion:anger|> <|style:shouting|>No!",
        "<|prosody:pause|>That is not okay.",
        "<|emotion:sadness|>It is sad.",
        "<|sfx:sigh|>Ah, well <|prosody:speed_slow|>then.",
        "So be it.",
    ):
        pending.add(text, 0.0)
    pending.end_turn()
    pending.add("Hello.", 0.0)
    before = [pending.take()[0].before for _ in range(6)]
    angry, sad = "<|emotion:anger|><|style:shouting|>", "<|emotion:sadness|><|style:shouting|>"
    assert before == [
        "", angry, "<|style:shouting|>", sad, f"{sad}<|prosody:speed_slow|>", "",
    ]  # fmt: skip


def spelled_out(text: str) -> list[int]:
    """Lengths of a text in which each word takes as long to say as ten letters."""
    return [10 * len(text[:end].split()) for end in range(len(text) + 1)]


def test_part_of_generation_has_delivery_in_force_where_it_begins() -> None:
    segments = SegmentSettings(max_chars=90, spoken_lengths=spelled_out)
    world = World(replace(turning(most=90), segments=segments))
    world.hold = True
    parts = [
        "<|emotion:anger|>No! It is not, no. <|emotion:sadness|>I am so sorry.",
        "It is a pity.",
    ]
    world.post(TextAppended(" ".join(parts)))
    world.post(EndRequested())
    world.hold = False
    world.run()
    assert world.talked == parts
    assert world.delivered == ["", "<|emotion:sadness|>"]


@pytest.mark.parametrize("is_held", [True, False])
def test_flush_of_text_in_several_utterances_is_told_after_last(is_held: bool) -> None:
    """The turn's end comes before the talker's first rows, or after them."""
    segments = SegmentSettings(max_chars=90, spoken_lengths=spelled_out)
    world = World(replace(turning(most=90), segments=segments))
    world.hold = is_held
    parts = ["One two three four five six", "seven eight nine ten eleven twelve."]
    world.post(TextAppended(" ".join(parts) + " And"))
    world.run(until=2 * ROW_S)
    world.post(TextAppended(" more."))
    world.post(FlushRequested("f"))
    world.hold = False
    world.run()
    assert world.talked == [*parts, "And more."]
    assert world.told[-1] == Flushed("f")
    assert world.samples == 3 * world.frames * SPEC.hop_length


def test_flush_of_utterances_of_one_generation_is_told_after_last() -> None:
    segments = SegmentSettings(max_chars=90, spoken_lengths=spelled_out)
    world = World(replace(turning(most=90), segments=segments))
    world.post(TextAppended("One two three four five six seven eight nine ten eleven twelve."))
    world.post(FlushRequested("f"))
    world.run()
    assert len(world.talked) == 2
    assert world.told[-1] == Flushed("f")
    assert sum(isinstance(told, Flushed) for told in world.told) == 1


def test_pieces_are_spoken_separately_without_max_chars() -> None:
    world = World(turning(most=0))
    world.post(TextAppended(SHOUTED))
    world.post(EndRequested())
    world.run()
    first, second = SHOUTED.split("! ")
    assert world.talked == [f"{first}!", second]
    assert world.delivered == ["", "<|emotion:anger|><|style:shouting|>"]


def test_speech_chars_counts_spoken_length() -> None:
    assert speech_chars("Hello.") == 6
    assert speech_chars("你好") == speech_chars("안녕") == speech_chars("ｱｲ") == 6
    assert speech_chars("24") == speech_chars("２４") == 8
    assert speech_chars("好，好！") == 8
    assert speech_chars("Ok \N{GRINNING FACE}") == 4
    assert chars_within(2048, 0.04) == 655


def test_speaker_tag_holds_until_next_speaker() -> None:
    speakers = {f"[SPEAKER{number}] ": "speaker" for number in range(2)}
    pending = PendingText(TurnSettings(0, speakers))
    for text in ("[SPEAKER0] Hello there.", "How are you?", "[SPEAKER1] Fine.", "And you?"):
        pending.add(text, 0.0)
    before = [pending.take()[0].before for _ in range(4)]
    assert before == ["", "[SPEAKER0] ", "", "[SPEAKER1] "]

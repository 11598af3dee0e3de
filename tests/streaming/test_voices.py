"""Voices that change within a context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streaming.errors import RequestError
from streaming.events import (
    Cancelled,
    CancelRequested,
    Done,
    EndRequested,
    Event,
    FlushRequested,
    TextAppended,
    VoiceChanged,
)
from streaming.session import Session
from tests.streaming.session_world import ROW_S, Aligned, World, settings, words_of
from text.turns import TurnSettings

#: Lines without spaces between them: a change of the voice separates them.
LINES = [("emma", "Who is there?"), ("adam", "It is me"), ("adam", "Open up!"), ("emma", "Never.")]
TURNING = replace(settings(), turns=TurnSettings(600))


def dialogue(*lines: tuple[str | None, str]) -> list[Event]:
    events: list[Event] = []
    for voice, text in lines:
        events += [VoiceChanged(voice), TextAppended(text)]
    return events


@pytest.mark.parametrize("config", [settings(), TURNING], ids=["pieces", "turns"])
def test_each_line_is_a_generation_in_its_own_voice(config: object) -> None:
    world = World(TURNING if config is TURNING else settings())
    for event in (*dialogue(*LINES), EndRequested()):
        world.post(event)
    world.run()
    assert list(zip(world.voices, world.talked, strict=True)) == LINES
    assert isinstance(world.told[-1], Done)
    assert [audio.late for audio in world.sent] == [False] * len(world.sent)


def test_text_before_a_change_is_not_spoken_by_the_later_voice() -> None:
    """Also if the talker has sent nothing yet, when the rest of a turn would still join it."""
    world = World(TURNING)
    for event in (TextAppended("One. Tw"), *dialogue(("adam", "o, it ends."), (None, "Three."))):
        world.post(event)
    world.post(FlushRequested("f"))
    world.run()
    said = list(zip(world.voices, world.talked, strict=True))
    assert said == [(None, "One. Tw"), ("adam", "o, it ends."), (None, "Three.")]


def test_next_line_is_generated_while_the_one_before_is_sent() -> None:
    world = World(TURNING)
    for event in (*dialogue(("emma", "A line."), ("adam", "Another.")), EndRequested()):
        world.post(event)
    world.run(ROW_S * 60)  # the first line has 40 frames of 40 ms
    assert world.voices == ["emma", "adam"]
    assert world.session.speed == 1.0
    assert world.samples < 24_000 * 0.04 * 80


def test_words_have_their_places_in_the_whole_text() -> None:
    world = Aligned(TURNING)
    for event in (*dialogue(*LINES), EndRequested()):
        world.post(event)
    world.run()
    whole = "".join(text for _, text in LINES)
    assert [word.text for word in words_of(world)] == " ".join(text for _, text in LINES).split()
    assert all(whole[word.start : word.end] == word.text for word in words_of(world))


def test_cancel_splits_the_text_of_all_voices() -> None:
    world = World(TURNING)
    for event in (*dialogue(*LINES), EndRequested()):
        world.post(event)
    world.run(0.5)
    rate = 24_000
    world.post(CancelRequested(played_samples=int(1.7 * rate)))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.text_spoken.startswith("Who is there?")
    assert cancelled.text_spoken + cancelled.text_remaining == "".join(text for _, text in LINES)


def test_voice_does_not_change_after_the_end() -> None:
    session = Session(TURNING)
    for event in (TextAppended("A line."), EndRequested()):
        session.handle(event, 0.0)
    with pytest.raises(RequestError):
        session.handle(VoiceChanged("adam"), 0.0)

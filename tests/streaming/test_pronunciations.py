"""Rules of pronunciation in a context: what the talker gets, and what the client is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streaming.events import Cancelled, CancelRequested, EndRequested, TextAppended, Warned
from streaming.session import SessionSettings
from tests.streaming.session_world import Aligned, World, settings, words_of
from text.markup.rendering import Rendering
from text.pronunciation.in_band import SOUNDED
from text.pronunciation.rules import Rule, RuleSet
from text.registry import FRONT_ENDS

RULES = RuleSet(
    [
        Rule("Worcester", phonemes="ˈwʊstər"),
        Rule("k8s", alias="kubernetes and such", case_sensitive=False),
        Rule("Tom Yum", phonemes="ˈtɑm ˈjʌm"),
    ]
)
TEXT = "In Worcester, K8s is hard. Ask Tom Yum's friend."


def with_rules(*sets: RuleSet, speaks_phonemes: bool = True) -> SessionSettings:
    signs_of = FRONT_ENDS["english-sounds"].signs_of if speaks_phonemes else None
    rendering = replace(Rendering(), signs_of=signs_of)
    return replace(settings(), pronunciations=sets, rendering=rendering)


def spoken(world: World) -> list[str]:
    """What the talker gets, with words by their sounds between slashes."""
    return [SOUNDED.sub(r"/\g<sounds>/", text) for text in world.talked]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_words_of_the_client_are_timed_as_it_wrote_them(step: int) -> None:
    world = Aligned(with_rules(RULES), frames=40)
    for at in range(0, len(TEXT), step):
        world.post(TextAppended(TEXT[at : at + step]))
    world.post(EndRequested())
    world.run()
    assert spoken(world) == [
        "In /wˈʊstər/, kubernetes and such is hard.", "Ask /tˈɑm/ /Jˈʌm/'s friend.",
    ]  # fmt: skip
    words = words_of(world)
    assert [word.text for word in words] == [
        "In", "Worcester", "K8s", "is", "hard.", "Ask", "Tom Yum's", "friend.",
    ]  # fmt: skip
    assert all(TEXT[word.start : word.end] == word.text for word in words)


def test_cancel_tells_the_text_as_it_was_written() -> None:
    world = Aligned(with_rules(RULES), frames=40)
    world.post(TextAppended(TEXT))
    world.post(EndRequested())
    world.run()
    for played in range(0, world.samples, 960):
        again = Aligned(with_rules(RULES), frames=40)
        again.post(TextAppended(TEXT))
        again.run()
        again.post(CancelRequested(played_samples=played))
        told = again.told[-1]
        assert isinstance(told, Cancelled)
        assert told.text_spoken + told.text_remaining == TEXT
        assert not SOUNDED.search(told.text_spoken)


def test_voice_without_phonemes_speaks_the_word_and_warns_once() -> None:
    world = World(with_rules(RULES, speaks_phonemes=False))
    world.post(TextAppended("Worcester is Worcester. "))
    world.post(EndRequested())
    world.run()
    assert world.talked == ["Worcester is Worcester."]
    assert [told.kind for told in world.told if isinstance(told, Warned)] == ["phoneme"]


def test_context_is_not_settled_while_a_word_is_held_back() -> None:
    world = World(with_rules(RULES))
    world.post(TextAppended("Hello there. "))
    world.run()
    assert world.session.is_settled
    world.post(TextAppended("Worc"))
    assert not world.session.is_settled

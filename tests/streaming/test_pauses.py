"""Pauses in the text: exact silence at its place, whatever else happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from streaming.events import (
    Cancelled,
    CancelRequested,
    Done,
    EndRequested,
    Flushed,
    FlushRequested,
    PlaybackReported,
    SendAudio,
    TextAppended,
    Warned,
)
from streaming.session import MAX_PAUSES_S, SessionSettings
from tests.streaming.session_world import (
    SPEC,
    Aligned,
    World,
    samples,
    settings,
    streamed,
    words_of,
)
from text.markup.elements import Pause, Substitute, Text
from text.markup.reader import MarkupReader
from text.turns import SentencePauses, TurnSettings

RATE = SPEC.sample_rate


def said(text: str, config: SessionSettings | None = None, **options: int) -> World:
    """A context that has spoken ``text``, received at once."""
    return streamed([text], config, **options)


def runs(world: World) -> list[tuple[int, int]]:
    """The utterances in the order of the audio, with the length of each; -1 is silence."""
    values = np.round(samples(world) * 1024).astype(int) - 100
    cuts = [0, *np.flatnonzero(np.diff(values)) + 1, len(values)]
    return [(max(-1, int(values[a])), b - a) for a, b in pairwise(cuts) if b > a]


def expected(text: str, world: World, rate: float = RATE) -> list[tuple[str, int]]:
    """The text before each pause, without blanks, and how long all silence there is."""
    reader = MarkupReader()
    before, pauses = "", list[tuple[str, int]]()
    for element in reader.push(text) + reader.flush(is_last=True):
        if isinstance(element, Pause):
            length = round(element.seconds * rate)
            if pauses and pauses[-1][0] == before:
                length += pauses.pop()[1]
            pauses.append((before, length))
        elif isinstance(element, Text | Substitute):
            before += "".join(element.text.split())
    return pauses


def found(world: World) -> list[tuple[str, int]]:
    """The same of the audio."""
    pauses, before = list[tuple[str, int]](), ""
    for utterance, length in runs(world):
        if utterance < 0:
            pauses.append((before, length))
        else:
            before = "".join("".join(world.talked[: utterance + 1]).split())
    return pauses


def test_pause_is_exact_silence_between_utterances() -> None:
    world = said('One. <break time="1.234s"/> Two.', frames=40)
    assert runs(world) == [(0, 40 * 960), (-1, round(1.234 * RATE)), (1, 40 * 960)]
    assert world.talked == ["One.", "Two."]
    assert np.all(samples(world)[40 * 960 :][: round(1.234 * RATE)] == 0)


def test_pause_within_a_sentence_ends_the_piece() -> None:
    world = said("Your code is [pause:300ms] four, [pause:0.3s] two.", frames=10)
    assert world.talked == ["Your code is", "four,", "two."]
    assert [length for utterance, length in runs(world) if utterance < 0] == [7200, 7200]


def test_pauses_may_come_first_and_last_and_alone() -> None:
    assert runs(said("[pause:1s]Hi.[pause:2s]", frames=10)) == [
        (-1, RATE), (0, 9600), (-1, 2 * RATE),
    ]  # fmt: skip
    world = World(settings())
    world.post(TextAppended("<speak><break time='1s'/></speak>"))
    world.post(EndRequested())
    world.run()
    assert runs(world) == [(-1, RATE)]
    assert isinstance(world.told[-1], Done)
    assert world.told[-1].reason == "complete"
    assert [audio.is_last for audio in world.sent] == [False, True]


def test_leading_silence_is_trimmed_but_a_pause_is_not() -> None:
    config = settings(trim_s=0.2)
    assert runs(said("[pause:1s]Hi.", config, frames=10))[0] == (-1, RATE)


@pytest.mark.parametrize("before", ["[pause:5s]", "[pause:1s] <break time='50ms'/> "])
def test_leading_pause_is_no_latency(before: str) -> None:
    plain, paused = (said(text + "Hi there.").told[-1] for text in ("", before))
    assert isinstance(plain, Done)
    assert isinstance(paused, Done)
    assert plain.report.ttfa_s is not None
    assert paused.report.ttfa_s is not None
    assert paused.report.ttfa_s <= plain.report.ttfa_s + 1e-6
    assert paused.report.leading_silence_s == plain.report.leading_silence_s


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_pause_is_as_long_at_any_speed(speed: float) -> None:
    world = said("One. [pause:1.5s] Two.", settings(speed=speed))
    assert [n for u, n in runs(world) if u < 0] == [round(1.5 * RATE * speed)]


def test_talker_goes_on_during_a_pause() -> None:
    world = World(settings(), frames=20)
    world.post(TextAppended("One. [pause:5s] Two. "))
    world.post(FlushRequested("f"))
    world.run(until=1.0)
    assert world.talked == ["One.", "Two."]
    assert world.samples / RATE >= 5.0, "the pause is sent ahead, too"


def test_pauses_in_a_row_are_one() -> None:
    world = said("One. [pause:1s] [pause:500ms]<break time='250ms'/> Two. [pause:1s]", frames=10)
    assert [n for u, n in runs(world) if u < 0] == [round(1.75 * RATE), RATE]
    assert world.talked == ["One.", "Two."]


@pytest.mark.parametrize("mark", ['<break time="5s"/>', "[pause:1ms]", "A.[pause:5s]"])
def test_many_pauses_are_bounded_silence_and_work(mark: str) -> None:
    config = replace(settings(max_lead_s=10_000.0), max_text_chars=10**7)
    world = World(config, frames=4)
    count = 300 if "A" in mark else 3000
    world.post(TextAppended(mark * count))
    world.post(EndRequested())
    world.run()
    assert isinstance(world.told[-1], Done)
    silence = sum(n for u, n in runs(world) if u < 0)
    assert silence == min(MAX_PAUSES_S, count * (5.0 if "5s" in mark else 0.001)) * RATE
    assert world.session.handle(EndRequested(), world.now) == []
    warned = [command for command in world.told if isinstance(command, Warned)]
    assert [command.kind for command in warned] == ["pause"] * ("5s" in mark)


def test_pause_keeps_to_the_leads_limit() -> None:
    world = World(settings(max_lead_s=1.0), frames=20)
    world.post(TextAppended("One. [pause:5s] Two. "))
    world.post(FlushRequested("f"))
    world.run(until=1.0)
    assert world.samples / RATE <= 1.0 + 1.0 + 0.5 + 0.1
    assert world.talked == ["One."]
    world.run(until=20.0)
    assert runs(world) == [(0, 19200), (-1, 5 * RATE), (1, 19200)]
    assert Flushed("f") in world.told


def test_flush_after_a_pause_waits_for_it() -> None:
    world = World(settings(max_lead_s=1.0), frames=20)
    world.post(TextAppended("One. [pause:3s]"))
    world.post(FlushRequested("f"))
    world.post(TextAppended("Two. "))
    world.post(FlushRequested("g"))
    world.run()
    sent, order = 0, []
    for told in world.told:
        if isinstance(told, SendAudio):
            sent += len(told.samples)
        elif isinstance(told, Flushed):
            order.append((told.flush_id, sent))
    assert order == [("f", 19200 + 3 * RATE), ("g", 19200 + 3 * RATE + 19200)]


def test_text_before_a_pause_is_one_generation_of_a_complete_turn() -> None:
    config = replace(settings(), turns=TurnSettings(500))
    assert said("One. Two. Three. [pause:1s] Four. Five.", config).talked[-1] == "Four. Five."


def test_turn_is_not_joined_across_a_pause() -> None:
    config = replace(settings(), turns=TurnSettings(500))
    world = World(config)
    world.post(TextAppended("One is long enough. [pause:1s]Two. "))
    world.post(EndRequested())
    world.run()
    assert world.talked == ["One is long enough.", "Two."]


TEXT = 'One two. <break time="2s"/> Three four.'


@pytest.mark.parametrize(
    ("played_s", "spoken"),
    [
        (0.0, ""),
        (0.4, "One "),
        (0.8, "One two. "),
        (1.8, "One two. "),
        (2.79, "One two. "),
        (2.8, TEXT[: TEXT.index(" Three")]),
        (3.3, TEXT[: TEXT.index("four")]),
        (3.6, TEXT),
    ],
)
def test_cancel_tells_the_text_around_a_pause(played_s: float, spoken: str) -> None:
    world = World(settings(), frames=20)
    world.post(TextAppended(TEXT))
    world.post(FlushRequested("f"))
    world.run(until=1.0)
    world.run(until=3.6 + world.now)
    world.post(CancelRequested(round(played_s * RATE)))
    told = world.told[-1]
    assert isinstance(told, Cancelled)
    assert (told.text_spoken, told.text_remaining) == (spoken, TEXT[len(spoken) :])


def test_cancel_while_a_pause_is_sent_tells_the_text_before_it() -> None:
    world = World(settings(max_lead_s=0.5), frames=20)
    world.post(TextAppended(TEXT))
    world.post(FlushRequested("f"))
    world.run(until=1.2)
    assert 0.8 * RATE < world.samples < 2.8 * RATE
    world.post(CancelRequested())
    told = world.told[-1]
    assert isinstance(told, Cancelled)
    assert told.text_remaining == TEXT[TEXT.index("<") :]
    assert told.sent_s == pytest.approx(world.samples / RATE)


def test_words_after_a_pause_are_exact() -> None:
    text = (
        "One two. [pause:1.2345s] <spell>A7</spell> is four. <sub alias='five of it'>5</sub> end."
    )
    world = Aligned(settings(), frames=40)
    world.post(TextAppended(text))
    world.post(EndRequested())
    world.run()
    words = words_of(world)
    assert [word.text for word in words] == ["One", "two.", "A7", "is", "four.", "5", "end."]
    assert all(text[word.start : word.end] == word.text for word in words)
    begins = dict(
        zip((word.text for word in words), (word.start_ms for word in words), strict=True)
    )
    pause_ms = 1000 * round(1.2345 * RATE) / RATE
    assert begins["A7"] == pytest.approx(1600 + pause_ms, abs=0.1)
    assert begins["5"] == pytest.approx(3200 + pause_ms, abs=0.1)


PIECES = st.sampled_from(
    [
        "One two. ", "a, b", "! ", " ", "\n\n", "Dr. No", "[pause:300ms]", '<break time="1s"/>',
        r"\{pause:500ms\}", "<spell>a7</spell>", "<b>c</b>", "[Bob] ", "a < b ", "<noise/>",
        "<sub alias='x y'>z</sub>", "[pause]", "3.5 ", "<p>",
    ]
)  # fmt: skip


@examples(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, min_size=1, max_size=10).map("".join), st.integers(1, 7))
def test_streamed_speech_equals_that_of_the_whole_text(text: str, step: int) -> None:
    if not any(
        char.isalnum()
        for char in "".join(t for t, _ in expected(text + "[pause]", World(settings())))
    ):
        text = "Well. " + text
    whole = said(text, frames=3)
    assert found(whole) == expected(text, whole)
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    for other in (streamed(list(text), frames=3), streamed(parts, frames=3)):
        assert other.talked == whole.talked
        assert np.array_equal(samples(other), samples(whole))


@examples(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, min_size=1, max_size=10).map("".join), st.floats(0, 1))
def test_cancel_divides_the_clients_text(text: str, share: float) -> None:
    text = "Well. " + text
    world = World(settings(), frames=5)
    world.post(TextAppended(text))
    world.post(FlushRequested("f"))
    world.run(until=30.0)
    played = round(share * world.samples)
    world.post(PlaybackReported(played))
    world.post(CancelRequested(played))
    told = world.told[-1]
    assert isinstance(told, Cancelled)
    assert told.text_spoken + told.text_remaining == text


# -- pauses between sentences

SENTENCE_S, PARAGRAPH_S = 0.2, 0.4
SPACED = replace(
    settings(), queue=replace(settings().queue, pauses=SentencePauses(SENTENCE_S, PARAGRAPH_S))
)
SENTENCE, PARAGRAPH = round(SENTENCE_S * RATE), round(PARAGRAPH_S * RATE)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("One is here. Two is here.", [SENTENCE]),
        ("Is one here? Two is here! Three is here.", [SENTENCE] * 2),
        ("One is here.\n\nTwo is here.", [PARAGRAPH]),
        ("One is here\n\nTwo is here", [PARAGRAPH]),
        ("One is here.\nTwo is here.", [SENTENCE]),
        ("One is here\nTwo is here", []),
        ("“One is here.” Two is here.", [SENTENCE]),
        ("(One is here.) Two is here…  Three is here.", [SENTENCE] * 2),
        ("One is here. <break time='1s'/> Two is here.", [RATE]),
        ("One is here.<break time='1s'/>\n\nTwo is here.", [RATE]),
        ("<p>One is here.</p><p>Two is here.</p>", [PARAGRAPH]),
        ("One is here.", []),
        ("One is here. ", []),
        ("<break time='1s'/>One is here.", [RATE]),
    ],
)
def test_sentences_and_paragraphs_are_followed_by_pauses(text: str, lengths: list[int]) -> None:
    wanted = [n for u, n in runs(said(text, SPACED)) if u < 0]
    assert wanted == lengths
    assert runs(streamed(list(text), SPACED)) == runs(said(text, SPACED))
    without = [n for u, n in runs(said(text)) if u < 0]
    assert without == [n for n in lengths if n == RATE]


def test_pause_between_sentences_follows_the_speed() -> None:
    config = replace(SPACED, queue=replace(SPACED.queue, speed=2.0))
    assert [n for u, n in runs(said("One is here. Two is here.", config)) if u < 0] == [SENTENCE]


def test_late_text_is_spaced_within_its_turn_only() -> None:
    """The samples of a turn do not depend on when its text came."""
    for between, lengths in ((None, [SENTENCE]), (FlushRequested("f"), [])):
        world = World(SPACED, frames=20)
        world.post(TextAppended("One is here. "))
        if between:
            world.post(between)
        world.run(until=30.0)
        world.post(TextAppended("Two is here. "))
        world.post(EndRequested())
        world.run()
        assert [n for u, n in runs(world) if u < 0] == lengths


def test_next_turn_is_spaced_while_the_last_one_is_heard() -> None:
    world = World(SPACED, frames=20)
    for text in ("One is here. ", "Two is here. "):
        world.post(TextAppended(text))
        world.post(FlushRequested(text))
    world.run()
    assert [n for u, n in runs(world) if u < 0] == [SENTENCE]
    sent = 0
    for told in world.told:
        if isinstance(told, SendAudio):
            sent += len(told.samples)
        elif isinstance(told, Flushed) and told.flush_id == "One is here. ":
            assert sent == 20 * SPEC.hop_length, "the end of a turn waits for no pause"


def test_nothing_to_say_is_not_spaced() -> None:
    world = World(SPACED, frames=20)
    world.skipped = {1}
    world.post(TextAppended("One is here. Two is here. Three is here. "))
    world.post(EndRequested())
    world.run()
    assert len(world.talked) == 3
    assert [n for u, n in runs(world) if u < 0] == [SENTENCE]


def test_text_requested_again_is_spaced_once() -> None:
    config = replace(SPACED, turns=TurnSettings(500))
    world = World(config, frames=20)
    world.post(TextAppended("One is here. "))
    world.post(FlushRequested("f"))
    world.run(until=0.3)
    world.post(TextAppended("Two is here. "))
    world.post(TextAppended("Three is here. "))
    world.post(EndRequested())
    world.run()
    assert world.talked == ["One is here.", "Two is here. Three is here."]
    assert [n for u, n in runs(world) if u < 0] == [SENTENCE]


def test_cancel_in_a_pause_between_sentences_tells_the_text_before_it() -> None:
    for played_s, spoken in ((0.79, "One "), (0.8, "One here. "), (0.99, "One here. ")):
        world = World(SPACED, frames=20)
        world.post(TextAppended("One here. Two here. "))
        world.post(FlushRequested("f"))
        world.run(until=5.0)
        world.post(CancelRequested(round(played_s * RATE)))
        told = world.told[-1]
        assert isinstance(told, Cancelled)
        assert told.text_spoken.strip() == spoken.strip()


def test_words_after_a_pause_between_sentences_are_exact() -> None:
    world = Aligned(SPACED, frames=40)
    world.post(TextAppended("One is here. Two is here."))
    world.post(EndRequested())
    world.run()
    begins = {word.text: word.start_ms for word in words_of(world)}
    assert begins["Two"] == pytest.approx(1600 + 1000 * SENTENCE_S, abs=0.1)

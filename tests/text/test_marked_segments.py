"""Sentences of marked-up text: no mark is cut, and nothing is lost."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from text.markup.reader import MarkupReader
from text.markup.segments import MarkedSegmenter
from text.segmenter import Segmenter, SegmentSettings

#: Marks that are longer than a piece may be, with sentence marks and spaces inside.
MARKS = (
    '<break time="1.5s"/>', '<sub alias="One. Two! Three?">1-2-3</sub>', "<spell>A. B. C7</spell>",
    "<!-- not. read. -->", '<emotion value="very. sad"/>', "[wood](/wʊd/)", "[pause:300ms]",
    '\\{"word": "a. b", "pronounce": "x y"\\}', "</prosody>", '<prosody rate="slow">',
)  # fmt: skip
PLAIN = (
    "One. ", "Two three, four! ", "a", " ", "\n\n", "Dr. No is here. ", "x < y ", "\ufffc", "😀",
    "a word that is long enough for a cut, and one more ",
)  # fmt: skip
SMALL = SegmentSettings(12)


def segment(*parts: str, config: SegmentSettings = SMALL) -> list[str]:
    segmenter = MarkedSegmenter(MarkupReader(), config)
    return [piece for part in parts for piece in segmenter.push(part)] + segmenter.flush()


def test_long_mark_is_not_cut() -> None:
    text = 'Please hold <break time="1.5s"/> and then <sub alias="One. Two.">1-2</sub> go on.'
    assert segment(text) == [
        "Please", 'hold <break time="1.5s"/>', "and then",
        '<sub alias="One. Two.">1-2</sub> go on.',
    ]  # fmt: skip


def test_sentence_ends_before_a_mark_that_follows_it() -> None:
    assert segment("It is. <break/> It was.", config=SegmentSettings(90, 1)) == [
        "It is.", "<break/> It was.",
    ]  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(MARKS + PLAIN), max_size=14), st.integers(1, 9))
@example(["\ufffc", MARKS[0], "\ufffc\ufffc", MARKS[1]], 1)
def test_marks_stay_whole_and_all_text_is_kept(tokens: list[str], step: int) -> None:
    text = "".join(tokens)
    pieces = segment(text)
    assert segment(*(text[at : at + step] for at in range(0, len(text), step))) == pieces
    assert "".join("".join(pieces).split()) == "".join(text.split())
    for mark in MARKS:
        assert sum(piece.count(mark) for piece in pieces) == text.count(mark)


@given(st.lists(st.sampled_from([token for token in PLAIN if token != "x < y "]), max_size=14))
def test_text_without_marks_is_cut_as_by_the_segmenter(tokens: list[str]) -> None:
    text = "".join(tokens)
    segmenter = Segmenter(SMALL)
    assert segment(text) == segmenter.push(text) + segmenter.flush()


def test_text_that_ends_within_a_mark_is_kept() -> None:
    assert segment("Go on. <break time=") == ["Go on.", "<break time="]
    assert segment("Spell <spell>A7") == ["Spell <spell>A7"]

"""``split_long``: splitting utterances that are too long when spoken, without loss of text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.segmenter import Segmenter, SegmentSettings, split_long

WORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "tea", "12", "99,999", "9" * 30, "yes,", "no.", "<|a:b|>", '"hm."']),
        st.sampled_from([" ", "  ", "\n"]),
    ),
    max_size=20,
).map(lambda pairs: "".join(word + space for word, space in pairs).strip())


def spoken_lengths(text: str) -> list[int]:
    """A minimal front end: a digit counts six, a tag 0. Lengths within a word are unknown."""
    lengths, said = [0], 0
    for match in re.finditer(r"\s+|\S+", text):
        piece = match[0]
        said += 0 if piece.startswith("<|") else sum(6 if char.isdigit() else 1 for char in piece)
        inner = [said - len(piece) + at for at in range(1, len(piece))]
        lengths += [*(inner if piece.isspace() else [-1] * len(inner)), said]
    return lengths


def said(text: str) -> int:
    return spoken_lengths(text)[-1]


@given(WORDS, st.integers(12, 60))
def test_split_long_keeps_text_and_limits_spoken_length(text: str, most: int) -> None:
    parts = split_long(text, spoken_lengths(text), most)
    assert "".join("".join(parts).split()) == "".join(text.split())
    for part in parts:
        assert part == part.strip() != ""
        spaces = [
            at.start() for at in re.finditer(r"\s", part) if part[at.start() - 2 :][:2] != "|>"
        ]
        assert said(part) <= most or not spaces
        assert said(part) < 2 * most + 6


@given(WORDS)
def test_split_long_keeps_short_text_whole(text: str) -> None:
    assert split_long(text, spoken_lengths(text), max(1, said(text))) == ([text] if text else [])


def test_split_long_does_not_cut_grapheme() -> None:
    accented = "e\N{COMBINING ACUTE ACCENT}"
    text = accented * 31
    lengths = [0, *[-1] * (len(text) - 1), 540]
    parts = split_long(text, lengths, 60)
    assert len(parts) > 1
    assert all(part == accented * (len(part) // 2) for part in parts)


def test_split_long_does_not_cut_tag() -> None:
    tag = "<|emotion:contentment|>"
    for text in (tag + "9" * 20, "9" * 11 + tag + "9" * 20, "9" * 20 + tag):
        lengths = [0, *[-1] * (len(text) - 1), 540]
        parts = split_long(text, lengths, 60)
        assert "".join(parts) == text
        assert sum(part.count(tag) for part in parts) == 1
        assert "" not in parts


@given(WORDS, st.integers(20, 60), st.lists(st.integers(0, 200), max_size=4))
def test_segmenter_with_spoken_lengths_does_not_depend_on_pushes(
    text: str, most: int, cuts: list[int]
) -> None:
    settings = SegmentSettings(most, 1, 1, spoken_lengths)
    whole, parts = Segmenter(settings), Segmenter(settings)
    expected = whole.push(text) + whole.flush()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    got = [x for start, end in pairwise(edges) for x in parts.push(text[start:end])]
    assert got + parts.flush() == expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("12 12 12 12", ["12 12", "12 12"]),  # even parts, not the longest possible
        ("a b 12, c d 12 12 12", ["a b 12,", "c d 12", "12 12"]),
        ("tea <|a:b|> 12 12 12", ["tea <|a:b|> 12", "12 12"]),
        ('a "b 12," c d 12 12 12', ['a "b 12,"', "c d 12", "12 12"]),  # with the closing quote
        ("a b 12. c d 12 12 12", ["a b 12.", "c d 12", "12 12"]),
        ("a, b 12 12 12", ["a, b 12", "12 12"]),  # too short for a part of its own
        ("a 12 12, a 12", ["a 12 12,", "a 12"]),  # exactly the maximum
        ("a999999999b", ["a99999", "9999b"]),  # exactly twice the maximum
        ("99,999", ["99,999"]),  # one word: 31, less than twice the maximum
        ("9" * 20, ["9" * 4] * 5),
        ("a " + "9" * 20 + " b", ["a", *["9" * 4] * 5, "b"]),
    ],
)
def test_split_long_splits_example_texts(text: str, parts: list[str]) -> None:
    assert split_long(text, spoken_lengths(text), 28) == parts


def test_split_long_keeps_label_with_its_number() -> None:
    """Else the label would be read as letters, and the number without it."""
    text = "These three words and more are on pp. 12 of a book"
    most = text.index(" 12") + 1
    parts = split_long(text, list(range(len(text) + 1)), most)
    assert not any(part.endswith("pp.") for part in parts)

"""Halves of surrogate pairs in JSON, alone and split over messages."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.surrogates import SurrogateJoiner, replace_surrogates, shield_surrogates


def decoded(document: str) -> str:
    """What a strict decoder makes of a document whose halves are shielded."""
    return str(json.loads(shield_surrogates(document.encode()).decode("utf-8")))


def utf16(text: str) -> str:
    """The text as JavaScript's units: a character above U+FFFF is two."""
    units = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(units[at] | units[at + 1] << 8) for at in range(0, len(units), 2))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (r'"Hello \ud83d there"', "Hello \ufffd there"),
        (r'"Hello \uDE00 there"', "Hello \ufffd there"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\uD83D\uDE00\uD83D"', "😀\ufffd"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (r'"a \\ud83d b"', r"a \ud83d b"),
        (r'"a \\\ud83d b"', "a \\\ufffd b"),
        (r'"caf\u00e9 \udbff\udfff"', "café \U0010ffff"),
        (r'"no escapes"', "no escapes"),
    ],
)
def test_lone_half_is_replaced(document: str, text: str) -> None:
    assert decoded(document) == str(json.loads(shield_surrogates(document)))
    if "\U0010ffff" not in text:  # which only a client that sends private characters has
        assert replace_surrogates(decoded(document)) == text


@given(st.text(st.characters(max_codepoint=0x10F7FF, exclude_categories=["Cs"])), st.data())
def test_text_that_is_cut_between_units_is_joined(text: str, data: st.DataObject) -> None:
    units = utf16(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units)), max_size=8)))
    edges = [0, *cuts, len(units)]
    joiner = SurrogateJoiner()
    parts = [
        joiner.push(decoded(json.dumps(units[begin:end])))
        for begin, end in itertools.pairwise(edges)
    ]
    assert "".join(parts) + joiner.flush() == text


@given(st.text(st.characters(min_codepoint=0xD700, max_codepoint=0xE100)))
def test_result_can_be_encoded_and_keeps_everything_else(units: str) -> None:
    joiner = SurrogateJoiner()
    text = joiner.push(decoded(json.dumps(units))) + joiner.flush()
    text.encode()
    wanted = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert text == wanted

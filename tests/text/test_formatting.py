"""Formatting in the text front end: it is not spoken, and words keep their spans in the source."""

from __future__ import annotations

import re

import pytest

from text.english.normaliser import normalise
from text.segmenter import Segmenter, SegmentSettings


def _said_for(source: str) -> list[tuple[str, str]]:
    spoken = normalise(source)
    return [
        (spoken.text[s.start : s.end], source[s.source_start : s.source_end]) for s in spoken.spans
    ]


def test_words_map_to_source_between_tags() -> None:
    assert _said_for("<b>bold</b> move<br/>on") == [
        ("bold", "bold"),
        ("move", "move"),
        ("on", "on"),
    ]
    assert _said_for('<p class="a">un<b>believ</b>able</p>') == [
        ("unbelievable", "un<b>believ</b>able")
    ]


def test_character_reference_maps_to_its_whole_source() -> None:
    assert _said_for("the caf&eacute; &amp; bar") == [
        ("the", "the"),
        ("cafe", "caf&eacute;"),
        ("and", "&amp;"),
        ("bar", "bar"),
    ]
    assert _said_for("cafe&#769; 5&#37;") == [
        ("cafe", "cafe&#769;"),
        ("five", "5&#37;"),
        ("percent", "5&#37;"),
    ]


@pytest.mark.parametrize("text", ["<b>", "</p>", "<!-- no -->", '<break time="1s"/>', "&hearts;"])
def test_markup_alone_is_not_spoken(text: str) -> None:
    assert normalise(text).text == ""


def test_markup_decodes_entities_once() -> None:
    assert normalise("&amp;lt;b").text == "and ell tee, bee"


def test_tag_split_between_utterances_is_not_spoken() -> None:
    """A long tag may not fit into one utterance."""
    tag = '<a href="https://example.com/a" target="_blank" rel="noopener">'
    text = f"Please look at this: {tag}the page</a> now."
    segmenter = Segmenter(SegmentSettings(60))
    parts = segmenter.push(text) + segmenter.flush()
    assert any(part.count("<") and part.rfind("<") > part.rfind(">") for part in parts)
    words = re.findall("[a-z]+", " ".join(normalise(part).text for part in parts))
    assert words == ["please", "look", "at", "this", "the", "page", "now"]

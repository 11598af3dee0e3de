"""Pronunciation: the lexicon, word endings, short words in context, and spans in the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded import pronunciation
from embedded.dictionary import lexicon
from embedded.front_ends import FRONT_ENDS
from embedded.pronunciation import SIGNS, said, sounds, spoken, written
from embedded.text import normalise

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "embedded_voice.md"
LETTERS = frozenset(" abcdefghijklmnopqrstuvwxyz',.?!")


def test_lexicon_has_only_known_signs() -> None:
    known = lexicon()
    assert len(known) > 230_000
    assert {sign for word in known.values() for sign in word} <= LETTERS | set(SIGNS)
    assert all(set(word) <= LETTERS for word in known)


def test_signs_are_unique_and_not_letters() -> None:
    assert len(set(SIGNS)) == len(SIGNS)
    assert not LETTERS & set(SIGNS)


def test_written_distinguishes_vowels_from_letters() -> None:
    assert written("ɹˈid") == "rˈEd"
    assert written("juɡə") == "JUgə"


@pytest.mark.parametrize(
    ("word", "sound"),
    [
        ("hello", "həlˈO"),
        ("minutes", "mˈɪnəts"),  # a word of the lexicon with an ending
        ("carries", "kˈɛrEz"),
        ("wishes", "wˈɪʃᵻz"),
        ("john's", "ʤˈɑnz"),
        ("declined", "dəklˈInd"),
        ("treated", "trˈEɾᵻd"),  # a flap
        ("swiped", "swˈIpt"),
        ("would've", "wʊdəv"),  # contractions
        ("that'll", "ðætᵊl"),
        ("how'd", "hˌWd"),
        ("serverless", "sˈɜrvərləs"),  # suffixes
        ("swipeable", "swˈIpəbᵊl"),
        ("reauthenticate", "rˌEɔθˈɛntəkˌAt"),  # prefixes, also of inflected words
        ("microservices", "mˌIkrOsˈɜrvəsᵻz"),
        ("touchscreen", "tˈʌʧskrˌEn"),  # compounds
        ("keycards", "kˈEkˌɑrdz"),
    ],
)
def test_said_knows_words_and_their_endings(word: str, sound: str) -> None:
    assert said(word) == sound


@pytest.mark.parametrize(
    ("word", "sound"),
    [
        ("matthew", "mˈæθJU"),  # the CMU Pronouncing Dictionary
        ("garcia", "gɑrsˈEə"),
        ("toyota", "tOJˈOɾə"),
        ("angeles", "ˈænʤələs"),  # no plural of "angel"
        ("hated", "hˈAɾᵻd"),  # not from "hat"
        ("kubernetes", "kˌUbərnˈɛɾEz"),  # names.txt
        ("siobhan", "ʃəvˈɔn"),
        ("o'hara", "Ohˈɛrə"),
        ("nguyens", "wˈɪnz"),  # what is derived of them
        ("lopez's", "lˈOpɛzᵻz"),
        ("siobhan'll", "ʃəvˈɔnᵊl"),
        ("xi", "ʃˈE"),  # corrections.txt
        ("xiao", "ʃˈW"),
        ("zhang's", "ʤˈɑŋz"),
        ("lucia", "lUsˈEə"),
        ("anna's", "ˈænəz"),
        ("tours", "tˈʊrz"),
        ("typed", "tˈIpt"),  # an impossible ending of a guessed entry
        ("zhou", "ʤˈO"),  # misaki's other sounds remain
    ],
)
def test_said_knows_names(word: str, sound: str) -> None:
    assert said(word) == sound


@pytest.mark.parametrize(
    ("word", "sound"),
    [
        ("hated", "hˈAɾᵻd"),  # from "hate"
        ("hatted", "hˈæɾᵻd"),
        ("hater", "hˈAɾər"),
        ("called", "kˈɔld"),  # from a whole stem, although "calle" is known
        ("ringing", "rˈɪŋɪŋ"),
        ("redoing", "rˌEdˈUɪŋ"),
    ],
)
def test_derived_finds_likely_stem_of_ending(word: str, sound: str) -> None:
    known = {
        "hat": "hˈæt", "hate": "hˈAt", "call": "kˈɔl", "calle": "kˈælə", "ring": "rˈɪŋ",
        "ringe": "rˈɪnʤ", "redo": "rˌEdˈU", "redoe": "rˌEdˈO",
    }  # fmt: skip
    assert pronunciation.derived(word, known) == sound


@pytest.mark.parametrize("word", ["blorptix", "fabregas", "lannister", "tyrion", "nagar", "ivoire"])
def test_said_returns_none_for_word_without_known_parts(word: str) -> None:
    assert said(word) is None


@pytest.mark.parametrize(
    ("derive", "least"),
    [
        (pronunciation._compound, 0.8),
        (pronunciation._suffixed, 0.7),
        (pronunciation._prefixed, 0.5),
    ],
)
def test_derived_sounds_resemble_those_of_lexicon(
    derive: Callable[[str, Mapping[str, str]], str | None], least: float
) -> None:
    """The rules are tried on words that the lexicon has; it varies in weak vowels and stress."""
    words = sorted(lexicon())[::19]
    found = [(sound, lexicon()[word]) for word in words if (sound := derive(word, lexicon()))]
    same = [_plainly(sound) == _plainly(known) for sound, known in found]
    assert len(same) > 50
    assert sum(same) / len(same) > least


def _plainly(sound: str) -> str:
    return sound.translate(str.maketrans("ᵊᵻɾ", "əɪt", "ˈˌ"))


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("the end", "ðE ˈɛnd"),
        ("the dog", "ðə dˈɔg"),
        ("to eat", "tU ˈEt"),
        ("to go", "tə gˌO"),
        ("a", "ə"),
        ("The blorptix, please!", "ðə blorptix, plˈEz!"),
    ],
)
def test_sounds_adapts_short_words_to_next_word(text: str, sound: str) -> None:
    assert sounds(text).text == sound


def test_sounds_keeps_source_spans() -> None:
    text = "On 3/4 I paid $1,250.50 to Dr. Blorptix's aunt, OK?"
    plain, found = normalise(text), sounds(text)
    assert len(found.spans) == len(plain.spans)
    for before, after in zip(plain.spans, found.spans, strict=True):
        assert (before.source_start, before.source_end) == (after.source_start, after.source_end)
        word = plain.text[before.start : before.end]
        assert found.text[after.start : after.end] in (word, said(word, "ə"), said(word, "b"))


@given(st.text(max_size=60))
def test_sounds_covers_any_text_with_known_signs(text: str) -> None:
    found = sounds(text)
    assert set(found.text) <= LETTERS | set(SIGNS)
    last = 0
    for span in found.spans:
        assert last <= span.start < span.end <= len(found.text)
        assert set(found.text[last : span.start]) <= set(" ,.?!")
        last = span.end


def test_spoken_leaves_chosen_words_in_letters() -> None:
    assert spoken(normalise("the end"), frozenset({1})).text == "ðə end"


def test_examples_of_the_page_are_what_the_front_end_makes() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## From words to sounds")[2]
    front_end = FRONT_ENDS["english-sounds"]
    words = re.search(r'"([^"]+)" becomes `([^`]+)`', page)
    length = re.search(r'"([^"]+)" becomes (\d+) sounds', page)
    assert words
    assert length
    assert front_end(words[1]).text == words[2]
    assert len(front_end(length[1]).text) == int(length[2])

"""Pronunciation: the lexicon, word endings, short words in context, and spans in the source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import text.english.sounds as module
from text.english import heteronyms
from text.english.lexicon import lexicon
from text.english.normaliser import normalise
from text.english.sounds import SIGNS, said, sounds, spoken, written
from text.registry import FRONT_ENDS

CASES = Path(__file__).with_name("heteronym_cases.txt")
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
    assert module.derived(word, known) == sound


@pytest.mark.parametrize("word", ["blorptix", "fabregas", "lannister", "tyrion", "nagar", "ivoire"])
def test_said_returns_none_for_word_without_known_parts(word: str) -> None:
    assert said(word) is None


@pytest.mark.parametrize(
    ("derive", "least"),
    [
        (module._compound, 0.8),
        (module._suffixed, 0.7),
        (module._prefixed, 0.5),
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


def _cases() -> Iterator[tuple[str, str, str]]:
    """Yield each sentence of the list, a word of it and the sounds that the word has there."""
    word = sound = ""
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            yield line.strip(), word, sound
        elif line and not line.startswith("#"):
            word, sound = line.split()


def _word_sounds(sentence: str, word: str) -> list[str]:
    """Return the sounds of ``word``, which is once in ``sentence``."""
    (place,) = re.finditer(rf"\b{word}\b", sentence, re.IGNORECASE)
    found = sounds(sentence)
    return [found.text[s.start : s.end] for s in found.spans if s.source_start == place.start()]


@pytest.mark.parametrize(("sentence", "word", "sound"), list(_cases()))
def test_sounds_of_heteronym_follow_from_its_neighbours(
    sentence: str, word: str, sound: str
) -> None:
    assert _word_sounds(sentence, word) == [sound]


def test_heteronym_cases_have_both_readings_of_frequent_words() -> None:
    readings = Counter(word for word, _ in {(word, sound) for _, word, sound in _cases()})
    assert sum(readings.values()) > 200
    assert sum(count > 1 for count in readings.values()) > 80


def test_heteronyms_are_written_in_known_signs() -> None:
    """A talker has ids for these signs alone, and no rule names a word that has no readings."""
    entries = heteronyms._heteronyms()
    assert len(entries) > 300
    found = {sign for entry in entries.values() for sound in entry.readings for sign in sound}
    found |= {sign for sound in heteronyms._ACCENTED.values() for sign in sound}
    assert found <= LETTERS - set(" ',.?!") | set(SIGNS)
    assert heteronyms._OWN.keys() <= entries.keys()


def test_every_rule_of_a_heteronym_names_a_reading_and_a_neighbour() -> None:
    rules = [rule for entry in heteronyms._heteronyms().values() for rule in entry.rules]
    assert {rule.reading for rule in rules} == {0, 1}
    assert all(rule.before or rule.after for rule in rules)
    kinds = {"STOP", "PLURAL", "ING", "PAST", *heteronyms._KINDS.values()}
    named = {name for rule in rules for group in rule.before + rule.after for name in group}
    assert {name for name in named if name.isupper()} <= kinds


@pytest.mark.parametrize("word", ["résumé", "re\u0301sume\u0301", "RÉSUMÉ", "résumés", "résumé’s"])
def test_accented_word_is_looked_up_before_its_accents_are_folded(word: str) -> None:
    assert sounds(f"{word} here").text.startswith("rˈɛzəmˌA")


def test_sounds_keeps_source_spans() -> None:
    text = "On 3/4 I paid $1,250.50 to Dr. Blorptix's aunt, OK?"
    plain, found = normalise(text), sounds(text)
    assert len(found.spans) == len(plain.spans)
    for before, after in zip(plain.spans, found.spans, strict=True):
        assert (before.source_start, before.source_end) == (after.source_start, after.source_end)
        word = plain.text[before.start : before.end]
        assert found.text[after.start : after.end] in (word, said(word, "ə"), said(word, "b"))


def test_spoken_leaves_chosen_words_in_letters() -> None:
    assert spoken("the end", normalise("the end"), frozenset({1})).text == "ðə end"


def test_examples_of_the_page_are_what_the_front_end_makes() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## From words to sounds")[2]
    front_end = FRONT_ENDS["english-sounds"]
    words = re.search(r'"([^"]+)" becomes `([^`]+)`', page)
    length = re.search(r'"([^"]+)" becomes (\d+) sounds', page)
    assert words
    assert length
    assert front_end(words[1]).text == words[2]
    assert len(front_end(length[1]).text) == int(length[2])

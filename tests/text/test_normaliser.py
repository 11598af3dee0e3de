"""The text front end: spoken words, their alphabet, and their spans in the source."""

from __future__ import annotations

import itertools
import string
from dataclasses import replace

import num2words
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAGS
from tests.text.written import READING_CASES, WRITTEN
from text import units, vocabulary
from text.english import (
    abbreviations,
    addresses,
    amounts,
    normaliser,
    numbers,
    signs,
)
from text.english.normaliser import READER, normalise
from text.english.vocabulary import LETTERS, WORDS
from text.english.words import read_word, spell
from text.reader import Normalised
from text.rules import Rules


@pytest.mark.parametrize(("source", "spoken"), READING_CASES)
def test_normalise_matches_reading_cases(source: str, spoken: str) -> None:
    assert normalise(source).text == spoken


def test_reading_cases_number_at_least_120() -> None:
    assert len(READING_CASES) >= 120


SLOW = replace(READER, letters=Rules(normaliser._LETTERS))


@given(WRITTEN)
def test_fast_path_for_words_changes_no_result(source: str) -> None:
    assert SLOW.read(source) == normalise(source)


class OneByOne(Rules):
    """Tries each rule by itself."""

    def at(self, source: str, position: int) -> tuple[int, list[str]] | None:
        for rule in itertools.chain.from_iterable(rules for _, rules in self._groups):
            if found := rule.at(source, position):
                return found
        return None


ALONE = replace(
    READER,
    letters=OneByOne((abbreviations.PLAIN, *normaliser._LETTERS)),
    digits=OneByOne(normaliser._DIGITS),
    signs=OneByOne(normaliser._SIGNS),
)


@given(WRITTEN)
def test_joined_patterns_change_no_result(source: str) -> None:
    assert ALONE.read(source) == normalise(source)


def test_spans_map_words_to_source() -> None:
    source = "Café costs $3.50, Dr. Lee… 1,234 €"
    spoken = normalise(source)
    said = [
        (spoken.text[s.start : s.end], source[s.source_start : s.source_end]) for s in spoken.spans
    ]
    assert said[:3] == [("cafe", "Café"), ("costs", "costs"), ("three", "$3.50")]
    assert ("doctor", "Dr.") in said
    assert ("lee", "Lee") in said
    assert said[-1] == ("euros", "1,234 €")


def test_combining_mark_belongs_to_its_letter() -> None:
    source = "cafe\u0301 au"
    assert source[slice(*_source(normalise(source), 0))] == "cafe\u0301"


def _source(spoken: Normalised, word: int) -> tuple[int, int]:
    return spoken.spans[word].source_start, spoken.spans[word].source_end


@given(st.integers(0, 10**12 - 1))
def test_cardinals_agree_with_num2words(number: int) -> None:
    assert normalise(f"{number:,}").text == _plain(num2words.num2words(number))


@given(st.integers(0, 10**12 - 1))
def test_ordinals_agree_with_num2words(number: int) -> None:
    ending = _ordinal_ending(number)
    wanted = _plain(num2words.num2words(number, to="ordinal"))
    assert normalise(f"{number:,}{ending}").text == wanted


def _ordinal_ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


@given(st.integers(1100, 2099))
def test_years_agree_with_num2words(number: int) -> None:
    wanted = _plain(num2words.num2words(number, to="year"))
    assert normalise(f"in {number}").text == f"in {wanted}"


@given(st.integers(0, 10**6 - 1), st.text(string.digits, min_size=1, max_size=8))
def test_decimals_agree_with_num2words(whole: int, fraction: str) -> None:
    digits = " ".join(num2words.num2words(int(digit)) for digit in fraction)
    wanted = f"{_plain(num2words.num2words(whole))} point {digits}"
    assert normalise(f"{whole:,}.{fraction}").text == wanted


@given(st.integers(2, 10**6 - 1), st.integers(2, 99))
def test_dollars_agree_with_num2words(dollars: int, cents: int) -> None:
    wanted = _plain(num2words.num2words(dollars)) + " dollars and "
    wanted += _plain(num2words.num2words(cents)) + " cents"
    assert normalise(f"${dollars:,}.{cents:02}").text == wanted


def _plain(words: str) -> str:
    return words.replace("-", " ").replace(",", "").replace(" and ", " ")


def test_table_readings_are_read_as_themselves() -> None:
    tables = (LETTERS, WORDS, vocabulary.ABBREVIATED, vocabulary.DOTTED)
    named = (vocabulary.NUMBERED, vocabulary.DAYS, signs._NAMES, signs._SLASHED, addresses._SIGNS)
    readings = {reading for table in (*tables, *named, units.PER) for reading in table.values()}
    readings |= {form for forms in units.UNITS.values() for form in forms}
    readings |= {x for c in amounts.CURRENCIES.values() for x in (c.one, c.many, c.cent, c.cents)}
    readings |= {x for row in abbreviations._LATIN.values() for x in row if x.isalpha()}
    readings |= {numbers.cardinal(n) for n in range(1000)} | set(vocabulary.MONTHS)
    for reading in readings:
        assert normalise(reading).text == reading


@given(st.text(string.ascii_letters, min_size=1, max_size=8))
def test_read_word_is_idempotent(token: str) -> None:
    spoken = read_word(token)
    assert " ".join(map(read_word, spoken.split())) == spoken


@given(st.text(string.ascii_uppercase, min_size=1, max_size=6))
def test_spelled_acronym_has_one_name_per_letter(acronym: str) -> None:
    names = spell(acronym).replace("double you", "w").split()
    assert len(names) == len(acronym)


def test_control_tags_are_cut_out_before_normalise() -> None:
    """The prompt builder cuts them out. The text between them is read like any other."""
    for tag in CONTROL_TAGS:
        before, cut, after = TAGS.split(f"It's 5 {tag} km.")
        assert cut == tag
        assert normalise(before).text == "it's five"
        assert normalise(after).text == "kilometers."

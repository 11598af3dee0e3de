"""The text front end: spoken words, their alphabet, and their spans in the source."""

from __future__ import annotations

import itertools
import re
import string
from pathlib import Path

import num2words
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded import text
from embedded.normalisation import abbreviations, addresses, amounts, lexicon, numbers, signs, units
from embedded.normalisation.rules import Rules
from embedded.normalisation.words import read_word, spell
from embedded.text import Normalised, normalise
from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAGS

_CASES = [
    line.split(" =>", 1)
    for line in Path(__file__).with_name("reading_cases.txt").read_text().splitlines()
    if " =>" in line and not line.startswith("# ")
]
_SPOKEN = re.compile(r"(?:[a-z]+(?:'[a-z]+)*(?:[,.?!]? |[,.?!]?$))*")
_PIECES = [
    *(case[0] for case in _CASES), " ", "\n", "\n\n", ", ", ".", "...", "-", "–", "—", "/", ":",
    "'", '"', "(", ")", "$", "%", "#", "@", "1", "12", "1999", "07", "a", "A", "I", "st", "St.",
    "no.", "No.", "pm", "p.m.", "a.m.", "Mr.", "etc.", "km", "min.", "May", "Nov.", "XIV", "é",
    "no", "HR", "MS", "St", "Dr.", "Elm", "Then", "B.", "5B", "W", "Mon", "Mar.", "ext.", "AM",
    "FLOWERS", "800", "401k", "tsp",
    "x", "\"", "in", "ft", "code", "911", "Ave", "NW", "Mon", "max.",
    "et al.", "->", "[a](/b)", "[^1]", "* 3", "USD", "UTC", "&&", ".", "K8s", "10/10", "'09",
    "1080p", "$", "\\(", "\\)", "\\frac", "\\text", "\\int", "{", "}", "^", "_",
    "\u0301", "\u200d", "🙂", "ﬁ", "½", "²", "°", "日", "\ud800",
    "\x00", "<|sfx:cough|>", "<|", "<b>", "</b>", "<br/>", "<a x='1' ", "<!--", "-->", "&eacute;",
    "&#769;", "&amp;", "http://", "user:pw@", "localhost", ":80", "[::1]", "10.0.0.1",
]  # fmt: skip
written = st.one_of(
    st.text(max_size=60),
    st.text(string.printable, max_size=60),
    st.text("0123456789.,:-/$%+() 'stndrhpkm", max_size=40),
    st.lists(st.sampled_from(_PIECES), max_size=8).map("".join),
    st.lists(st.sampled_from(_PIECES), max_size=8).map(" ".join),
)


@pytest.mark.parametrize(("source", "spoken"), _CASES)
def test_normalise_matches_reading_cases(source: str, spoken: str) -> None:
    assert normalise(source.replace("\\n", "\n")).text == spoken.strip()


def test_reading_cases_number_at_least_120() -> None:
    assert len(_CASES) >= 120


@given(written)
def test_normalise_returns_only_voice_alphabet_with_valid_spans(source: str) -> None:
    spoken = normalise(source)
    assert _SPOKEN.fullmatch(spoken.text), spoken.text
    check_spans(source, spoken)


@given(written)
def test_normalise_is_idempotent(source: str) -> None:
    once = normalise(source).text
    assert normalise(once).text == once


def check_spans(source: str, spoken: Normalised) -> None:
    words = [(match.start(), match.end()) for match in re.finditer(r"[a-z']+", spoken.text)]
    assert [(span.start, span.end) for span in spoken.spans] == words
    sources = [(span.source_start, span.source_end) for span in spoken.spans]
    assert all(0 <= start < end <= len(source) for start, end in sources)
    for before, after in itertools.pairwise(sources):
        assert before == after or before[1] <= after[0]


@given(written)
def test_fast_path_for_words_changes_no_result(source: str) -> None:
    quick = normalise(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BY_LETTER", Rules(text._LETTERS))
        assert normalise(source) == quick


class OneByOne(Rules):
    """Tries each rule by itself."""

    def at(self, source: str, position: int) -> tuple[int, list[str]] | None:
        for rule in itertools.chain.from_iterable(rules for _, rules in self._groups):
            if found := rule.at(source, position):
                return found
        return None


ALONE = {"_BY_LETTER": OneByOne((abbreviations.PLAIN, *text._LETTERS)),
         "_BY_DIGIT": OneByOne(text._DIGITS), "_BY_SIGN": OneByOne(text._SIGNS)}  # fmt: skip


@given(written)
def test_joined_patterns_change_no_result(source: str) -> None:
    joined = normalise(source)
    with pytest.MonkeyPatch.context() as patch:
        for name, rules in ALONE.items():
            patch.setattr(text, name, rules)
        assert normalise(source) == joined


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
    tables = (lexicon.LETTERS, lexicon.ABBREVIATED, lexicon.WORDS, lexicon.DOTTED)
    named = (lexicon.NUMBERED, lexicon.DAYS, signs._NAMES, signs._SLASHED, addresses._SIGNS)
    readings = {reading for table in (*tables, *named, units.PER) for reading in table.values()}
    readings |= {form for forms in units.UNITS.values() for form in forms}
    readings |= {x for c in amounts.CURRENCIES.values() for x in (c.one, c.many, c.cent, c.cents)}
    readings |= {x for row in abbreviations._LATIN.values() for x in row if x.isalpha()}
    readings |= {numbers.cardinal(n) for n in range(1000)} | set(lexicon.MONTHS)
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


_REPEATED = [
    "1", "1.", "1,", "a.", "A.", "1-", "-", "(", "1/", "1:1", "@a.", "'", " ", "\n", "M", "US$",
    "http://", "a@a.", "+1 ", "a-", "May ", "1 ", "/", "I", "%", "J. ", "<", "1 1/2 ",
    "US ", "U.S. ", "Dr. A ", "5 May ", "Elm St. ", "N Elm ", "5 W ", "Mon-", "May 5 – ", "9 AM-",
    "$1k-", "5 km–", "1-800-A", "800-A-", "1/5 and ", "on 1/5 ", "B. ", "Seat 5B ", "x² ", "**2",
    "a.b/c.", "a.co/.a", "5%-", "<b", "<b>", "<b a=", "<a b='", "a='b' ", "<b ", "<!--", "<!a ",
    "&#1", "&a", "&amp;", "http://a@", "http://a.", "http://1.", "www.", "http://[:",
    "[", "![", "[a](", "[a](/", "](/", "](/a(", "](/ \"", "[^", "[a](/b)", " > A", "* 3 ", "1x",
    "1 x ", "1\"x", "1s", "A1s", "A1-", "1-1-", "1in ", "1 ft 1 in ", "code 1234 ",
    "call 911 or ", "$1 USD ", "1,5", "½-", "1 Cor. ", "-p 1:1 ", "•• ", "$A", "Mon/", "Mon and ",
    "5 A Ave N ", "1/5 ", "./", " .a", "->", "max. ",
    "\\(", "\\[", "$a", "\\frac{", "$x$", "Nf3 ", "H2",
]  # fmt: skip


@pytest.mark.parametrize("unit", _REPEATED)
def test_normalise_takes_linear_time_on_long_text(unit: str) -> None:
    """A rule that backtracks at every position would exceed the time limit of the test."""
    source = unit * (20_000 // len(unit))
    check_spans(source, normalise(source))


def test_control_tags_are_cut_out_before_normalise() -> None:
    """The prompt builder cuts them out. The text between them is read like any other."""
    for tag in CONTROL_TAGS:
        before, cut, after = TAGS.split(f"It's 5 {tag} km.")
        assert cut == tag
        assert normalise(before).text == "it's five"
        assert normalise(after).text == "kilometers."

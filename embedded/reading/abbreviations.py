"""Rules for abbreviations with dots, initials, Roman numerals, and plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from embedded.reading import numbers
from embedded.reading.lexicon import (
    ABBREVIATED,
    COUNTED,
    DOTTED,
    LETTERS,
    NUMBERED,
    REGNAL,
    SHORT_WORDS,
)
from embedded.reading.rules import Match, Reading, Rule, dot_ends
from embedded.reading.words import is_shouting, read_mixed, read_word, spell

_LATIN = {"e.g": ("for example", ","), "i.e": ("that is", ","), "a.k.a": ("also known as",)}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_WELL_FORMED = re.compile(r"(?=[XVIL])(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_WORD_BEFORE = re.compile(r"([A-Za-z0-9']+)[.,]?\s+$")
#: An abbreviation of these is a title where a name follows, and a street after a name.
_STREETS = {"st": ("saint", "street"), "dr": ("doctor", "drive")}
_STREET_BEFORE = re.compile(r"(?:[A-Z0-9][\w']*)\s+$")
_TITLES = frozenset({"mr", "mrs", "ms", "prof"})
_QUOTES = frozenset("'\"*_")
_BEFORE_CHARS = 40


def _before(match: Match) -> str:
    """The text before a match, no more of it than a rule needs."""
    return match.string[max(0, match.start() - _BEFORE_CHARS) : match.start()]


def _stopped(match: Match, words: str) -> list[str]:
    """``words``, and a stop where the match's last dot ends a sentence too."""
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [words, "."] if stop else [words]


def _titled(match: Match, words: str) -> list[str]:
    """As ``_stopped``, for what a name follows: its capital begins no sentence."""
    at_end = match[0].endswith(".") and not match.string[
        match.end() : match.end() + _BEFORE_CHARS
    ].strip(" \t\n\"')]")
    return [words, "."] if at_end else [words]


def _latin(match: Match) -> Reading:
    return [*_LATIN[match["a"].lower().replace(" ", "")]]


def _initials(match: Match) -> Reading:
    """U.S., Ph.D., J.R.R.: letters by their names; a stop at the end of the text only."""
    return _titled(match, spell(re.sub(r"[^A-Za-z]", "", match[0])))


def _initial(match: Match) -> Reading:
    return [LETTERS[match["a"].lower()]]


def _street(match: Match) -> Reading:
    """ "St. John", "Dr. Smith", but "Main St.", "12 Maple Dr."."""
    title, street = _STREETS[match["a"].lower()]
    named = bool(re.match(r"\s+[A-Z]", match.string[match.end() : match.end() + 9]))
    after_name = bool(_STREET_BEFORE.search(_before(match)))
    numbered = bool(re.search(r"\d\s+(?:[A-Z][\w']*\s+){1,3}$", _before(match)))
    is_street = after_name and (numbered or not named)
    return _stopped(match, street) if is_street else _titled(match, title)


def _dotted(match: Match) -> Reading:
    return _titled(match, DOTTED[match["a"]])


def _numbered(match: Match) -> Reading:
    return [NUMBERED[match["a"].lower()]]


def _roman(match: Match) -> Reading:
    """ "Henry VIII", "chapter IV", and what can be nothing else: "III"."""
    written = match["n"]
    if not _WELL_FORMED.fullmatch(written):
        return None
    value = _roman_value(written)
    found = _WORD_BEFORE.search(_before(match))
    word = found[1] if found else ""
    if word.lower() in REGNAL and word[0].isupper() and written != "I":
        return ["the", numbers.ordinal(value)]
    sure = written == "II" or (len(written) > 2 and not set(written) & set("LC"))
    if sure or (word.lower() in COUNTED and written != "I"):
        return [numbers.cardinal(value)]
    return None


def _roman_value(written: str) -> int:
    values = [_ROMAN[letter] for letter in written]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < after else value for value, after in pairs)


def _word(match: Match) -> Reading:
    token, after = match["a"], match.string[match.end() : match.end() + 1]
    if after.isdigit() or _before(match)[-1:].isdigit():
        return [read_mixed(token)]
    if token.isalpha() and token.isupper() and "&" in (after, _before(match)[-1:]):
        return [spell(token)]  # AT&T
    if token == "A" and not (after.isspace() or after in _QUOTES):
        return ["ay"]
    return [read_word(token, shouting=token.isupper() and is_shouting(match.string))]


def _plain(match: Match) -> Reading:
    """Most words: what the rules after this one would say too, found sooner."""
    word = match[0]
    return None if word in ABBREVIATED else [read_word(word)]


def _abbreviated(match: Match) -> Reading:
    token = match["a"]
    if token.isupper() and token.lower() in SHORT_WORDS:
        return None
    said = _titled if token.lower() in _TITLES else _stopped
    return said(match, ABBREVIATED[token.lower()])


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_START = r"[^A-Za-z0-9]?"
_ENDING = r"(?![A-Za-z0-9])"
_EVER_DOTTED = _any(word for word in ABBREVIATED if word not in _STREETS)
PLAIN = Rule(r"[a-z]{2,}(?:'[a-z]+)*(?=[,?!]?(?:\s+[^\s\d]|\s*$))", _plain, behind=r"\s?")
RULES: tuple[Rule, ...] = (
    Rule(r"(?i:(?P<a>e\.\s?g|i\.\s?e|a\.k\.a)\b\.?,?)", _latin, behind=_START),
    Rule(r"(?:[A-Z][a-z]?\.){2,}(?:[A-Z]\b\.?)?|(?:[A-Z]\.)+[A-Z]\b|(?:[a-z]\.){2,}", _initials,
         behind=_START),
    Rule(r"(?P<a>[A-HJ-Z])\.(?=\s+[A-Z])", _initial, behind=_START),
    Rule(r"(?P<a>[Ss]t|[Dd]r|ST|DR)\.", _street, behind=_START),
    Rule(rf"(?P<a>{_any(DOTTED)})\.", _dotted, behind=_START),
    Rule(rf"(?i:(?P<a>{_any(NUMBERED)}))\.?\s*(?=\d)", _numbered, behind=_START),
    Rule(rf"(?i:(?P<a>{_EVER_DOTTED})){_ENDING}\.?(?![A-Za-z'])", _abbreviated, behind=_START),
    Rule(r"(?P<n>[IVXL]{1,7})(?![A-Za-z0-9'])", _roman, behind=_START),
    Rule(r"(?i:(?P<a>wi-fi))" + _ENDING, lambda match: ["why fie"], behind=_START),
    Rule(r"(?P<a>[A-Za-z]+(?:'[A-Za-z]+)*)", _word),
)  # fmt: skip

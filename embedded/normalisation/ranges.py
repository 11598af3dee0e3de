"""The dash of a range: "9 AM–5 PM", "Monday-Friday", "$2k-$3k", "5 km – 10 km"."""

from __future__ import annotations

import re

from embedded.normalisation.amounts import NUMBER, UNIT
from embedded.normalisation.context import REACH, before
from embedded.normalisation.rules import Match, Reading, Rule
from embedded.normalisation.times import DAY_NAME, MONTH_NAME

_HALF_DAY = r"(?:[AaPp]\.\s?[Mm]\.|[AaPp][Mm])"
_HALF = rf"\d\s?{_HALF_DAY}"
_NOON = r"\b(?i:noon|midnight)"
_MONEY = r"[$€£¥₹]"
_SCALE = r"(?:\s?(?:thousand|million|billion|trillion|[bmt]n)|[kKmMBT])"
_DATE = rf"(?:{DAY_NAME}\.?,?\s)?(?:{MONTH_NAME}|\d\d?(?:st|nd|rd|th)?\s{MONTH_NAME})"
_OF_UNIT = rf"(?P<unit>{UNIT}|[kKMB])"
#: Patterns for the start of a range, at the end of the text before the dash, and for its end, after
#: it.
_TIMES = (
    (
        rf"(?:{_HALF}|\d:\d\d|{_NOON}|\b\d\d?(?::\d\d)?[AaPp])",
        rf"(?:\d?\d:\d\d(?:\s?{_HALF_DAY})?|(?:\d?\d\.)?\d?{_HALF}|{_NOON}|\d\d?(?::\d\d)?[AaPp])"
        r"(?![A-Za-z0-9])",
    ),
    (_NOON, r"\d\d?(?::\d\d)?(?![\d%])"),
    (r"\b\d\d?(?::\d\d)?", _NOON),
    (r"\d(?:st|nd|rd|th)", r"\d{1,3}(?:st|nd|rd|th)\b"),
    (rf"\b(?i:{DAY_NAME})\.?", rf"(?i:{DAY_NAME})"),
    (rf"\b{MONTH_NAME}\.?(?:\s\d\d?(?:st|nd|rd|th)?)?(?:,?\s\d{{4}})?", _DATE),
)
_AMOUNTS = (
    (rf"{_MONEY}\s?[\d.,]*\d{_SCALE}?", rf"{_MONEY}\.?\d"),
    (r"\b(?i:seats?|rows?)\s\d{1,2}[A-L]", r"(?:\d{1,2})?[A-L](?![A-Za-z0-9'])"),
    (r"\bQ[1-4](?:\s\d{4})?", r"Q[1-4](?!\w)"),
    (r"\b[0-9]{1,3}0s", r"'?[0-9]{1,3}0s\b"),
    (r"\d\s?%", rf"{NUMBER}\s?%"),
    (r"\b(?P<name>[A-Z])\d{1,3}", r"(?P<name>[A-Z])\d{1,3}(?!\w)"),
    (rf"\d\s?{_OF_UNIT}", rf"-?{NUMBER}\s?{_OF_UNIT}(?![A-Za-z0-9])"),
)


#: Letters are a range, except those of a bond in chemistry.
_LETTERS = re.compile(
    r"^(?:[^A-Za-z0-9–]?)[A-Z]–[A-Z](?![A-Za-z0-9'–-])(?!\s(?:bond|stretch|coupl))"
)


def _compiled(ends: tuple[tuple[str, str], ...]) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    return [(re.compile(rf"(?:{left})$"), re.compile(right)) for left, right in ends]


_OF_TIME, _OF_AMOUNT = _compiled(_TIMES), _compiled(_AMOUNTS)


def _range(match: Match) -> Reading:
    """ "to" between two ends of one kind; "minus" if an equals sign follows."""
    text, end = match.string, match.end()
    if _holds(_OF_TIME, match):
        return ["to"]
    if match[0] == "–" and _LETTERS.search(f"{before(match)[-2:]}–{text[end : end + 12]}"):
        first, last = text[match.start() - 1], text[end]
        return ["to"] if first < last else None
    if _holds(_OF_AMOUNT, match):
        return ["minus" if "=" in text[end : end + REACH] else "to"]
    return None


def _holds(ends: list[tuple[re.Pattern[str], re.Pattern[str]]], match: Match) -> bool:
    """Whether a dash has ends of one kind on both sides; in the same unit if it is spaced.
    Gates and the like have the same letter: "B1-B20", but "A1-B2".
    """
    left = before(match)
    for since, to in ends:
        if (last := to.match(match.string, match.end())) and (first := since.search(left)):
            is_close = len(match[0]) == 1 and "name" not in first.groupdict()
            return is_close or first.groupdict() == last.groupdict()
    return False


RANGE = Rule(r"(?:[ \t][-–][ \t]|[-–—])(?=['$€£¥₹.\-A-Za-z0-9])", _range)

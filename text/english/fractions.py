"""Rules for two numbers with a slash: fractions, ratings, scores."""

from __future__ import annotations

import re

from text.english import numbers
from text.english.numbers import amount
from text.english.times import STORAGE
from text.rules import Match, Rule, after, before

_SMALL_PARTS = {2: "half", 4: "quarter"}
#: Denominators of "1-1/2" and of inches.
_INCHES = frozenset({2, 3, 4, 8, 16, 32, 64})
#: What makes "4/5" a rating.
_RATED = re.compile(r"(?i)\b(?:rated|ratings?|scored?)(?::|\sof|\sis|\sit)?\s$")
_STARS = re.compile(r"\s(?:stars?|ratings?)\b")
_STORAGE, _RATES = re.compile(STORAGE), re.compile(r"\s?(?:mpg|mph|Mbps)\b")
#: What makes "24/30" a score, and what is counted in "7/10 people".
_MARKED = re.compile(
    r"(?i)\b(?:scor(?:e|ed|es|ing)|got|gets?|marks?|grades?|(?:up|down)\sfrom)\b[^.!?\n\d]{0,16}$"
)
_MARKS = re.compile(
    r"\s(?:on|in)\s(?:the|this|your|my|his|her|their)\s(?:[a-z]+\s)?(?:test|quiz|exam|assignment|game)"
    r"|\s\(?\d{1,3}(?:\.\d+)?%|\s(?:correct|right|points|marks|questions|answers|people|students"
    r"|users|voters|votes|patients|customers|respondents|players|doctors|dentists|experts)\b"
)
_ENDS = re.compile(r"[.,;:!?)]|\s*$|\s(?:on|in|for|and|so|which|this|last|but|with)\b")
_MIN_MARKS = 10
_PORTS = re.compile(r"(?i)\bports?\s$")
#: An arithmetic sign beside a fraction.
_SIGN_BEFORE = re.compile(r"[-+=×÷*/]\s?$")
_SIGN_AFTER = re.compile(r"\s?[-+=×÷*]\s?\d|\s?=")
#: What makes "1/3" the first of three, and "7/10" a rating.
_STEP = re.compile(
    r"(?i)\b(?:step|page|part|slide|question|level|round|attempt|day|box|package|item|photo|lap"
    r"|night|week|episode|game|hole|task|test|file|stop|dose|payment)\s$"
)
_SCORED = re.compile(
    r"(?i)\b(?:pain|scores?|scale|index|ratings?|rate\sit|rated|reviews?|gave|give)\b[^.!?\n]{0,24}$"
)
_SET_FRACTIONS = {"24/7": "twenty four seven", "9/11": "nine eleven", "20/20": "twenty twenty",
                  "4/4": "four four"}  # fmt: skip


def _rating(match: Match) -> list[str]:
    """ "4.5/5"."""
    return [amount(match["n"]), "out of", amount(match["d"])]


def read(match: Match) -> list[str] | None:
    """Read a fraction: "3/4", "1-1/2", or a score, a step, a set phrase: "9/10", "24/7"."""
    if before(match)[-1:].isalpha() or _STORAGE.match(after(match)) or _RATES.match(after(match)):
        return None  # Q4/22, 12/16 GB, 28/34 mpg
    top, bottom = int(match["n"]), int(match["d"])
    if (fixed := _SET_FRACTIONS.get(f"{match['n']}/{match['d']}")) and not match["whole"]:
        return [fixed]
    is_part = 0 < top < bottom <= 100
    if not match["whole"] and match.end() == match.end("d"):
        if top + bottom == 100 and bottom >= 10:
            return [amount(match["n"]), amount(match["d"])]  # an "80/20" split
        if top <= bottom and _STEP.search(before(match)):
            return [amount(match["n"]), "of", amount(match["d"])]
        rated = bool(_RATED.search(before(match)) or _STARS.match(after(match)))
        scored = bottom == 10 and bool(_SCORED.search(before(match)))
        rated = rated or (scored and not re.match(r"\s(?:of|miles?|inch)\b", after(match)))
        if bottom in (5, 10, 100) and (top == bottom or rated):
            return _rating(match)
        if 0 < top <= bottom and _is_score(match, bottom):
            return _rating(match)
        codes = bottom > 99 and top // 100 == bottom // 100 > 1
        if codes or _PORTS.search(before(match)):
            return [amount(match["n"]), "slash", amount(match["d"])]  # codes 301/302
    if match["hyphen"] == "-" and not (is_part and bottom in _INCHES):
        return None  # a range
    if not is_part:
        return [*_whole(match), amount(match["n"]), "over", amount(match["d"])]
    part = _SMALL_PARTS.get(bottom) or numbers.ordinal(bottom)
    many = "halves" if bottom == 2 else part + "s"
    return [*_whole(match), numbers.cardinal(top), part if top == 1 else many]


def _is_score(match: Match, bottom: int) -> bool:
    """ "scored 24/30", "got 18/20 on the test", "7/10 people", but "24/30 = 4/5"."""
    behind, following = before(match), after(match)
    if _SIGN_BEFORE.search(behind) or _SIGN_AFTER.match(following):
        return False
    marked = bottom >= _MIN_MARKS and _MARKED.search(behind) and _ENDS.match(following)
    return bool(marked or _MARKS.match(following))


def _whole(match: Match) -> list[str]:
    return [amount(match["whole"]), "and"] if match["whole"] else []


def _of_second(match: Match) -> list[str]:
    """A time of exposure: "1/250 s", "1/1000"."""
    if not match["s"]:
        return ["one over", amount(match["n"])]
    part = int(match["d"])
    return ["one", _SMALL_PARTS.get(part) or numbers.ordinal(part), "of a second"]


SHUTTER = Rule(
    r"1/(?:(?P<d>[1-9]\d{0,3})(?P<s>(?:\s|(?<=\d\d))s(?:ec)?(?![\w'])|(?<=\d\d)\sseconds?\b)"
    r"|(?P<n>[1-9]\d00)(?![\w/]|[.,]\d))",
    _of_second,
    behind=r"[^A-Za-z0-9/.-]?",
)
RATING = Rule(r"(?P<n>\d{1,3}\.\d{1,3})/(?P<d>[45](?:\.0{1,2})?|100?)(?![\d/]|\.\d)", _rating)
FRACTION = Rule(
    r"(?:(?P<whole>\d{1,3})(?P<hyphen>[ \t]{1,2}|-))?(?P<n>\d{1,3})/(?P<d>\d{1,3})"
    r"(?i:(?:st|nd|rd|th)s?\b)?(?![\d/])",
    read,
)

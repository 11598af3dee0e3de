"""Rules for numbers within names: flights, forms, tyres, parts, verses of the Bible."""

from __future__ import annotations

import re

from embedded.normalisation import numbers
from embedded.normalisation.context import after, before
from embedded.normalisation.rules import Match, Reading, Rule
from embedded.normalisation.streets import BEFORE_STREET

#: Before three or four digits that are read in pairs: "flight 837", "Flight BA 2490", "UA837".
_FLIGHT = re.compile(
    r"(?:\b[Ff]lights?\s(?:(?:number|no\.)\s)?#?(?:[A-Z][A-Z0-9]\s?)?"
    r"|\b(?:AA|UA|DL|BA|LH|EK|QF|QR|SQ|JL|EY|CX))$"
)
#: Before and after four digits that are read in pairs.
_NUMBERED = re.compile(
    r"\b(?:[Ff]orms?|[Rr]oom|[Ss]uite|[Rr]oute|[Bb]us|[Mm]odel|Highway|Hwy|RTX|GTX|RX)\s#?$"
)
_FORM = re.compile(r"-[A-Z]{1,5}\b")
_STREET_FOLLOWS = re.compile(rf"\s+{BEFORE_STREET}")


def _paired(match: Match) -> Reading:
    """ "flight BA2490", "Form 1040", "1099-INT", "2490 Elm St."."""
    behind = before(match)
    is_paired = _FLIGHT.search(behind)
    if not is_paired and len(match[0]) == 4:
        following = after(match)
        is_paired = _NUMBERED.search(behind) or _FORM.match(following)
        is_paired = is_paired or _STREET_FOLLOWS.match(following)
    return [numbers.paired(match[0])] if is_paired else None


def _airliner(match: Match) -> Reading:
    """ "737-800", "787-9"."""
    return [numbers.paired(match["type"]), numbers.paired(match["n"])]


RULES: tuple[Rule, ...] = (
    Rule(r"\d{3,4}(?![\dA-Za-z%]|[-.,/:]\d)", _paired, behind=r"[^0-9.,/:-]?"),
    Rule(r"(?P<type>7[0-8]7)-(?P<n>[1-9]00|(?<=787-)(?:8|9|10))(?:(?=ER\b)|(?![\w-]|[.,]\d))",
         _airliner, behind=r"[^A-Za-z0-9.,/-]?"),
)  # fmt: skip

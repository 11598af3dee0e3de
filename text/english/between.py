"""Signs between two values: the dash of a range or of a difference, "x" and "×" between sides or
factors, and the slash of a rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from text.english.amounts import UNIT
from text.english.context import IN_NAME
from text.english.quantities import NUMBER
from text.english.times import DAY_NAME, MONTH_NAME
from text.rules import Match, Reading, Rule, after, before
from text.units import PER, PER_THING

# -- dashes

_DASH = r"(?:[ \t][-–][ \t]|[-–—])"
_SPACED = r"[ \t][-–][ \t]"
_HALF_DAY = r"(?:[AaPp]\.\s?[Mm]\.|[AaPp][Mm])"
_HALF = rf"\d\s?{_HALF_DAY}"
_NOON = r"\b(?i:noon|midnight)"
#: Signs before an amount of money.
MONEY = r"[$€£¥₹]"
_SCALE = r"(?:\s?(?:thousand|million|billion|trillion|[bmt]n)|[kKmMbBtT])"
_DATE = rf"(?:{DAY_NAME}\.?,?\s)?(?:{MONTH_NAME}|\d\d?(?:st|nd|rd|th)?\s{MONTH_NAME})"
_OF_UNIT = rf"\s?(?P<unit>{UNIT}|[kKMB])"
_LAST_UNIT = re.compile(rf"-?{NUMBER}{_OF_UNIT}(?![A-Za-z0-9])")
_FIRST_UNIT = re.compile(rf"\d{_OF_UNIT}$")
#: What is asked for: "What is 10 - 3?", "10 - 3?".
_ASKED = (
    r"(?i)\b(?:what(?:'s|\sis)|calculate|compute|solve|evaluate|simplify|how\smuch\sis)\s"
    r"[\d\s.,()+×÷*/-]*\d$"
)
#: Before a minus sign that has a space on both sides.
_BEFORE_MINUS = (
    r"(?:\b(?:is|was|at|of|to|reads|equals|reached)|=|\b(?i:balance|total|change|net|temperature|low|high"
    r"|profit|difference):)\s$"
)
_ALONE = r"\A[\s\"'(]*\d[\d.]*$"
_DECIMAL = r"\d+(?:\.\d+)?"


def _to(first: str, last: str) -> Rule:
    """Return the rule of a range of times from ``first`` to ``last``."""
    return Rule(rf"{_DASH}(?={last})", "to", if_before=rf"(?:{first})$")


def _of_amounts(first: str, last: str) -> Rule:
    """Return the rule of a range of amounts, or of a difference before an equals sign."""
    return Rule(rf"{_DASH}(?={last})", _to_or_minus, if_before=rf"(?:{first})$")


def _to_or_minus(match: Match) -> Reading:
    return ["minus" if "=" in after(match) else "to"]


def _of_letters(match: Match) -> Reading:
    """ "A–F"."""
    return ["to"] if match.string[match.start() - 1] < match["last"] else None


def _of_gates(match: Match) -> Reading:
    """ "B1–B20", but "A1-B2"."""
    first = re.search(r"\b([A-Z])\d{1,3}$", before(match))
    return _to_or_minus(match) if first and first[1] == match["name"] else None


def _of_units(match: Match) -> Reading:
    """ "5 km–10 km", "500 m–2 km"; with spaces the unit is the same: "5 km - 10 min left"."""
    first = _FIRST_UNIT.search(before(match))
    last = _LAST_UNIT.match(match.string, match.end())
    if not (first and last) or (len(match[0]) > 1 and first["unit"] != last["unit"]):
        return None
    return _to_or_minus(match)


def _subtracted(match: Match) -> Reading:
    """ "x - 2 = 5", "(x - 2)^2", "b² - 4ac"; "Option b - 3 items" has no sign beside it."""
    line = before(match) + after(match)
    return ["minus"] if re.search(r"=|\^[\d(]|[)a-z²]²|\)\s?/\s?[\d(]|\|\s?[<>]", line) else None


_AFTER_FRACTION = r"(?<=[1-9]/[2-9])(?: [-–](?=\d)| -  ?(?=\d\d?/\d)|  [-–]  ?(?=\d))"
_DASHES: tuple[Rule, ...] = (
    _to(rf"{_HALF}|\d:\d\d|{_NOON}|\b\d\d?(?::\d\d)?[AaPp]",
        rf"(?:\d?\d:\d\d(?:\s?{_HALF_DAY})?|(?:\d?\d\.)?\d?{_HALF}|{_NOON}|\d\d?(?::\d\d)?[AaPp])"
        r"(?![A-Za-z0-9])"),
    _to(_NOON, r"\d\d?(?::\d\d)?(?![\d%])"),
    _to(r"\b\d\d?(?::\d\d)?", _NOON),
    _to(r"\d(?:st|nd|rd|th)", r"\d{1,3}(?:st|nd|rd|th)\b"),
    _to(rf"\b(?i:{DAY_NAME})\.?", rf"(?i:{DAY_NAME})"),
    _to(rf"\b{MONTH_NAME}\.?(?:\s\d\d?(?:st|nd|rd|th)?)?(?:,?\s\d{{4}})?", _DATE),
    # letters are a range, except those of a bond in chemistry
    Rule(r"–(?=(?P<last>[A-Z])(?![A-Za-z0-9'–-])(?!\s(?:bond|stretch|coupl)))", _of_letters,
         if_before=r"(?:^|[^A-Za-z0-9–])[A-Z]$"),
    _of_amounts(rf"{MONEY}\s?[\d.,]*\d{_SCALE}?", rf"{MONEY}\.?\d"),
    _of_amounts(r"\b(?i:seats?|rows?)\s\d{1,2}[A-L]", r"(?:\d{1,2})?[A-L](?![A-Za-z0-9'])"),
    _of_amounts(r"\bQ[1-4](?:\s\d{4})?", r"Q[1-4](?!\w)"),
    _of_amounts(r"\b[0-9]{1,3}0s", r"'?[0-9]{1,3}0s\b"),
    _of_amounts(r"\d\s?%", rf"{NUMBER}\s?%"),
    Rule(rf"{_DASH}(?=(?P<name>[A-Z])\d{{1,3}}(?!\w))", _of_gates),
    Rule(rf"{_DASH}(?=-?\d)", _of_units),
    Rule(r"(?:(?<=UTC)|(?<=GMT))[-–](?=\d)", "minus"),
    Rule(r"-(?=\d)", "", behind=r"\d", if_before=rf"{IN_NAME}$"),  # i7-13700, INC-2024-00123
    Rule(r"-(?=\d{1,12}(?:\.\d{1,12})?\s?=)", "minus", behind=r"\d"),
    Rule(rf"[-–—](?!0\d)(?={MONEY}?\.?\d)", "to", behind=r"[\d%°]"),
    Rule(rf"(?<!\*-\*\*)(?<!\*\*\*)[-–](?={MONEY}?\.?\d)", "minus", behind=r"[\s(\[{|,=<>*/+^]?"),
    # "It is - 1.2 °C", "Balance: - $20"
    Rule(rf"[-–][ \t](?={MONEY}?\.?\d)", "minus", behind=r"[ \t]", if_before=_BEFORE_MINUS),
    # "1½–2 cups", "a score of 2½-1½"; a vulgar fraction has a space after it
    Rule(_AFTER_FRACTION, "minus", if_before=r"=[^,;.?!]*$", if_after=r"[^,;.?!]*="),
    Rule(_AFTER_FRACTION, "to"),
    Rule(rf"{_SPACED}(?=\d)", "minus", behind=r"\d", if_before=rf"[+×÷*]\s?{_DECIMAL}$",
         if_after=rf"[\s\S]*=|{_DECIMAL}\s[+×÷*]\s\d"),
    Rule(rf"{_SPACED}(?={_DECIMAL}\s?(?:[?.!](?!\S)|\Z))", "minus", behind=r"\d", if_before=_ASKED),
    Rule(rf"{_SPACED}(?={_DECIMAL}\s?\?)", "minus", behind=r"\d", if_before=_ALONE),
    Rule(r" – (?=\d)", "to", behind=r"\d"),
    Rule(rf"{_SPACED}(?=\d)", ",", behind=r"\d"),
    Rule(r"(?:(?<=\A[b-hj-z])|(?<=[|(]a)|(?<=[\s\d(^*/+=-][b-hj-z])|(?<=[\d)²³]))[ \t][-–][ \t]"
         r"(?=\d|\(|[b-hj-z](?![A-Za-z']))", _subtracted),
    # "2a - b"
    Rule(rf"{_SPACED}(?=\d?[b-hj-z](?![A-Za-z0-9']))", "minus", behind=r"[a-z]",
         if_before=r"(?<![\w.,$-])\d[a-z]$", unless_before=r"(?i)[a-z]\s\d[a-z]$"),
)  # fmt: skip

# -- "x" and "×"

_PHONE = r"\d{3}[-. ]\d{4},?\s$"
#: The first side before the sign in "10 x 12" and "9\" x 13\"".
_SIDE = re.compile(
    r"(?:(?<![A-Za-z])|(?<=\bM))\d(?:\"|'|\s?(?:ft|in|cm|mm|m|km))?(?P<space>\s{0,2})$"
)
#: Units of the sides of a thing: "10 × 12 ft".
_SIDES = r"(?:ft|feet|foot|in|inch|inches|cm|mm|m|px|pixels|meters?)\b|[\"']"


def _by(match: Match) -> Reading:
    """ "10 x 12 feet", "1920x1080"."""
    side = _SIDE.search(before(match))
    if not side or bool(side["space"]) != match[0].endswith(" "):
        return None  # "2x 5 g"
    return ["times" if re.match(r"\d+\s?=", after(match)) else "by"]


#: "5 mg x 7 days", "daily × 2 weeks"
_FOR = Rule(r"[x×]\s?(?=\d{1,3}\s(?:days?|weeks?|wks?|months?|nights?)\b)", "for",
            behind=r"[A-Za-z.)] ")  # fmt: skip
_CROSSES: tuple[Rule, ...] = (
    Rule(rf"×(?=(?:\s?{_DECIMAL}\s?×)?\s?{_DECIMAL}\s?(?:{_SIDES}))", "by"),
    _FOR,
    Rule(r"×(?=\d{3,4}(?!\d|\s?=))", "by", behind=r"\d{3}"),
    Rule(r"×(?=\s?\d)", "times", behind=r"[\d\s]"),
)
#: For "x", which begins with a letter.
LETTERS: tuple[Rule, ...] = (
    Rule(r"x\s?(?=10\s?[\^⁰¹²³⁴-⁹⁻])", "times", behind=r"[\d\s]"),
    _FOR,
    Rule(r"x {0,2}(?=\d)", "extension", behind=r"[\d\s\"'a-z]", if_before=_PHONE),
    Rule(r"x {0,2}(?=\d)", _by, behind=r"[\d\s\"'a-z]", unless_before=r"(?:^|\D)0$"),  # 0x12
    Rule(r"x(?=/(?:day|week|wk|mo|month|yr|year)\b|\s(?:daily|weekly|monthly|yearly|per|each"
         r"|an?\s(?:day|week|month|year))\b)", "times", behind=r"\d"),
)  # fmt: skip

# -- slashes

#: The dot after "/mo." belongs to the abbreviation if the sentence continues; after "/month." not.
_IN_FULL = ")(?<!".join(word for word in PER if PER[word] == word)
#: "day/night" has no number before it.
_UNCOUNTED = rf"(?:^|(?<![\d%])[\s(])(?:{'|'.join(filter(str.islower, PER))})$"


def _per(units: Iterable[str], if_before: str | None = None) -> Rule:
    names = "|".join(sorted(units, key=len, reverse=True))
    return Rule(
        rf"/\s?(?P<per>{names})\b(?:(?<!{_IN_FULL})\.(?=\s+[a-z\d]|[,;:)]))?",
        lambda match: ["per", PER[match["per"]]],
        behind=r"[A-Za-z0-9%\"²³]",
        if_before=if_before,
        unless_before=_UNCOUNTED,
    )


_RATES: tuple[Rule, ...] = (
    _per(PER.keys() - PER_THING.keys()),
    # "$25/ticket", but "parent/child"
    _per(PER_THING, if_before=r"\d\s?(?:[A-Za-z]{1,4})?$"),
    # "5 mg/5 mL", "60 mL/min/1.73 m²"
    Rule(r"/(?=\d{1,4}(?:\.\d{1,3})?\s?(?:mL|ml|L|dL|kg|m²|m2|min)\b)", "per",
         behind=r"[A-Za-z]", if_before=r"\d\s?[A-Za-z]{1,5}(?:/[A-Za-z]{1,3})?$"),
    Rule(r"/(?=\d\d?\s?(?:h|hrs?|hours)\b)", "per", behind=r"[A-Za-z]"),
    # "$300/axle"
    Rule(r"/(?=[a-z]{3})", "per", behind=r"[\dkKM]", if_before=r"[$€£]\d[\d,.]*[kKM]?$"),
)  # fmt: skip
SIGNS: tuple[Rule, ...] = (*_DASHES, *_CROSSES, *_RATES)

"""Rules for times of day, dates, telephone numbers and other groups of digits."""

from __future__ import annotations

import re

from embedded.reading import numbers
from embedded.reading.lexicon import DAYS, MONTHS
from embedded.reading.rules import Match, Reading, Rule, dot_ends

_HALF = r"(?:(?P<half>[AaPp])(?:\.\s?[Mm]\.|[Mm]\b))"
_ANY_CASE = "jan(?:uary)?|feb(?:ruary)?|apr(?:il)?|june?|july?|aug(?:ust)?|sept?(?:ember)?" \
    "|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"  # fmt: skip
#: "may" and "march" are months with a capital only.
MONTH = rf"(?P<month>(?i:{_ANY_CASE})|M(?:ar(?:ch)?|ay|AR|ARCH|AY))\b\.?"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?P<th>st|nd|rd|th)?"
_YEAR = r"(?P<year>1\d\d\d|20\d\d)"
#: A word before "5/11" that makes it a date.
_DATED = re.compile(r"(?i)\b(?:on|by|until|before|after|since|from|dated?|due)\s$")
_DAYS = "Mon|Tues?|Wed|Thu|Thurs?|Fri|Sat|Sun"
_MOST_ADDRESS_PART = 255
_LEAST_PHONE_DIGITS = 7


def _time(match: Match) -> Reading:
    hour, minute = int(match["h"]), int(match["m"])
    if hour > 24:
        return None
    words = numbers.cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{numbers.cardinal(minute)}"
    elif not match["half"] and not match["s"]:
        words = {0: "midnight"}.get(hour) or words + (" o'clock" if hour <= 12 else " hundred")
    if match["s"]:
        second = int(match["s"])
        words += " oh oh" if not minute else ""
        words += f" {'oh ' if second < 10 else ''}{numbers.cardinal(second)}"
    return [words, *_half(match)]


def _hour(match: Match) -> Reading:
    hour = int(match["h"])
    return [numbers.cardinal(hour), *_half(match)] if 1 <= hour <= 12 else None


def _half(match: Match) -> list[str]:
    if not match["half"]:
        return []
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return ["ay em" if match["half"] in "aA" else "pee em", *(["."] if stop else [])]


def month_name(written: str) -> str:
    """The month that a name or its first letters mean."""
    return next(name for name in MONTHS if name.startswith(written[:3].lower()))


def _month_day(match: Match) -> Reading:
    words = [month_name(match["month"]), numbers.ordinal(int(match["day"]))]
    if match["to"]:
        words += ["to", numbers.ordinal(int(match["to"]))]
    return [*words, *_year(match)]


def _year(match: Match) -> list[str]:
    return [",", numbers.year(int(match["year"]))] if match["year"] else []


def _day_month(match: Match) -> Reading:
    day, month = numbers.ordinal(int(match["day"])), month_name(match["month"])
    said = match.string[max(0, match.start() - 4) : match.start()].lower() == "the "
    return [*([] if said or match["of"] else ["the"]), day, "of", month, *_year(match)]


def _month_year(match: Match) -> Reading:
    return [month_name(match["month"]), numbers.year(int(match["year"]))]


def _month(match: Match) -> Reading:
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [month_name(match["month"]), *(["."] if stop else [])]


def _iso_date(match: Match) -> Reading:
    words = _date(int(match["y"]), int(match["m"]), int(match["d"]))
    return [*words, ","] if words and match[0].endswith("T") else words


def _slash_date(match: Match) -> Reading:
    """Month first, as in America, unless it can only be the day."""
    first, second, written = int(match["a"]), int(match["b"]), match["y"]
    if (
        not written
        and second <= 12
        and not _DATED.search(match.string[max(0, match.start() - 12) : match.start()])
    ):
        return None  # a fraction
    year = int(written) if written else None
    if written and len(written) == 2:
        year = int(written) + (2000 if int(written) < 50 else 1900)
    month, day = (second, first) if first > 12 else (first, second)
    return _date(year, month, day)


def _date(year: int | None, month: int, day: int) -> Reading:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    words = [MONTHS[month - 1], numbers.ordinal(day)]
    return words if year is None else [*words, ",", numbers.year(year)]


def _weekday(match: Match) -> Reading:
    words = [DAYS[match["day"].lower()]]
    return [*words, "to", DAYS[match["to"].lower()]] if match.groupdict().get("to") else words


def _address(match: Match) -> Reading:
    parts = match[0].split(".")
    if any(int(part) > _MOST_ADDRESS_PART for part in parts):
        return None
    return [" dot ".join(numbers.digits(part) for part in parts)]


def _phone(match: Match) -> Reading:
    """Groups of digits that can only be a telephone, card or account number."""
    groups = re.findall(r"\d+", match[0])
    total = sum(map(len, groups))
    separators = set(re.findall(r"(?<=\d)[ .-](?=\d)", match[0]))
    sure = match[0][0] in "+("
    hyphens = separators == {"-"} and (len(groups) > 2 or [len(g) for g in groups] == [3, 4])
    dots = separators == {"."} and len(groups) > 2
    card = len(groups) > 2 and all(len(group) == 4 for group in groups)
    us = [len(group) for group in groups] == [3, 3, 4]
    if total < _LEAST_PHONE_DIGITS or not (sure or hyphens or dots or card or us):
        return None
    plus = ["plus"] if match[0][0] == "+" else []
    words = [part for group in groups for part in (numbers.digits(group), ",")]
    return [*plus, *words[:-1]]


def _code(match: Match) -> Reading:
    return [numbers.digits(match[0])]


DATES: tuple[Rule, ...] = (
    Rule(rf"{MONTH}\s+{_DAY}(?:\s?[-–]\s?(?P<to>[12]\d|3[01]|[1-9])(?:st|nd|rd|th)?)?"
         rf"(?![\d:%]|[.,]\d|\s?[AaPp]\.?[Mm]\b)(?:,?\s+{_YEAR}\b)?", _month_day),
    Rule(rf"{MONTH},?\s+{_YEAR}\b", _month_year),
    Rule(r"(?P<month>Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\b\.?", _month),
    Rule(rf"(?P<day>{_DAYS})\s?[-–]\s?(?P<to>{_DAYS})\b", _weekday),
    Rule(r"(?P<day>Mon|Tues?|Wed|Thu|Thurs?|Fri)\b(?:\.(?=\s+[a-z\d])|(?=[,.–-]|\s+\d))",
         _weekday),
    Rule(r"(?P<day>Sat|Sun)\b\.?(?=,?\s+(?:\d|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)))",
         _weekday),
)  # fmt: skip
TIMES: tuple[Rule, ...] = (
    Rule(rf"(?P<h>\d\d?):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?(?![\d:])(?:\s?{_HALF})?", _time),
    Rule(rf"(?P<h>\d\d?)\s?{_HALF}", _hour),
    Rule(r"(?P<y>[12]\d{3})-(?P<m>\d\d)-(?P<d>\d\d)(?!\d)(?:T(?=\d))?", _iso_date),
    Rule(r"(?P<a>\d\d?)/(?P<b>\d\d?)/(?P<y>\d{4}|\d\d)(?![\d/])", _slash_date),
    Rule(r"(?P<a>1[0-2]|[2-9])/(?P<b>[12]\d|3[01]|[1-9])(?P<y>)(?![\d/]|\.\d)", _slash_date),
    Rule(rf"{_DAY}\s+(?P<of>of\s+)?{MONTH}(?:,?\s+{_YEAR}\b)?", _day_month),
    Rule(r"\d{1,3}(?:\.\d{1,3}){3}(?![.\d])", _address),
)
PHONES: tuple[Rule, ...] = (
    Rule(r"\+?(?:\(?\d{1,4}\)?[ .-]{1,2}){1,7}\d{2,4}(?![\d,]|\.\d)", _phone),
    Rule(r"\+\d{7,15}(?!\d)", lambda match: ["plus", numbers.digits(match[0][1:])]),
    Rule(r"\d{13,}", _code),
)

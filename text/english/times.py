"""Rules for times of day and dates."""

from __future__ import annotations

import re

from text.english import numbers
from text.english.context import OPTION, is_labelled
from text.english.phones import ADDRESS
from text.english.quantities import counted
from text.rules import Match, Reading, Rule, after, before, paused, stopped
from text.vocabulary import DAYS, MONTHS

#: "9:15p", "8a-5p": the letter alone stands for half a day.
_LETTER_HALF = r"(?P<half>[AaPp])(?!\.?[A-Za-z0-9']|\s[Mm]\b)"
_HALF = r"(?:(?P<half>[AaPp])(?:\.\s?[Mm]\b\.?|[Mm]\b))"
#: Months in full or by their first letters.
_MONTHS = {month: f"{month[:3]}(?:{month[3:]})?" for month in MONTHS} | {"may": "may"}
_ANY_CASE = "|".join(_MONTHS[month] for month in MONTHS if month not in ("march", "may"))
#: "may" and "march" are months only with a capital.
MONTH = rf"(?P<month>(?i:{_ANY_CASE}|sept)|M(?:ar(?:ch)?|ay|AR|ARCH|AY))\b\.?"
MONTH_NAME = rf"(?:{'|'.join(map(str.capitalize, _MONTHS.values()))}|Sept)\b"
_DAYS = "|".join(sorted(map(str.capitalize, DAYS), reverse=True))
DAY_NAME = rf"(?:{_DAYS}|(?:{'|'.join(map(str.capitalize, DAYS.values()))})s?)\b"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?P<th>st|nd|rd|th)?"
_YEAR = r"(?P<year>1\d\d\d|20\d\d)"
#: A word before "5/11" that makes it a date, and words that still make it a fraction.
_DATED = re.compile(
    rf"(?i)\b(?:on|by|until|before|after|since|from|dated?|due|{'|'.join(DAYS.values())}|{_DAYS})"
    r"\.?[:,]?\s"
    r"(?:\d\d?/\d\d?,?\s(?:and|or|to|through)\s)?$"
)
_PARTED = re.compile(
    r"(?i)\b(?:increas|decreas|reduc|rais|cut|grew|grow|f[ae]ll|drop|r[io]s|shr[aiu]nk|multipl"
    r"|divid|up|down|off)[a-z]*\s(?:[a-z]+\s){0,3}by\s$"
)
#: A unit of memory: "12/16 GB".
STORAGE = r"\s?[KMGT]i?B\b"
_PART_OF = re.compile(
    r"(?i)\s?(?:(?:to|or|and)\s\d\d?/\d\d?\s)?(?:of|cups?|inch(?:es)?|miles?|tsp|tbsp|teaspoons?"
    r"|tablespoons?|pounds?|lbs?|oz"
    rf"|hours?|the|an?)\b|{STORAGE}|\s\(\d{{1,3}}(?:\.\d+)?%\)|\s?[+=×÷*]\s?\d"
)
#: What shows that "Dec −16°" is the declination of a star.
_DECLINATION = re.compile(
    r"\bRA\b[^.\n]{0,24}\0:?\s[-+]\d\d?(?:\.\d+)?°(?!\s?[CF])|\0:?\s[-+]\d\d?°\s?\d\d?'"
)
_EQUATED = re.compile(r"(?:\b[A-Za-z]\s?=|\d\s?[+=×÷*])\s?$")
_LETTER_DAYS = {"F": "friday", "Th": "thursday", "Sa": "saturday", "Sat": "saturday",
                "Su": "sunday", "Sun": "sunday"}  # fmt: skip
_AND = r",?\s(?:and|or|thru|through|to|until|till|&)"
#: Another day before or after one, as the end of a range or in a list, shows that it is a day.
_AFTER_DAY = rf"\b{DAY_NAME}\.?(?:[ \t]?[-–—][ \t]?|(?:{_AND}|,)\s)$"
_BEFORE_DAY = rf"(?:[ \t]?[-–—][ \t]?|{_AND}\s){DAY_NAME}"
#: Text before or after "Mar." that shows that it is the month and not a name.
_BEFORE_MAR = (
    r"(?:\b(?:in|to|of|by|from|early|late|mid|since|until|till|through|and|or|last|next|this)\s"
    rf"|{MONTH_NAME}\.?[ \t]?[-–—][ \t]?)$"
)
_AFTER_MAR = rf"[ \t]?[-–—][ \t]?{MONTH_NAME}"
#: Words with a capital that may follow "3 p.m." without beginning a sentence.
_OF_THE_TIME = re.compile(
    r"\s+\(?(?:[AECMPH][SD]?T|AK[SD]T|GMT|UTC|BST|CES?T|IST|JST|KST|AE[SD]T|Eastern|Central"
    rf"|Mountain|Pacific|Greenwich|{DAY_NAME}|{MONTH_NAME}\.?\s+\d)\b"
)
#: What shows before or after "8a" that it is a time.
_BEFORE_LETTER = r"(?:(?<!:)(?:\b\d|\d\d)[AaPp]?[-–]|\b(?:by|from|until|till|before|after)\s)$"
_AFTER_LETTER = r"[ \t]?[-–][ \t]?(?:\d\d?(?::\d\d)?[AaPp]|noon|midnight)\b"
_OFFSET = re.compile(r"(?:UTC|GMT)\s?[-+–]$")
_HOURS = r"\s?(?:hrs?|hours)\b"
#: What shows before or after "1:10" that it is a ratio, and before "42:7" that it is a place in a
#: file.
_AFTER_RATIO = re.compile(r"\s(?:[a-z]{1,12}\s)?(?:ratio|mix(?:ture)?|dilution|odds|scale|split)\b")
IN_FILE = r"(?:\b[Ll]ines?\s|\.[a-z]{1,5}:)"
_BEFORE_RATIO = re.compile(
    r"(?:\b(?i:mix(?:ed)?|dilut(?:e|ed|ion)|(?:ratio|proportion|scale|odds)(?:\s(?:of|is))?)\s"
    rf"|{IN_FILE}|{OPTION})$"
)
_BEFORE_HOURS = r"(?i)\b(?:at|by|from|to|until|till|before|after)\s$"
#: After "Step 1 May", which is no date.
_NO_VERB = (
    r"(?!(?<=May)\s(?:be|have|take|need|not|cause|contain|include|require|result|vary"
    r"|differ|apply|help|seem|look|cost|fail)\b)"
)
#: Months that are also verbs.
_VERBS = frozenset({"May", "March"})
_BEFORE_WEEK, _AFTER_WEEK = r"\d\s?(?:[AaPp]\.?[Mm]?\.?)?,?\s$", r"[,:]?\s\d"


def _time(match: Match) -> Reading:
    if _OFFSET.search(before(match)):
        return [_offset(match["h"], match["m"])]
    if not (match["half"] or match["s"]) and (
        _BEFORE_RATIO.search(before(match)) or _AFTER_RATIO.match(after(match))
    ):
        return None
    hour, minute, second = int(match["h"]), int(match["m"]), int(match["s"] or 0)
    if hour > 24:
        return None
    words = numbers.cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{numbers.cardinal(minute)}"
    elif not match["half"] and not second:
        hundred = hour > 12 or re.match(_HOURS, after(match))
        words = {0: "midnight"}.get(hour) or words + (" hundred" if hundred else " o'clock")
    if second:
        words += " oh oh" if not minute else ""
        words += f" {'oh ' if second < 10 else ''}{numbers.cardinal(second)}"
    if part := match.groupdict().get("part"):
        words += f" point {numbers.digits(part)}"
    return [words, *_half(match)]


def _offset(hours: str, minutes: str) -> str:
    """Read the difference to UTC: "05:30" is "five thirty"."""
    words = numbers.cardinal(int(hours))
    return f"{words} {numbers.cardinal(int(minutes))}" if int(minutes or 0) else words


def _iso_time(match: Match) -> Reading:
    """ "T14:30:00.000Z", "T14:30+05:30"; the part of a second is not read."""
    words = _time(match)
    if words is None or not match["zone"]:
        return words
    if match["zone"] in "Zz":
        return [*words, ",", "you tee see"]
    sign = "plus" if match["zone"][0] == "+" else "minus"
    return [*words, ",", "you tee see", sign, _offset(match["zh"], match["zm"])]


def _letter_hour(match: Match) -> Reading:
    """ "8a-5p", "until 9p"."""
    return None if is_labelled(match) else _hour(match)


def _hundred_hours(match: Match) -> Reading:
    """ "at 1900 hrs", "by 0830 hours"."""
    hour, minute = int(match["h"]), int(match["m"])
    words = numbers.cardinal(hour) if match["h"][0] != "0" else f"oh {numbers.cardinal(hour)}"
    return [f"{words} {numbers.cardinal(minute) if minute else 'hundred'}"]


def _year_and(match: Match) -> Reading:
    """The month of a year, "2025-01", or the end of a season, "2008-09"."""
    year, last = int(match["y"]), int(match["n"])
    if last == (year + 1) % 100:
        end = f"{'oh ' if last < 10 else ''}{numbers.cardinal(last)}"
        return [numbers.year(year), "to", end if last else numbers.year(year + 1)]
    if 1 <= last <= 12 and last < year % 100:
        return [MONTHS[last - 1], numbers.year(year)]
    return None


def _hour(match: Match) -> Reading:
    hour = int(match["h"])
    return [numbers.cardinal(hour), *_half(match)] if 1 <= hour <= 12 else None


def _half(match: Match) -> list[str]:
    if not match["half"]:
        return []
    words = "ay em" if match["half"] in "aA" else "pee em"
    return [words] if _OF_THE_TIME.match(after(match)) else stopped(match, words)


def _lap(match: Match) -> Reading:
    """ "a lap of 1:18.792"."""
    seconds = numbers.amount(match["s"].lstrip("0") or "0")
    oh = "oh " if match["s"][0] == "0" and seconds != "zero" else ""
    return [numbers.amount(match["m"]), f"{oh}{seconds} point {numbers.digits(match['part'])}"]


def _duration(match: Match) -> Reading:
    """ "1h 30m", "2 h 5 min", "5m30s": here the "m" is no meter."""
    words = []
    for name in ("hour", "minute", "second"):
        if written := match[name]:
            written = written.lstrip("0") or "0"
            words += counted(name, f"{name}s", written)
    return words


def month_name(written: str) -> str:
    """Return the month of a name or its first letters."""
    return next(name for name in MONTHS if name.startswith(written[:3].lower()))


def _month_day(match: Match) -> Reading:
    words = [month_name(match["month"]), numbers.ordinal(int(match["day"]))]
    if match["to"]:
        words += ["to", numbers.ordinal(int(match["to"]))]
    return [*words, *_year(match)]


def _year(match: Match) -> list[str]:
    return [",", numbers.year(int(match["year"]))] if match["year"] else []


def _day_month(match: Match) -> Reading:
    if not match["year"] and match["month"] in _VERBS and is_labelled(match, letter=True):
        return None  # "Chapter 3 March of the ants"
    day, month = numbers.ordinal(int(match["day"])), month_name(match["month"])
    said = before(match)[-4:].lower() == "the "
    words = [*([] if said or match["of"] else ["the"]), day, "of", month, *_year(match)]
    # "3 Jan. at noon", but May is never abbreviated.
    in_full = match["month"].lower() == month
    return [*words, "."] if in_full and match[0].endswith(".") else stopped(match, *words)


def _month_year(match: Match) -> Reading:
    return [month_name(match["month"]), numbers.year(int(match["year"]))]


def _month(match: Match) -> Reading:
    if match["month"] == "Dec" and _DECLINATION.search(f"{before(match)}\0{after(match)}"):
        return None
    return stopped(match, month_name(match["month"]))


def _month_of_year(match: Match) -> Reading:
    """ "08/2027"."""
    return [MONTHS[int(match["m"]) - 1], numbers.year(int(match["y"]))]


def _iso_date(match: Match) -> Reading:
    words = _date(int(match["y"]), int(match["m"]), int(match["d"]))
    return [*words, ","] if words and match[0].endswith("T") else words


def _slash_date(match: Match) -> Reading:
    """Month first, as in America, unless the first number can only be the day."""
    first, second, written = int(match["a"]), int(match["b"]), match["y"]
    if not written and not _is_day(match, first, second):
        return None  # a fraction
    year = int(written) if written else None
    if written and len(written) == 2:
        year = int(written) + (2000 if int(written) < 50 else 1900)
    month, day = (second, first) if first > 12 else (first, second)
    return _date(year, month, day)


def _is_day(match: Match, first: int, second: int) -> bool:
    """Whether "5/11", without a year, is a date and not a fraction."""
    if _PART_OF.match(after(match)) or _PARTED.search(before(match)):
        return False
    if _EQUATED.search(before(match)):
        return False
    if _DATED.search(before(match)) or "0" in (match["a"][0], match["b"][0]):
        return True
    return second > 12 and first > 1  # "1/16" is a sixteenth


def _date(year: int | None, month: int, day: int) -> Reading:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    words = [MONTHS[month - 1], numbers.ordinal(day)]
    return words if year is None else [*words, ",", numbers.year(year)]


def _weekday(match: Match) -> Reading:
    return [DAYS[match["day"].lower()]]


def _day(match: Match) -> Reading:
    return stopped(match, DAYS[match["day"].lower()])


def _slashed_days(match: Match) -> Reading:
    """ "Mon/Wed/Fri"."""
    return paused(DAYS[day.lower()] for day in match[0].split("/"))


def _weekdays(match: Match) -> Reading:
    return stopped(match, DAYS[match["day"].lower()], "to", DAYS[match["to"].lower()])


def _parts_of_date(match: Match) -> Reading:
    """ "dd/mm/yyyy", "MM/YY", "hh:mm"."""
    names = {"d": "day", "m": "month", "y": "year", "h": "hour", "s": "second"}
    if ":" in match[0]:
        names["m"] = "minute"
    return paused(names[part[0].lower()] for part in re.findall("[A-Za-z]+", match[0]))


DATES: tuple[Rule, ...] = (
    Rule(r"(?:DD|MM|YY(?:YY)?|HH|dd|mm|yy(?:yy)?|hh)(?:[/:.-](?:DD|MM|SS|YY(?:YY)?|dd|mm|ss|yy(?:yy)?)){1,2}"
         r"(?![\w/-])", _parts_of_date, behind=r"[^\w/-]?"),
    # "Jan-15-2020", "may 17, 2010"
    Rule(rf"{MONTH}-{_DAY}(?P<to>)-{_YEAR}\b", _month_day),
    Rule(rf"(?P<month>march|may)\s{_DAY}(?P<to>),?\s{_YEAR}\b", _month_day),
    Rule(rf"M[-–](?P<to>{'|'.join(_LETTER_DAYS)})(?![A-Za-z0-9])",
         lambda match: ["monday to", _LETTER_DAYS[match["to"]]], behind=r"[^A-Za-z0-9]?",
         if_before=_BEFORE_WEEK, if_after=_AFTER_WEEK),  # "M-F 9-5", "9-5 M-F"
    Rule(rf"{MONTH}\s+{_DAY}(?:[ \t]?[-–][ \t]?(?P<to>[12]\d|3[01]|[1-9])(?:st|nd|rd|th)?)?"
         rf"(?![\d:%]|[.,]\d|\s?[AaPp]\.?[Mm]\b)(?:,?\s+{_YEAR}\b)?", _month_day),
    Rule(rf"{MONTH},?\s+{_YEAR}\b", _month_year),
    Rule(r"(?P<month>Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\b\.?", _month),
    Rule(r"(?<!Del )(?P<month>Mar)\b\.?", _month, if_before=_BEFORE_MAR, if_after=_AFTER_MAR),
    Rule(r"(?<!Del )(?P<month>Mar)\.(?=\s+[a-z\d])", _month),
    Rule(rf"(?P<day>{_DAYS})\.?(?:[ \t]?[-–][ \t]?|—)(?P<to>{_DAYS})\b\.?", _weekdays),
    Rule(rf"(?:{_DAYS})(?:/(?:{_DAYS}))+\b", _slashed_days),
    Rule(rf"(?P<day>{_DAYS})\b\.?", _day, if_before=_AFTER_DAY, if_after=_BEFORE_DAY),
    Rule(r"(?P<day>Mon|Tues?|Wed|Thu|Thurs?|Fri)\b(?:\.(?=\s+[a-z\d])|(?=[,.:–-]|\s+\d))",
         _weekday),
    Rule(rf"(?P<day>Sat|Sun)\b\.?(?=,?\s+(?:\d|{MONTH_NAME}))", _weekday),
    Rule(r"(?<=[Oo]n )(?P<day>Sat|Sun)(?:\.(?=\s+[a-z\d])|(?=\.?\s*$|\.\s|[,;:)?!]))", _weekday),
    Rule(rf"(?<=\| )(?P<day>{_DAYS})(?=\s{{1,9}}\|)", _weekday),
    Rule(r"(?<![Tt]he )(?P<day>Sat|Sun)(?:\.(?=,?\s+[a-z])|(?=:\s))", _weekday, behind=r"\s?"),
)  # fmt: skip
TIMES: tuple[Rule, ...] = (
    Rule(
        r"(?P<hour>\d{1,3})\s?h\s?(?P<minute>\d\d?)\s?m(?:in)?\b"
        r"(?:\s?(?P<second>\d\d?(?:\.\d{1,3})?)\s?s\b)?",
        _duration,
    ),
    Rule(r"(?P<hour>)(?P<minute>\d\d?)m\s?(?P<second>\d\d?)s\b", _duration),
    Rule(
        r"(?<=\dT)(?P<h>\d\d):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d)(?:[.,]\d{1,9})?)?(?![\d:])(?P<half>)"
        r"(?P<zone>Z\b|[-+](?P<zh>\d\d):?(?P<zm>[0-5]\d)?(?![\d:]))?",
        _iso_time,
    ),
    Rule(rf"(?P<h>\d\d?):(?P<m>[0-5]\d)(?P<s>){_LETTER_HALF}", _time),
    Rule(
        r"(?P<m>\d\d?):(?P<s>[0-5]\d)\.(?P<part>\d{1,3})(?![\d:]|\s?[AaPp]\.?[Mm])",
        _lap,
        behind=r"[^0-9:.]?",
    ),
    Rule(
        r"(?P<h>\d\d?):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d)(?:\.(?P<part>\d{1,9}))?)?(?![\d:])"
        rf"(?:\s?{_HALF})?",
        _time,
    ),
    Rule(rf"(?P<h>1[0-2]|0?[1-9])\.(?P<m>[0-5]\d)(?P<s>)\s?{_HALF}", _time),
    Rule(r"(?P<h>[01]?\d|2[0-4])h(?P<m>[0-5]\d)(?P<s>)(?P<half>)(?![A-Za-z0-9])", _time),
    Rule(rf"(?P<h>[01]\d|2[0-3])(?P<m>[0-5]\d)(?={_HOURS})", _hundred_hours,
         if_before=_BEFORE_HOURS),
    Rule(rf"(?P<h>\d\d?)\s?{_HALF}", _hour),
    Rule(rf"(?P<h>1[0-2]|0?[1-9]){_LETTER_HALF}", _letter_hour, if_before=_BEFORE_LETTER,
         if_after=_AFTER_LETTER),
    Rule(r"(?P<y>[12]\d{3})-(?P<m>\d\d)-(?P<d>\d\d)(?!\d)(?:T(?=\d))?", _iso_date),
    Rule(
        r"(?P<y>(?:19|20)\d\d)-(?P<n>0\d|1[0-2])(?![\dA-Za-z/-]|\.\d)",
        _year_and,
        behind=r"[^A-Za-z0-9-]?",
    ),
    Rule(r"(?P<y>(?:19|20)\d\d)/(?P<m>\d\d?)/(?P<d>\d\d?)(?![\d/])", _iso_date),
    Rule(r"(?P<a>\d\d?)/(?P<b>\d\d?)/(?P<y>\d{4}|\d\d)(?![\d/])", _slash_date),
    Rule(r"(?P<a>\d\d?)-(?P<b>\d\d?)-(?P<y>(?:19|20)\d\d)(?!-?\d)", _slash_date),
    # with dots the day comes first everywhere
    Rule(r"(?P<b>\d\d?)\.(?P<a>\d\d?)\.(?P<y>(?:19|20)\d\d)(?!\.?\d)", _slash_date),
    Rule(
        r"(?P<a>1[0-2]|0?[1-9])/(?P<b>[12]\d|3[01]|0?[1-9])(?P<y>)(?![\d/]|\.\d|(?i:ths?)\b)",
        _slash_date,
        behind=r"[^A-Za-z]?",
    ),
    Rule(
        r"(?P<m>1[0-2]|0[1-9])/(?P<y>20\d\d)(?![\d/]|[.-]\d)",
        _month_of_year,
        behind=r"[^A-Za-z0-9/.-]?",
    ),
    # "15-Jan-2020", "17 may 2010"
    Rule(rf"{_DAY}-(?P<of>){MONTH}-{_YEAR}\b", _day_month),
    Rule(rf"{_DAY}\s(?P<of>of\s)?(?P<month>march|may),?\s{_YEAR}\b", _day_month),
    Rule(rf"{_DAY}\s+(?P<of>of\s+)?{MONTH}{_NO_VERB}(?:,?\s+{_YEAR}\b)?", _day_month),
    ADDRESS,
)  # fmt: skip

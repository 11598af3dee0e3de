"""Spelling, and the readings that ``say-as`` asks for, as text that any front end reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from text.vocabulary import MONTHS

_SIGNS = {
    ".": "dot", "@": "at", "-": "dash", "_": "underscore", "/": "slash", "\\": "backslash",
    "+": "plus", "#": "hash", "*": "star", "&": "and", ":": "colon", "=": "equals",
    "%": "percent", "$": "dollar", "!": "exclamation mark", "?": "question mark",
}  # fmt: skip
#: Parts of a date, in the order of ``format`` attributes.
_ORDERS = ("ymd", "ydm", "mdy", "dmy", "ym", "my", "md", "dm")
#: Two neighbours, a letter among them.
_JOINED = re.compile(r"[A-Z][A-Z0-9]|[0-9][A-Z]")
_NOT_DIGIT = re.compile(r"[^0-9+*#]+")


def spell(text: str) -> str:
    """Return the characters of ``text`` one by one. Spaces and line breaks become pauses.

    A hyphen joins letters to each other and to digits, since "A 7" would be read as an article.
    """
    return ", ".join(map(_spell_word, text.split()))


def _spell_word(word: str) -> str:
    names = [_SIGNS.get(char, char.upper()) for char in word if char.isprintable()]
    spelled = "".join(names[:1])
    for before, name in pairwise(names):
        is_joined = _JOINED.fullmatch(before + name) is not None
        spelled += ("-" if is_joined else " ") + name
    return spelled


def digits(text: str) -> str:
    """Return digits one by one, in the groups in which they are written."""
    return spell(_NOT_DIGIT.sub(" ", text)) if _has_digit(text) else text


def ordinal(text: str) -> str:
    """Return "3rd" for "3"; other texts as they are."""
    number = text.strip()
    if not (number.isascii() and number.isdecimal()):
        return text
    is_teen = number[-2:-1] == "1"
    ending = "th" if is_teen else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th")
    return number + ending


def date(text: str, order: str = "") -> str:
    """Return a date with the month's name. ``order``: of year, month and day, as "mdy"; found out
    if empty. A text that is no such date is returned as it is.
    """
    parts = re.split(r"[-/. ]", text.strip())
    order = order.lower()
    if order not in _ORDERS:
        order = "ymd" if len(parts[0]) == 4 else "mdy"
    if len(parts) != len(order) or not all(p.isascii() and p.isdecimal() for p in parts):
        return text
    named = dict(zip(order, parts, strict=True))
    month, day = int(named["m"]), named.get("d")
    if not 1 <= month <= 12 or (day is not None and not 1 <= int(day) <= 31):
        return text
    said = MONTHS[month - 1].capitalize() + ("" if day is None else f" {int(day)}")
    year = named.get("y")
    return said if year is None else f"{said}{', ' if day else ' '}{year}"


def _has_digit(text: str) -> bool:
    return any(char.isdigit() for char in text)


def _unchanged(text: str, _: str) -> str:
    return text


#: Readings by ``interpret-as``, from the text and the ``format``. Front ends and talkers read the
#: unchanged ones from their signs: "$5.20", "14:30".
READINGS: dict[str, Callable[[str, str], str]] = {
    **dict.fromkeys(
        ("characters", "character", "spell-out", "spell", "letters", "verbatim"),
        lambda text, _: spell(text),
    ),
    **dict.fromkeys(
        ("digits", "digit", "number_digit", "telephone", "phone"), lambda text, _: digits(text)
    ),
    **dict.fromkeys(("ordinal",), lambda text, _: ordinal(text)),
    "date": date,
    **dict.fromkeys(
        ("cardinal", "number", "time", "currency", "money", "unit", "fraction", "address", "name"),
        _unchanged,
    ),
}

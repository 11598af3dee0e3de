"""Graded deliveries: a speed, pitch or volume as a word, a ratio, percent or decibels."""

from __future__ import annotations

import re

from text.markup.elements import Delivery
from text.markup.vocabulary import delivery_value, manner_of

_NUMBER = re.compile(
    r"(?P<sign>[+-])?(?P<number>\d{1,4}(?:\.\d{1,4})?)\s?(?P<unit>%|st|hz|db|x)?", re.I
)
#: Limits between the named speeds, as factors of the normal one, near which none has a name.
_SPEEDS = ((0.75, "very_slow"), (0.95, "slow"), (1.05, ""), (1.3, "fast"))
#: What the server itself does to the samples for a word; a volume is a factor of the amplitude.
_FACTORS = {
    "speed": {"very_slow": 0.7, "slow": 0.85, "fast": 1.2, "very_fast": 1.5},
    "volume": {"silent": 0.0, "very_soft": 0.25, "soft": 0.5, "loud": 1.5, "very_loud": 2.0},
}
#: The least and the largest factor.
FACTOR_LIMITS = {"speed": (0.5, 2.0), "volume": (0.0, 2.0)}
#: Numbers without a unit above this are percent, as in SSML 1.0; others are too fast or loud.
_MOST_RATIO = {"speed": 20.0, "volume": 4.0, "pitch": 4.0}
#: Values that stand for no particular delivery.
_NORMAL = frozenset({"medium", "neutral", "default", "normal"})
#: Decimal places of a factor.
_PLACES = 2


def graded_name(aspect: str, written: str) -> str | None:
    """Return the name of a graded value: "+20%", "1.3", "-2st", "x-low"; None if it is none."""
    if aspect == "pitch" and written in ("x-low", "x-high"):
        return written[2:]
    if aspect not in ("speed", "pitch", "volume") or (ratio := _ratio(aspect, written)) is None:
        return None
    if ratio == 1:
        return "medium"
    if aspect == "speed":
        return next((name for limit, name in _SPEEDS if ratio < limit), "very_fast") or None
    names = ("low", "high") if aspect == "pitch" else ("soft", "loud")
    return names[ratio > 1]


def value_of(aspect: str, written: str) -> str | None:
    """Return the standard value of a delivery, or an unknown one in lower case; None for the normal
    one.
    """
    written = written.strip().lower()
    value = delivery_value(aspect, written) or graded_name(aspect, written) or written
    return None if value in _NORMAL else value


def as_delivery(aspect: str, word: str) -> Delivery | None:
    """Return a delivery that does not stand in the text; None if ``word`` is the normal one."""
    value = value_of(aspect, word)
    if value is None:
        return None
    if aspect not in FACTOR_LIMITS:
        value = manner_of(value)[1]
    return Delivery(0, 0, aspect, value, word.strip())


def is_number(written: str) -> bool:
    """Whether a grade is written as a number."""
    return _NUMBER.fullmatch(written.strip()) is not None


def factor_of(aspect: str, written: str) -> float | None:
    """Return the factor by which the server changes the speed or volume itself, which may be
    outside of ``FACTOR_LIMITS``; None for other aspects and unknown words.
    """
    if aspect not in _FACTORS:
        return None
    written = written.strip().lower()
    ratio = _ratio(aspect, written)
    if ratio is None:
        return _FACTORS[aspect].get(delivery_value(aspect, written) or written)
    return round(ratio, _PLACES)


def _ratio(aspect: str, written: str) -> float | None:
    """Return a number as a ratio to the normal value. That of a pitch in semitones or hertz, with
    a sign, is above or below 1 as the pitch is.
    """
    number = _NUMBER.fullmatch(written)
    if number is None:
        return None
    value, unit = float(number["number"]), (number["unit"] or "").lower()
    signed = -value if number["sign"] == "-" else value
    if unit == "db":
        return float(10 ** (min(signed, 40.0) / 20))
    if number["sign"] is not None:
        return max(0.0, 1 + signed / 100)
    is_percent = unit == "%" or (not unit and value > _MOST_RATIO[aspect])
    return value / 100 if is_percent else value

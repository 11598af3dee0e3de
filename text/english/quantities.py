"""Numbers as they are written, ranges of two, and the unit that they count."""

from __future__ import annotations

from text.english.numbers import amount

#: "1,234,567", in India "12,34,567".
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d\d?(?:,\d\d){1,8},\d{3}(?!\d)|\d+)(?:\.\d+)?"


def spanned(number: str) -> str:
    """Return a pattern of a number, group "a", or of a range from it to another, group "b"."""
    return rf"(?P<a>{number})(?:[ \t]?[-–—][ \t]?(?P<b>{number}))?"


def span(low: str, high: str | None = None) -> str:
    """Read a number, or the range from ``low`` to ``high``."""
    return f"{amount(low)} to {amount(high)}" if high else amount(low)


def counted(
    one: str, many: str, low: str, high: str | None = None, *, alike: bool = False
) -> list[str]:
    """Read a number or a range, and what it counts.

    Args:
        one: The unit of a single one.
        many: Its plural.
        low: The number, or the beginning of the range.
        high: The end of the range.
        alike: Whether the unit has no plural here, as in "a 12-oz can".
    """
    is_one = alike or (low == "1" and not high)
    return [span(low, high), one if is_one else many]

"""Numbers as words: lower case, no hyphens, no "and", as American English reads them."""

from __future__ import annotations

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", "thousand", "million", "billion", "trillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
#: Numbers with more digits than this are read digit by digit, and those as long as a telephone
#: number if they have no separators.
MAX_DIGITS = 12
_SPELLED_FROM = 7


def cardinal(number: int) -> str:
    """Return ``number`` in words, for 0 <= number < 10**15; digit by digit above.

    >>> cardinal(1_234_567)
    'one million two hundred thirty four thousand five hundred sixty seven'
    """
    if number >= 1000 ** len(_SCALES):
        return digits(str(number))
    if number == 0:
        return _ONES[0]
    words: list[str] = []
    for scale in _SCALES:
        number, group = divmod(number, 1000)
        if group:
            words = [*_below_thousand(group), *scale.split(), *words]
    return " ".join(words)


def _below_thousand(number: int) -> list[str]:
    hundreds, rest = divmod(number, 100)
    words = [_ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words += [_TENS[rest // 10]]
        rest %= 10
    if rest:
        words += [_ONES[rest]]
    return words


def ordinal(number: int) -> str:
    """Return the ordinal: ``ordinal(21)`` is "twenty first"."""
    *head, last = cardinal(number).split()
    if last in _ORDINALS:
        last = _ORDINALS[last]
    else:
        last = last.removesuffix("y") + "ieth" if last.endswith("y") else last + "th"
    return " ".join([*head, last])


def year(number: int) -> str:
    """Read a four-digit year in pairs: 1905 is "nineteen oh five", 2007 "two thousand seven"."""
    century, rest = divmod(number, 100)
    if (century % 10 == 0 and rest < 10) or not 1000 <= number <= 9999:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def paired(written: str) -> str:
    """Read the number of a flight or a form: "837" is "eight thirty seven", "1040" "ten forty"."""
    if written[0] == "0":
        return digits(written)
    if len(written) == 4:
        return year(int(written))
    hundreds, rest = divmod(int(written), 100)
    if rest == 0 or not 1 <= hundreds <= 9:
        return cardinal(int(written))
    return f"{cardinal(hundreds)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def is_year(written: str) -> bool:
    """Whether four bare digits are read as a year if their context does not tell."""
    return len(written) == 4 and written.isdigit() and 1100 <= int(written) <= 2099


def digits(written: str) -> str:
    """Read every digit by itself: "007" is "zero zero seven"."""
    return " ".join(_ONES[int(digit)] for digit in written)


def plural(word: str) -> str:
    """Return a number word's plural: "nineties", "sixes", "thousands"."""
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("x") else "s")


def amount(written: str) -> str:
    """Read a written number, with separators and a fraction: "1,234.50", ".5"; never as a year.

    Numbers with a leading zero, with more than twelve digits, or with seven or more digits without
    separators unless they are round (telephone and order numbers) are read digit by digit.
    """
    whole, dot, fraction = written.partition(".")
    bare = whole.replace(",", "")
    if not bare:
        words = ""
    elif _is_code(bare, separated="," in whole):
        words = digits(bare)
    else:
        words = cardinal(int(bare))
    return f"{words} point {digits(fraction)}".strip() if dot else words


def _is_code(bare: str, separated: bool) -> bool:
    if len(bare) > MAX_DIGITS or (len(bare) > 1 and bare[0] == "0"):
        return True
    return len(bare) >= _SPELLED_FROM and not separated and not bare.endswith("000")


def number(written: str) -> str:
    """Read a number without context: as a year if it looks like one, else as ``amount``."""
    return year(int(written)) if is_year(written) else amount(written)

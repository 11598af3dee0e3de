"""Text folded to ASCII and a few signs, with each character's offset in the source.

A language adds the words that it reads for signs, and the words that begin its sentences.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from text.formatting import Formatting

#: Raised digits, which are an exponent unless they are the numerator of a fraction.
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
PLAIN_DIGITS = str.maketrans(RAISED, "0123456789")
#: A number whose thousands are separated by spaces that do not break a line: "10 000".
_THOUSANDS = re.compile(
    r"(?<![\d+()\u00a0\u2009\u202f])[1-9]\d{0,2}(?:[\u00a0\u2009\u202f]\d{3})+"
    r"(?!\d|[,\u00a0\u2009\u202f]\d)"
)
_THIN = str.maketrans("\u00a0\u2009\u202f", ",,,")
#: Dots that hide digits are no bullets: "•••• 4242".
_MASK = re.compile("[•●·]{2,12} ?(?=[0-9]{4}(?![0-9]))|[•●]{2,}")
#: Cyrillic letters within words of Latin letters, which look like these: "pаypal".
_LOOKALIKES = dict(zip("АВЕКМНОРСТХаеорсухіј", "ABEKMHOPCTXaeopcyxij", strict=True))
_MIXED = re.compile(
    rf"(?<!\w)(?:[A-Za-z]{{1,20}}[{''.join(_LOOKALIKES)}]|[{''.join(_LOOKALIKES)}]{{1,20}}[A-Za-z])"
    rf"[A-Za-z{''.join(_LOOKALIKES)}]{{0,40}}(?!\w)"
)
_LATIN = str.maketrans(_LOOKALIKES)
#: A picture that ends a sentence, "Great 😊 What next?"; a heart may be its verb.
_PICTURE = (
    r"(?<=[a-z0-9] )[\U0001f300-\U0001f48f\U0001f4a5-\U0001f5a3\U0001f5a5-\U0001f90c"
    r"\U0001f910-\U0001faff\u2600-\u2664\u2666-\u2763\u2765-\u27bf]"
)
#: A double prime that is surely a sign of inches, unlike a quote; not in 5'10″ and 41° 16′ 9″.
_INCHES = re.compile(
    r"(?<![\d'′./x×])(?<!['′x×]\s)(\d{1,3}(?:\.\d{1,2})?)″(?=[.,;:)!?]|\s(?![x×])|\Z)"
)
_PRIME = re.compile("″")
_NUMERATOR = re.compile(rf"(?<![{RAISED}])[{RAISED}]+(?=⁄)")
#: Signs beyond ASCII that have a reading of their own.
SIGNS = frozenset("″·€£¥₹₩₽₿฿₺₫₪₴₦₱¢°–—±×÷≈≤≥≠§⁻" + RAISED)
_REPLACED = {
    "‘": "'", "’": "'", "‛": "'", "ʼ": "'", "′": "'", "´": "'",
    "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
    "‐": "-", "‑": "-", "−": "-", "‒": "–", "―": "—",
    "→": "->", "⇒": "=>", "⁄": "/", "∕": "/", "•": "\n- ", "‣": "\n- ", "…": "...",
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L",
    "ı": "i", "™": "", "®": "", "©": "", "。": ". ", "，": ", ", "、": ", ", "！": "! ",
    "º": "°", "˚": "°", "٪": "%", "٫": ".", "٬": ",", "؟": "? ", "،": ", ", "؛": "; ",
    "？": "? ", "μ": "u", "µ": "u", "¿": "", "¡": "",
}  # fmt: skip
#: Emoji, flags and other pictures: dropped, since decomposition would turn them into letters.
_PICTURES = frozenset({"So", "Sk", "Co", "Cn", "Cs"})
_JOINED = frozenset({"Mn", "Me", "Cf"})


@dataclass(frozen=True, slots=True)
class Folded:
    """``text``, with ``starts[i]`` and ``ends[i]``, the source range of its character i."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Folder:
    """Folds accents, widths, quotes and dashes, and reads formatting; all else becomes a space.

    Combining marks and invisible characters belong to the character before them, tags to none.

    Args:
        names: What the language reads for signs beyond ASCII that none of its rules has.
        starters: Words that begin a sentence, in lower case: a picture before one ends a sentence.
        formatting: The formatting, with what the language reads in its place.
    """

    def __init__(
        self, names: Mapping[str, str], starters: Iterable[str], formatting: Formatting
    ) -> None:
        self._replaced = _REPLACED | dict(names)
        self._formatting = formatting
        capitals = "|".join(sorted(word.capitalize() for word in starters))
        self._picture_stop = re.compile(rf"{_PICTURE}(?=\S{{0,6}}\s(?:{capitals})\b)")

    def fold(self, source: str) -> Folded:
        """Return ``source`` folded."""
        source = _NUMERATOR.sub(lambda match: match[0].translate(PLAIN_DIGITS), source)
        source = _MASK.sub(_stars, source)
        if not source.isascii():
            source = _MIXED.sub(lambda match: match[0].translate(_LATIN), source)
            source = self._picture_stop.sub(".", source)
            sure = {match.end() - 1 for match in _INCHES.finditer(source)}
            source = _PRIME.sub(lambda match: "″" if match.start() in sure else '"', source)
        source = _THOUSANDS.sub(lambda match: match[0].translate(_THIN), source)
        folding = _Folding(self._replaced)
        at = 0
        for start, end, said in self._formatting.pieces(source):
            folding.add(source[at:start], at)
            for char in said:
                folding.put(char, start, end)
            at = end
        folding.add(source[at:], at)
        return folding.finish()


class _Folding:
    """Collects folded characters with their offsets."""

    def __init__(self, replaced: Mapping[str, str]) -> None:
        self._replaced = replaced
        self._chars: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, text: str, start: int) -> None:
        """Fold plain text; ``start`` is its offset in the source."""
        chars, starts, ends = self._chars, self._starts, self._ends
        for at, char in enumerate(text, start):
            if char.isascii():
                chars.append(char)
                starts.append(at)
                ends.append(at + 1)
            else:
                self.put(char, at, at + 1)

    def put(self, char: str, start: int, end: int) -> None:
        """Fold one character, which stands for ``[start, end)`` of the source."""
        if char.isascii():
            new = char
        elif unicodedata.category(char) in _JOINED and char not in self._replaced:
            if self._ends and self._ends[-1] == start:
                self._ends[-1] = end
            return
        else:
            new = self._fold(char)
            if self._chars[-1:] == ["\n"] and unicodedata.category(char) == "So":
                new = "* "  # a picture at the beginning of a line is a bullet
            if "/" in new[1:]:  # a vulgar fraction, separate from digits beside it
                new = f" {new} "
        for one in new:
            self._chars.append(one)
            self._starts.append(start)
            self._ends.append(end)

    def _fold(self, char: str) -> str:
        if char in SIGNS:
            return char
        if char.isdecimal():
            return str(unicodedata.decimal(char))
        if char in self._replaced:
            return self._replaced[char]
        if unicodedata.category(char) in _PICTURES and char not in "℃℉":
            return " "
        folded = ""
        for part in unicodedata.normalize("NFKD", char):
            if part.isascii() or part in SIGNS:
                folded += part
            else:
                folded += self._replaced.get(part, "")
        return folded or " "

    def finish(self) -> Folded:
        """Return the result."""
        return Folded("".join(self._chars), tuple(self._starts), tuple(self._ends))


def _stars(match: re.Match[str]) -> str:
    """Hide digits behind as many letters or stars: "xx3344", "xx-3344", "*****"."""
    if match.string[match.end() : match.end() + 1].isdigit():
        dots = match[0].rstrip(" ")
        return "x" * len(dots) + "-" * (len(match[0]) - len(dots))
    return "*" * len(match[0])

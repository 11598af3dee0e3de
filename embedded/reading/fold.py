"""Writing folded to ASCII and a few signs, with every character's place in the source."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

#: Signs beyond ASCII that have a reading of their own.
SIGNS = frozenset("€£¥₹₩₽₿¢°–—±×÷≈≤≥≠²³§")
_REPLACED = {
    "‘": "'", "’": "'", "‛": "'", "ʼ": "'", "′": "'", "`": " ", "´": "'",
    "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "″": '"',
    "‐": "-", "‑": "-", "−": "-", "‒": "–", "―": "—",
    "⁄": "/", "∕": "/", "•": "\n- ", "‣": "\n- ", "…": "...", "∞": " infinity ",
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L",
    "ı": "i", "™": "", "®": "", "©": "", "。": ". ", "，": ", ", "、": ", ", "！": "! ",
    "？": "? ", "μ": "u", "µ": "u", "Ω": "ohm", "¿": "", "¡": "",
}  # fmt: skip
#: Emoji, flags and other pictures: dropped before decomposition would make letters of them.
_PICTURES = frozenset({"So", "Sk", "Co", "Cn", "Cs"})
_JOINED = frozenset({"Mn", "Me", "Cf"})


@dataclass(frozen=True, slots=True)
class Folded:
    """``text`` with ``starts[i]`` and ``ends[i]``, the source range of its character i."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


def fold(source: str) -> Folded:
    """Fold accents, widths, quotes and dashes; everything else becomes a space.

    Marks and invisible characters belong to the character before them.
    """
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for at, char in enumerate(source):
        if char.isascii():
            new = char
        elif unicodedata.category(char) in _JOINED and char not in _REPLACED:
            if ends and ends[-1] == at:
                ends[-1] = at + 1
            continue
        else:
            new = _fold_one(char)
            if "/" in new:  # a vulgar fraction, and no part of the digits around it
                new = f" {new} "
        for one in new:
            chars.append(one)
            starts.append(at)
            ends.append(at + 1)
    return Folded("".join(chars), tuple(starts), tuple(ends))


def _fold_one(char: str) -> str:
    if char in SIGNS:
        return char
    if char in _REPLACED:
        return _REPLACED[char]
    if unicodedata.category(char) in _PICTURES and char not in "℃℉№":
        return " "
    folded = ""
    for part in unicodedata.normalize("NFKD", char):
        if part.isascii() or part in SIGNS:
            folded += part
        elif part in _REPLACED:
            folded += _REPLACED[part]
    return folded or " "

"""Pronunciations of the CMU Pronouncing Dictionary, written as misaki writes American English.

The dictionary has 39 phonemes and three degrees of stress. misaki also has weak vowels (ᵊ, ᵻ) and
the flap (ɾ), and marks secondary stress in fewer places. Each rule here holds for most of the words
that both have; ``python -m training.lexicon`` tells for how many all of them do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ",
    "EY": "A", "IH": "ɪ", "IY": "i", "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u",
}  # fmt: skip
_CONSONANTS = {
    "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k",
    "L": "l", "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t",
    "TH": "θ", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_STRESS = {"0": "", "1": "ˈ", "2": "ˌ"}
#: Vowels that are not stressed at the end of a word, and such that are in a closed last syllable.
_OPEN = ("IY", "OW", "AA", "ER")
_FULL = ("AA", "AE", "AO", "AW", "AY", "EY", "OY")
#: What the endings -ed and -es follow when they are syllables: (consonant, the one before).
_ENDINGS = {("D", stem) for stem in ("T", "D")} | {
    ("Z", stem) for stem in ("S", "Z", "SH", "ZH", "CH", "JH")
}
_LINE = re.compile(r'\s*"(?P<word>[a-z]+(?:\'[a-z]+)*)": "(?P<phones>[A-Z0-9 ]+)')
#: An abbreviation that is read out has more phonemes to a letter.
_MOST_PHONES = 2


def words_of(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the phonemes of each word in ``index.js`` of the dictionary's npm package.

    Left out are further pronunciations, possessives, single letters, words with signs or digits or
    without a vowel, and abbreviations that are written out ("fyi").
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match and not match["word"].endswith("'s"):
            phones = tuple(match["phones"].split())
            is_word = len(match["word"]) > 1 and any(map(_is_vowel, phones))
            if is_word and len(phones) <= _MOST_PHONES * len(match["word"]):
                found.setdefault(match["word"], phones)
    return found


def names_of(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the phonemes of each word in lines like "beth B EH1 TH"."""
    parts = (line.split() for line in lines if line.strip() and not line.startswith("#"))
    return {word: tuple(phones) for word, *phones in parts}


def to_misaki(phones: Sequence[str]) -> str:
    """Return phonemes in misaki's form of the International Phonetic Alphabet.

    >>> to_misaki("M AE1 TH Y UW0".split())
    'mˈæθju'
    """
    degrees = _degrees(phones)
    padded = ("", *phones, "", "")
    written = ""
    for at, (phone, degree) in enumerate(zip(phones, degrees, strict=True), 1):
        before, after, later = padded[at - 1], padded[at + 1], padded[at + 2]
        if not _is_vowel(phone):
            is_flap = (
                phone == "T"
                and (_is_vowel(before) or before == "R")
                and degrees[at : at + 1] == ["0"]
                and not (after == "AH0" and later == "N")
            )
            written += "ɾ" if is_flap else _CONSONANTS[phone]
        elif degree == "0" and phone[-1] == "0":
            written += _weak(phone[:-1], before, after, later)
        else:
            written += _STRESS[degree] + _strong(phone[:-1], after, later)
    return written


def _is_vowel(phone: str) -> bool:
    return phone[-1:].isdigit()


def _degrees(phones: Sequence[str]) -> list[str]:
    """Return the degree of stress of each phoneme as misaki marks it; consonants have none ("")."""
    degrees = [phone[-1] if _is_vowel(phone) else "" for phone in phones]
    vowels = [at for at, degree in enumerate(degrees) if degree]
    if not vowels:
        return degrees
    primary = [at for at in vowels if degrees[at] == "1"]
    secondary = [at for at in vowels if degrees[at] == "2"]
    strongest = (primary[-1:] or secondary[:1] or vowels[:1])[0]
    for at in primary:
        degrees[at] = "2"
    degrees[strongest] = "1"
    first, last = vowels[0], vowels[-1]
    is_before = phones[first][-1] == "2" and vowels[1:2] == [strongest]
    if is_before and phones[first] != "AH2":
        degrees[first] = "0"
    if degrees[last] == "2" and last == len(phones) - 1 and phones[last][:2] in _OPEN:
        degrees[last] = "0"
    is_closed = last < len(phones) - 1
    if degrees[last] == "0" and is_closed and last != first and phones[last][:2] in _FULL:
        degrees[last] = "2"
    return degrees


def _strong(vowel: str, after: str, later: str) -> str:
    if after == "R":
        if vowel == "AE":
            return "ɛ"
        if vowel in ("IY", "UW"):
            return "ɪ" if vowel == "IY" else "ʊ"
        if vowel == "AY" and not _is_vowel(later):
            return "Iə"
    return _VOWELS[vowel]


def _weak(vowel: str, before: str, after: str, later: str) -> str:
    """Return an unstressed vowel. Its neighbours are "" beyond the word's ends."""
    if vowel == "ER":
        return "əɹ"
    if vowel in ("AH", "IH"):
        return _weakest(vowel, before, after, later)
    if vowel == "AA" and not after:
        return "ə"
    if vowel == "UW" and _is_vowel(after):
        return "əw"
    if vowel == "AE" and after == "R":
        return "ɛ"
    return _VOWELS[vowel]


def _weakest(vowel: str, before: str, after: str, later: str) -> str:
    is_last = bool(after) and not later
    if is_last and (after, before) in _ENDINGS:
        return "ᵻ"
    if is_last and after == "JH":
        return "ɪ"
    after_consonant = bool(before) and not _is_vowel(before)
    if after_consonant and not _is_vowel(later):
        if after == "L" and before not in ("R", "Y", "W", "HH"):
            return "ᵊ"
        if after == "N" and before in ("T", "D", "S", "Z"):
            return "ᵊ"
    if vowel == "AH":
        return "ə"
    if after in ("NG", "SH") or (is_last and after in ("K", "V")):
        return "ɪ"
    if after == "K" and not _is_vowel(later) and later not in ("L", "R", "W", "Y"):
        return "ɪ"
    if after == "S" and later == "T":
        return "ɪ"
    if not before and not _is_vowel(later) and after in ("N", "G"):
        return "ɪ"
    return "ə"

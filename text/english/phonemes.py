"""Phonemes that a client gives, in the signs in which the voice reads sounds.

Dictionaries write English in several ways: as the International Phonetic Alphabet has it ("tʃ",
"oʊ", "ˈwʊs.tə"), as misaki and Kokoro do ("ʧ", "O", "wˈʊstəɹ"), with marks of length or without.
All become the signs of :mod:`text.english.sounds`, in which stress stands before the vowel.
"""

from __future__ import annotations

import re
import unicodedata

from text.english.endings import VOWELS
from text.english.sounds import SIGNS

#: The most signs of a word, well above those of any word of the lexicon.
MAX_SIGNS = 60
#: What is written by other signs. Those of the voice stand for themselves.
_SIGNS = {
    "tʃ": "ʧ", "dʒ": "ʤ", "eɪ": "A", "aɪ": "I", "ɑɪ": "I", "aʊ": "W", "ɑʊ": "W", "ɔɪ": "Y",
    "oʊ": "O", "əʊ": "O", "ɚ": "ər", "ɝ": "ɜr", "ɜ": "ɜr", "ɐ": "ʌ", "ɒ": "ɑ", "a": "ɑ", "e": "ɛ",
    "o": "O", "i": "E", "ɨ": "ᵻ", "u": "U", "ʉ": "U", "j": "J", "ɹ": "r", "ɻ": "r", "ɡ": "g",
    "ɫ": "l", "ʍ": "w", "x": "k", "ʔ": "t", "'": "ˈ", "’": "ˈ",
}  # fmt: skip
_OWN = frozenset("bdfghklmnprstvwz") | frozenset(SIGNS) - frozenset("EUJ")
#: A consonant that is a syllable of its own, "n̩".
_SYLLABIC = re.compile("([lmnɫ])\u0329")
#: Length, ties, borders of syllables, aspiration, and the slashes around phonemes.
_SILENT = re.compile("[ːˑ.:‿ʰ/\\[\\]\u035c\u0361\u032f\u0329\u200d-]")
_PART = re.compile("|".join(sorted(map(re.escape, _SIGNS), key=len, reverse=True)) + "|.")
_VOWEL = f"[{''.join(sorted(VOWELS))}]"
_STRESSED = re.compile(f"([ˈˌ])((?:(?!{_VOWEL})[^ˈˌ])*)")


def signs_of(ipa: str) -> tuple[str, ...] | None:
    """Return the words of a pronunciation, each in the voice's signs; None if it has sounds that
    the voice does not know, or is too long or empty.

    >>> signs_of("ˈwʊs.tə")
    ('wˈʊstə',)
    """
    words = [_word(word) for word in unicodedata.normalize("NFD", ipa).split()]
    known = tuple(word for word in words if word)
    return known if words and len(known) == len(words) else None


def _word(ipa: str) -> str | None:
    written = _SILENT.sub("", _SYLLABIC.sub(r"ᵊ\1", ipa))
    signs = ""
    for part in _PART.findall(written):
        if part not in _SIGNS and part not in _OWN:
            return None
        signs += _SIGNS.get(part, part)
    signs = signs.replace("ɜrr", "ɜr")
    signs = _STRESSED.sub(_before_vowel, signs)
    return signs if 0 < len(signs) <= MAX_SIGNS else None


def _before_vowel(match: re.Match[str]) -> str:
    """Move a mark of stress to the vowel of its syllable; without one it has no meaning."""
    mark, consonants = match.groups()
    following = match.string[match.end() : match.end() + 1]
    return consonants + (mark if following in VOWELS else "")

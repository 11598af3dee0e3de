"""The text front end that writes words by their sounds: ``english-sounds``.

The words from :func:`embedded.text.normalise` are looked up in a lexicon. Words that it lacks,
names above all, stay in letters, which the voice reads too. Sounds that English writes as letters
(b, k, s) share these; the others have signs of their own, so that no vowel can be mistaken for its
letter.
"""

from __future__ import annotations

import functools
import gzip
import re
from pathlib import Path

from embedded.text import Normalised, Span, normalise

#: Symbols of the lexicon's International Phonetic Alphabet (in misaki's form) that are written
#: differently here.
_WRITTEN = str.maketrans({"i": "E", "u": "U", "j": "J", "ɹ": "r", "ɡ": "g", "ʔ": "t"})
#: Signs that are not letters of the voice, in the order of their ids.
SIGNS = "EUJAIOQWYæɑɔəɛɜɪʊʌᵊᵻðŋʃʒʤʧθɾˈˌ"
_VOWELS = frozenset("EUAIOQWYæɑɔəɛɜɪʊʌᵊᵻ")
_HISSES, _VOICELESS = frozenset("szʃʒʤʧ"), frozenset("ptkfθsʃʧ")
#: Made by ``embedded.training.lexicon``.
FILE = Path(__file__).with_name("lexicon.txt.gz")
#: Small words as pronounced in a sentence; the lexicon has their isolated forms.
_UNSTRESSED = {"a": "ə", "to": "tə", "the": "ðə"}
_BEFORE_VOWELS = {"to": "tU", "the": "ðE"}


@functools.cache
def lexicon() -> dict[str, str]:
    """Return the pronunciations of some 175,000 words, in the signs of this module."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split(" ", 1) for line in lines if line.strip())


def written(phonemes: str) -> str:
    """Write the International Phonetic Alphabet in this module's signs."""
    return phonemes.translate(_WRITTEN)


def said(word: str, following: str = "") -> str | None:
    """Return the sounds of ``word`` before ``following`` (also in sounds); None if they are not
    known.
    """
    if word in _UNSTRESSED:
        before_vowel = following.lstrip("ˈˌ")[:1] in _VOWELS
        return _BEFORE_VOWELS.get(word, "ə") if before_vowel else _UNSTRESSED[word]
    known = lexicon()
    return known.get(word) or _inflected(word, known)


def _inflected(word: str, known: dict[str, str]) -> str | None:
    """Derive the sounds of an inflected word from its stem, by the usual sounds of endings."""
    for ending, sounded in (("'s", _plural), ("s", _plural), ("ed", _past), ("ing", _going)):
        if word.endswith(ending):
            for stem in _stems(word.removesuffix(ending), ending):
                if base := known.get(stem):
                    return sounded(base)
    return None


def _stems(stem: str, ending: str) -> list[str]:
    """Return the possible stems of a word, whose spelling the ending may have changed."""
    found = [stem]
    if ending == "s" and stem.endswith("ie"):
        found.append(stem[:-2] + "y")
    elif ending == "s" and stem.endswith("e"):
        found.append(stem[:-1])
    elif ending in ("ed", "ing"):
        found.append(stem + "e")
        if ending == "ed" and stem.endswith("i"):
            found.append(stem[:-1] + "y")
        if re.search(r"([b-df-hj-np-tv-z])\1$", stem):
            found.append(stem[:-1])
    return [stem for stem in found if len(stem) > 1]


def _plural(base: str) -> str:
    last = base[-1]
    return base + ("ᵻz" if last in _HISSES else "s" if last in _VOICELESS else "z")


def _past(base: str) -> str:
    last = base[-1]
    return base + ("ᵻd" if last in "td" else "t" if last in _VOICELESS else "d")


def _going(base: str) -> str:
    return base + "ɪŋ"


def sounds(text: str) -> Normalised:
    """Read ``text`` as ``normalise`` does, and write each word of it by its sounds.

    >>> sounds("The 2 apples.").text
    'ðə tˈU ˈæpᵊlz.'
    """
    return spoken(normalise(text))


def spoken(reading: Normalised, spelled: frozenset[int] = frozenset()) -> Normalised:
    """Return the words of ``reading`` by their sounds; those with indices in ``spelled`` in
    letters.
    """
    words: list[str] = []
    following = ""
    for number in range(len(reading.spans) - 1, -1, -1):
        span = reading.spans[number]
        word = reading.text[span.start : span.end]
        following = (None if number in spelled else said(word, following)) or word
        words.append(following)
    parts, spans, length, last = list[str](), list[Span](), 0, 0
    for span, word in zip(reading.spans, reversed(words), strict=True):
        between = reading.text[last : span.start]
        length += len(between)
        spans.append(Span(length, length + len(word), span.source_start, span.source_end))
        parts += (between, word)
        length, last = length + len(word), span.end
    return Normalised("".join(parts) + reading.text[last:], tuple(spans))

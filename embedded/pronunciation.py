"""The text front end that writes words by their sounds: ``english-sounds``.

The words from :func:`embedded.text.normalise` are looked up in a lexicon. Words that it lacks,
rare names above all, stay in letters, which the voice reads too. Sounds that English writes as
letters (b, k, s) share these; the others have signs of their own, so that no vowel can be mistaken
for its letter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from embedded.dictionary import lexicon
from embedded.normalisation.lexicon import SHORT_WORDS, words_of
from embedded.text import Normalised, Span, normalise

#: Symbols of the lexicon's International Phonetic Alphabet (in misaki's form) that are written
#: differently here.
_WRITTEN = str.maketrans({"i": "E", "u": "U", "j": "J", "ɹ": "r", "ɡ": "g", "ʔ": "t"})
#: Signs that are not letters of the voice, in the order of their ids.
SIGNS = "EUJAIOQWYæɑɔəɛɜɪʊʌᵊᵻðŋʃʒʤʧθɾˈˌ"
_VOWELS = frozenset("EUAIOQWYæɑɔəɛɜɪʊʌᵊᵻ")
_FLAPPED = re.compile(f"[{''.join(sorted(_VOWELS))}r]t$")
#: Spellings that rarely lose an "e" before an ending with a vowel.
_WHOLE_STEM = re.compile(r"(?:([b-df-hj-np-tv-z])\1|ng|mb|o)$")
_HISSES, _VOICELESS = frozenset("szʃʒʤʧ"), frozenset("ptkfθsʃʧ")
#: Small words as pronounced in a sentence; the lexicon has their isolated forms.
_UNSTRESSED = {"a": "ə", "to": "tə", "the": "ðə"}
_BEFORE_VOWELS = {"to": "tU", "the": "ðE"}

#: Letters that a stem before a suffix, and a word after a prefix, have at least.
_LEAST_STEM, _LEAST_BASE = 4, 5
_SUFFIXES = {"ly": "lE", "ness": "nəs", "less": "ləs", "able": "əbᵊl", "er": "ər"}
_PREFIXES = {
    "re": "rˌE", "un": "ˌʌn", "non": "nˌɑn", "pre": "prˌE", "mis": "mˌɪs", "over": "ˌOvər",
    "under": "ˌʌndər", "super": "sˌUpər", "inter": "ˌɪntər", "multi": "mˌʌltE",
    "micro": "mˌIkrO", "auto": "ˌɔɾO", "cyber": "sˌIbər",
}  # fmt: skip
#: Second parts of compounds. Few are endings of other words too, as "land" and "table" are.
_SECOND = words_of(
    """
    app back band base board book box bulb card case chain chat check code dash day desk down
    drive end fill fire flow font foot frame hand head hold hook house light link lock mail mark
    mate name note pad page pal paper pass phone pipe place plan point proof room runner sale
    screen share sheet shop shot side slot space speed stack stand stick stop store stream tank
    tech time tool track up walk wall watch water wear wheel wide width wise word work worker
    world yard
    """
)


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
    return lexicon().get(word) or _derived(word)


@functools.lru_cache(maxsize=4096)
def _derived(word: str) -> str | None:
    return derived(word, lexicon())


def derived(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a word from those of its stem or its parts in ``known``."""
    return _inflected(word, known) or _uninflected(word, known)


def _uninflected(word: str, known: Mapping[str, str]) -> str | None:
    return _suffixed(word, known) or _prefixed(word, known) or _compound(word, known)


def _inflected(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of an inflected word from its stem, by the usual sounds of endings."""
    for ending, sounded in _ENDINGS:
        if word.endswith(ending):
            for stem in _stems(word.removesuffix(ending), ending):
                # A stem is not inflected itself: "ing" is added to no "s".
                if base := known.get(stem) or _uninflected(stem, known):
                    return sounded(base)
    return None


def _suffixed(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a word like "serverless" or "swipeable"."""
    for suffix, sounded in _SUFFIXES.items():
        if not word.endswith(suffix):
            continue
        for stem in _stems(word.removesuffix(suffix), suffix):
            if len(stem) >= _LEAST_STEM and (base := known.get(stem)):
                base = base.removesuffix("l") if sounded[0] == "l" else base
                return _joined(base, sounded)
    return None


def _prefixed(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a word like "reauthenticate"."""
    for prefix, sounded in _PREFIXES.items():
        rest = word.removeprefix(prefix)
        if rest != word and len(rest) >= _LEAST_BASE:
            base = known.get(rest) or _suffixed(rest, known)
            if base:
                return sounded + base
    return None


def _compound(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a compound like "touchscreen"; its second part is a usual one."""
    for at in range(len(word) - 2, 2, -1):
        first, second = word[:at], word[at:]
        if second not in _SECOND or not (at >= _LEAST_STEM or first in SHORT_WORDS):
            continue
        sounds = known.get(first), known.get(second)
        if sounds[0] and sounds[1] and "ˈ" in sounds[0]:
            return sounds[0] + sounds[1].replace("ˈ", "ˌ")
    return None


def _stems(stem: str, ending: str) -> list[str]:
    """Return the possible stems of a word, whose spelling the ending may have changed."""
    found = [stem]
    if ending == "s" and stem.endswith("ie"):
        found.append(stem[:-2] + "y")
    elif ending == "s" and stem.endswith("e"):
        found.append(stem[:-1])
    elif ending in ("ly", "ness", "less") and stem.endswith("i"):
        found.append(stem[:-1] + "y")
    elif ending in ("ed", "ing", "er", "able"):
        # "Hated" is from "hate"; "called", "ringing", "combed" and "redoing" keep their stem.
        found.insert(1 if _WHOLE_STEM.search(stem) else 0, stem + "e")
        if ending in ("ed", "er") and stem.endswith("i"):
            found.append(stem[:-1] + "y")
        if re.search(r"([b-df-hj-np-tv-z])\1$", stem):
            found.append(stem[:-1])
    return [stem for stem in found if len(stem) > 1]


def _joined(base: str, ending: str) -> str:
    """Add an ending; a "t" between vowels, or after "r" before a vowel, is flapped."""
    if ending[0] in _VOWELS and _FLAPPED.search(base):
        base = base[:-1] + "ɾ"
    return base + ending


def _plural(base: str) -> str:
    last = base[-1]
    return base + ("ᵻz" if last in _HISSES else "s" if last in _VOICELESS else "z")


def _past(base: str) -> str:
    last = base[-1]
    return _joined(base, "ᵻd" if last in "td" else "t" if last in _VOICELESS else "d")


def _going(base: str) -> str:
    return _joined(base, "ɪŋ")


def _have(base: str) -> str:
    return base + "əv"


def _will(base: str) -> str:
    return base + ("l" if base[-1] in _VOWELS else "ᵊl")


def _would(base: str) -> str:
    return base + ("d" if base[-1] in _VOWELS | {"r"} else "əd")


def _are(base: str) -> str:
    return base + "ər"


_ENDINGS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("'ve", _have), ("'ll", _will), ("'d", _would), ("'re", _are),
    ("'s", _plural), ("s", _plural), ("ed", _past), ("ing", _going),
)  # fmt: skip


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

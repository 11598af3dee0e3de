"""The text front end that writes words by their sounds: ``english-sounds``.

The words from :mod:`text.english.normaliser` are looked up in a lexicon. Words that it lacks,
rare names above all, stay in letters, which the voice reads too. Sounds that English writes as
letters (b, k, s) share these; the others have signs of their own, so that no vowel can be mistaken
for its letter.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from text.english.endings import ENDINGS, VOWELS, joined
from text.english.heteronyms import heteronyms
from text.english.lexicon import lexicon
from text.english.normaliser import normalise
from text.english.vocabulary import SHORT_WORDS
from text.pronunciation.in_band import SOUNDED
from text.reader import Normalised, Span
from text.vocabulary import words_of

#: Symbols of the lexicon's International Phonetic Alphabet (in misaki's form) that are written
#: differently here.
_WRITTEN = str.maketrans({"i": "E", "u": "U", "j": "J", "ɹ": "r", "ɡ": "g", "ʔ": "t"})
#: Signs that are not letters of the voice, in the order of their ids.
SIGNS = "EUJAIOQWYæɑɔəɛɜɪʊʌᵊᵻðŋʃʒʤʧθɾˈˌ"
#: Spellings that rarely lose an "e" before an ending with a vowel.
_WHOLE_STEM = re.compile(r"(?:([b-df-hj-np-tv-z])\1|ng|mb|o)$")
#: Small words as pronounced in a sentence; the lexicon has their isolated forms.
_UNSTRESSED = {"a": "ə", "to": "tə", "the": "ðə"}
_BEFORE_VOWELS = {"to": "tU", "the": "ðE"}

#: Letters that a stem before a suffix, and a word after a prefix, have at least.
_MIN_STEM, _MIN_BASE = 4, 5
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
        before_vowel = following.lstrip("ˈˌ")[:1] in VOWELS
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
    for ending, sounded in ENDINGS:
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
            if len(stem) >= _MIN_STEM and (base := known.get(stem)):
                base = base.removesuffix("l") if sounded[0] == "l" else base
                return joined(base, sounded)
    return None


def _prefixed(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a word like "reauthenticate"."""
    for prefix, sounded in _PREFIXES.items():
        rest = word.removeprefix(prefix)
        if rest != word and len(rest) >= _MIN_BASE:
            base = known.get(rest) or _suffixed(rest, known)
            if base:
                return sounded + base
    return None


def _compound(word: str, known: Mapping[str, str]) -> str | None:
    """Derive the sounds of a compound like "touchscreen"; its second part is a usual one."""
    for at in range(len(word) - 2, 2, -1):
        first, second = word[:at], word[at:]
        if second not in _SECOND or not (at >= _MIN_STEM or first in SHORT_WORDS):
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


def sounds(text: str) -> Normalised:
    """Read ``text`` as ``normalise`` does, and write each word of it by its sounds; those that are
    given in the text (see text.pronunciation.in_band) as they are.

    >>> sounds("The 2 apples.").text
    'ðə tˈU ˈæpᵊlz.'
    """
    given = list(SOUNDED.finditer(text)) if not text.isascii() else []
    plain = SOUNDED.sub(_stand_in, text) if given else text
    reading = normalise(plain)
    return spoken(plain, reading, given=_given(reading, given))


def _stand_in(word: re.Match[str]) -> str:
    """Return a name that no rule reads otherwise, as long as a word that is given by its sounds."""
    return ("Q" if word["capital"] else "q") + "a" * (len(word[0]) - 1)


def _given(reading: Normalised, words: Sequence[re.Match[str]]) -> dict[int, str]:
    """Return the sounds of those words of ``reading`` that stand for ``words``, by their indices.
    What is written directly after one is an ending of it: "Worcester's".
    """
    found: dict[int, str] = {}
    waiting = deque(words)
    for number, span in enumerate(reading.spans):
        while waiting and waiting[0].end() <= span.source_start:  # read as something else
            waiting.popleft()
        if not waiting or span.source_end <= waiting[0].start():
            continue
        word, stand_in = reading.text[span.start : span.end], _stand_in(waiting[0]).lower()
        before, is_there, after = word.partition(stand_in)
        if is_there and not after.startswith("a"):
            found[number] = _joined(before, waiting.popleft()["sounds"], after)
    return found


def _joined(before: str, signs: str, after: str) -> str:
    ending = dict(ENDINGS).get(after)
    return before + (signs + after if ending is None else ending(signs))


def spoken(
    source: str,
    reading: Normalised,
    spelled: frozenset[int] = frozenset(),
    given: Mapping[int, str] = MappingProxyType({}),
) -> Normalised:
    """Return the words of ``reading``, which is that of ``source``, by their sounds: those with
    indices in ``spelled`` in letters, those in ``given`` by the sounds there.
    """
    chosen = {**heteronyms(source, reading), **given}
    words: list[str] = []
    following = ""
    for number in range(len(reading.spans) - 1, -1, -1):
        span = reading.spans[number]
        word = reading.text[span.start : span.end]
        following = (
            word if number in spelled else chosen.get(number) or said(word, following) or word
        )
        words.append(following)
    parts, spans, length, last = list[str](), list[Span](), 0, 0
    for span, word in zip(reading.spans, reversed(words), strict=True):
        between = reading.text[last : span.start]
        length += len(between)
        spans.append(Span(length, length + len(word), span.source_start, span.source_end))
        parts += (between, word)
        length, last = length + len(word), span.end
    return Normalised("".join(parts) + reading.text[last:], tuple(spans))

"""The text front end of the embedded voice, which normalises English text.

The voice reads lower-case letters, the space, the apostrophe and ``, . ? !``. Everything else in
English text is put into words: numbers, money, dates, abbreviations, addresses. Characters that are
not read aloud (emoji, other scripts, markup) are dropped. Marks that are heard as a pause (dashes,
brackets, colons) become one. See ``docs/design/embedded_voice.md``.
"""

from __future__ import annotations

import re

from text import punctuation
from text.english import (
    abbreviations,
    addresses,
    amounts,
    arithmetic,
    between,
    names,
    phones,
    signs,
    times,
)
from text.english.folding import fold
from text.reader import Normalised, Reader
from text.rules import Rules

#: The most words of a text that is understood badly without an end mark.
_SHORT = 2
_ENDS = (".", "?", "!")

_LETTERS = (
    signs.SLASHED,
    *addresses.RULES,
    *arithmetic.LETTERS,
    *names.LETTERS,
    *phones.LETTERS,
    *times.DATES,
    *between.LETTERS,
    *amounts.LETTERS,
    *abbreviations.RULES,
)
_DIGITS = (*addresses.RULES, *names.RULES, *times.TIMES, *phones.PHONES, *amounts.RULES)
_SIGNS = (
    addresses.ROOTED,
    *between.SIGNS,
    *phones.SIGNED,
    *amounts.SIGNED,
    *arithmetic.SIGNS,
    *signs.RULES,
)
#: How English is read.
READER = Reader(
    fold,
    Rules((abbreviations.PLAIN, *_LETTERS)),
    Rules(_DIGITS),
    Rules((*punctuation.COMMON, *_SIGNS)),
    re.compile(r"[a-z]+(?:'[a-z]+)*"),
    frozenset(abbreviations.ITEMS),
)


def normalise(text: str) -> Normalised:
    """Read ``text`` as an English speaker would; see the module. Any string is accepted, and the
    result may be empty. Normalising the result again does not change it.

    >>> normalise("Dr. Smith paid $3.50 at 3:45 pm.").text
    'doctor smith paid three dollars and fifty cents at three forty five pee em.'
    """
    return READER.read(text)


def ended(reading: Normalised) -> Normalised:
    """Return ``reading``, the words of an utterance or their sounds, with a full stop if it has one
    or two words and no end mark. The embedded voice learned from sentences, and says a short answer
    far more clearly as one (docs/design/embedded_voice.md). The words and their sources stay.

    >>> ended(normalise("No way")).text
    'no way.'
    """
    words = reading.text.rstrip(",")
    # "a." and "ii." are read otherwise than "a" and "ii": as items of a list.
    has_end = words.endswith(_ENDS) or words in abbreviations.ITEMS
    if has_end or not 0 < len(reading.spans) <= _SHORT:
        return reading
    return Normalised(words + ".", reading.spans)

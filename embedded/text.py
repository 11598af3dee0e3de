"""The text front end of the embedded voice, which normalises English text.

The voice reads lower-case letters, the space, the apostrophe and ``, . ? !``. Everything else in
English text is put into words: numbers, money, dates, abbreviations, addresses. Characters that are
not read aloud (emoji, other scripts, markup) are dropped. Marks that are heard as a pause (dashes,
brackets, colons) become one. See ``docs/design/embedded_voice.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedded.normalisation import (
    abbreviations,
    addresses,
    amounts,
    arithmetic,
    names,
    phones,
    ranges,
    signs,
    times,
)
from embedded.normalisation.rules import Rules
from embedded.normalisation.unicode_fold import Folded, fold

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
#: A stronger pause replaces a weaker one beside it.
_STRENGTH = {mark: strength for strength, mark in enumerate(",.!?")}
_LETTERS = (
    signs.SLASHED,
    *addresses.RULES,
    *arithmetic.LETTERS,
    *names.LETTERS,
    *phones.LETTERS,
    *times.DATES,
    *amounts.LETTERS,
    *abbreviations.RULES,
)
_DIGITS = (*addresses.RULES, *names.RULES, *times.TIMES, *phones.PHONES, *amounts.RULES)
_SIGNS = (
    ranges.RANGE,
    addresses.ROOTED,
    *phones.SIGNED,
    *amounts.SIGNED,
    *arithmetic.SIGNS,
    *signs.RULES,
)
_BY_LETTER = Rules((abbreviations.PLAIN, *_LETTERS))
_BY_DIGIT, _BY_SIGN = Rules(_DIGITS), Rules((*signs.COMMON, *_SIGNS))


@dataclass(frozen=True, slots=True)
class Span:
    """A spoken word, ``text[start:end]``, and its source ``source[source_start:source_end]``."""

    start: int
    end: int
    source_start: int
    source_end: int


@dataclass(frozen=True, slots=True)
class Normalised:
    """The spoken text, and a span for each of its words, in order.

    The spans cover all of ``text`` but its spaces and marks. Their source ranges are in order too;
    two are either the same (a number takes several words) or do not overlap.
    """

    text: str
    spans: tuple[Span, ...]


def normalise(text: str) -> Normalised:
    """Read ``text`` as an English speaker would; see the module. Any string is accepted, and the
    result may be empty. Normalising the result again does not change it.

    >>> normalise("Dr. Smith paid $3.50 at 3:45 pm.").text
    'doctor smith paid three dollars and fifty cents at three forty five pee em.'
    """
    folded = fold(text)
    speech = _Speech(folded)
    at = 0
    while at < len(folded.text):
        at = _read(folded.text, at, speech)
    return speech.finish()


def _read(text: str, at: int, speech: _Speech) -> int:
    """Read the text at ``at``. Returns where to continue."""
    found = _rules(text[at]).at(text, at)
    if not found:
        return at + 1
    end, reading = found
    written = text[at:end]
    first = at + len(written) - len(written.lstrip())
    for part in reading:
        speech.say(part, first, at + len(written.rstrip()))
    return end


def _rules(char: str) -> Rules:
    if char.isalpha():
        return _BY_LETTER
    return _BY_DIGIT if char.isdecimal() else _BY_SIGN


class _Speech:
    """Collects the spoken text and its spans."""

    def __init__(self, folded: Folded) -> None:
        self._folded = folded
        self._parts: list[str] = []
        self._length = 0
        self._pause = ""
        self._spans: list[Span] = []

    def say(self, part: str, start: int, end: int) -> None:
        """Add a pause or words, for ``[start, end)`` of the folded text."""
        if part in _STRENGTH:
            if part == "." and len(self._spans) == 1 and self._parts[-1] in abbreviations.ITEMS:
                part = ","  # "a. word" would be an item of a list if it were read again
            if self._spans and _STRENGTH[part] >= _STRENGTH.get(self._pause, -1):
                self._pause = part
            return
        first, last = self._source(start, end)
        for match in _WORD.finditer(part):
            self._put(self._pause + " " if self._spans else "")
            self._pause = ""
            at = self._length
            self._put(match[0])
            self._spans.append(Span(at, self._length, first, last))

    def _source(self, start: int, end: int) -> tuple[int, int]:
        """Return the source range. It is merged with the previous one if they share a character, as
        the two halves of an unfolded ligature do.
        """
        first, last = self._folded.starts[start], self._folded.ends[end - 1]
        at = len(self._spans)
        if at and self._spans[-1].source_end > first != self._spans[-1].source_start:
            first = self._spans[-1].source_start
        while (
            at and self._spans[at - 1].source_end > first and self._spans[at - 1].source_end < last
        ):
            at -= 1
            span = self._spans[at]
            self._spans[at] = Span(span.start, span.end, first, last)
        return first, last

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def finish(self) -> Normalised:
        """Return the result."""
        return Normalised("".join(self._parts) + self._pause, tuple(self._spans))

"""Reading of text by the rules of a language: the spoken words, and the source of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from text.rules import PAUSES, Rules
from text.unicode_fold import Folded

#: A stronger pause replaces a weaker one beside it.
_STRENGTH = {mark: strength for strength, mark in enumerate(PAUSES)}


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


@dataclass(frozen=True, slots=True)
class Reader:
    """How one language reads text.

    Args:
        fold: Folds the source to the characters that the rules know.
        letters: Rules for what begins with a letter.
        digits: Rules for what begins with a digit.
        signs: Rules for everything else. Characters that no rule reads are silent.
        word: A word in the readings of the rules.
        items: Words that number an item at the beginning of a text. A stop after one is a pause, so
            that the result is read as itself.
    """

    fold: Callable[[str], Folded]
    letters: Rules
    digits: Rules
    signs: Rules
    word: re.Pattern[str]
    items: frozenset[str] = frozenset()

    def read(self, source: str) -> Normalised:
        """Return the spoken words of ``source``. Any string is accepted."""
        folded = self.fold(source)
        text, at = folded.text, 0
        speech = _Speech(folded, self.word, self.items)
        while at < len(text):
            end, reading = self._rules(text[at]).at(text, at) or (at + 1, [])
            if reading:
                written = text[at:end]
                first = at + len(written) - len(written.lstrip())
                for part in reading:
                    speech.say(part, first, at + len(written.rstrip()))
            at = end
        return speech.finish()

    def _rules(self, char: str) -> Rules:
        if char.isalpha():
            return self.letters
        return self.digits if char.isdecimal() else self.signs


class _Speech:
    """Collects the spoken text and its spans."""

    def __init__(self, folded: Folded, word: re.Pattern[str], items: frozenset[str]) -> None:
        self._folded = folded
        self._word = word
        self._items = items
        self._parts: list[str] = []
        self._length = 0
        self._pause = ""
        self._spans: list[Span] = []

    def say(self, part: str, start: int, end: int) -> None:
        """Add a pause or words, for ``[start, end)`` of the folded text."""
        if part in _STRENGTH:
            if part == "." and len(self._spans) == 1 and self._parts[-1] in self._items:
                part = ","
            if self._spans and _STRENGTH[part] >= _STRENGTH.get(self._pause, -1):
                self._pause = part
            return
        first, last = self._source(start, end)
        for match in self._word.finditer(part):
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

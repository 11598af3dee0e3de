"""Text that is spoken word by word, while it arrives.

A byte-level tokenizer splits text into words, marks and spaces before it encodes them, a space with
what follows it. Text that has arrived is *settled* up to a place at which it splits in any case,
whatever follows: its ids are the first ids of the whole text, and a talker may speak them. Such a
place is before a single space between two words and, in languages without spaces, before a
full-width mark after a letter. Characters after the last such place are held back, so the settled
parts depend on the text alone, not on the pieces in which it arrives.
"""

from __future__ import annotations

from typing import NamedTuple

from text.segmenter import SENTENCE_MARKS, ends_sentence, joins

#: Marks of languages without spaces. Each is a word of its own, or begins the next one.
_WIDE_MARKS = frozenset("，。、！？；：")


class Words(NamedTuple):
    """Settled text, and whether its utterance ends with it."""

    text: str
    ends: bool = False


class WordStream:
    """Cuts one context's text into settled parts. An utterance ends with its sentence once it has
    ``max_chars`` characters, with its word once it has twice as many, and within a word only if
    that has more than ``max_chars``.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        #: Characters that are held back.
        self._held: list[str] = []
        #: Characters of the present utterance that were returned.
        self._length = 0
        #: Whether these characters have a letter or digit.
        self._is_speakable = False
        self._done: list[Words] = []

    @property
    def pending_chars(self) -> int:
        """Number of characters held back, at most about ``max_chars``."""
        return len(self._held)

    def push(self, text: str) -> list[Words]:
        """Add text; return what it settles, in order."""
        for char in text:
            self._step(char)
        done, self._done = self._done, []
        return done

    def cut(self) -> list[Words]:
        """End the utterance here; return what was held back. Empty if there is no utterance."""
        rest = "".join(self._held).rstrip()
        if rest or self._length:
            self._emit(Words(rest, ends=True))
        self._held = []
        done, self._done = self._done, []
        return done

    def _step(self, char: str) -> None:
        held = self._held
        if not (held or self._length) and char.isspace():
            return
        if self._ends_at_mark(char):
            self._settle(len(held), ends=True)
        elif self._parts_words(char):
            self._settle(len(held) - 1)
        elif held and char in _WIDE_MARKS and held[-1].isalnum():
            self._settle(len(held))
        self._held.append(char)
        if len(self._held) > self._max_chars:
            self._tear()

    def _parts_words(self, char: str) -> bool:
        """Whether a word ends before the space that was just read."""
        held = self._held
        is_between = len(held) > 1 and held[-1] == " " and not held[-2].isspace()
        return is_between and not char.isspace()

    def _ends_at_mark(self, char: str) -> bool:
        """Whether a long utterance ends after a full-width mark that was just read."""
        held = self._held
        is_long = self._length + len(held) >= self._max_chars
        is_mark = bool(held) and held[-1] in _WIDE_MARKS & SENTENCE_MARKS
        return is_long and is_mark and char.isalnum()

    def _settle(self, end: int, *, ends: bool = False) -> None:
        """Return the first ``end`` characters, if the utterance has anything to speak yet."""
        text = "".join(self._held[:end])
        if not self._is_speakable and not any(map(str.isalnum, text)):
            return
        length = self._length + end
        ends = ends or length >= 2 * self._max_chars
        ends = ends or (length >= self._max_chars and ends_sentence(text))
        rest = self._held[end:]
        self._emit(Words(text, ends))
        self._held = []
        for char in rest:
            if not ends or not char.isspace():
                self._held.append(char)

    def _tear(self) -> None:
        """End the utterance within a word that is too long."""
        cut = self._max_chars
        while cut > 1 and joins(self._held[cut - 1], self._held[cut]):
            cut -= 1
        rest = self._held[cut:]
        self._emit(Words("".join(self._held[:cut]), ends=True))
        self._held = []
        for char in rest:
            self._step(char)

    def _emit(self, words: Words) -> None:
        self._done.append(words)
        self._length = 0 if words.ends else self._length + len(words.text)
        self._is_speakable = not words.ends and (
            self._is_speakable or any(map(str.isalnum, words.text))
        )

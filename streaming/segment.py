"""Incoming text, in whatever pieces it comes, into utterances to speak.

The segmenter is an automaton that reads one character at a time, so its result depends on
the text and never on how the text was split. An utterance leaves as soon as its end is
certain, which is with the character after it:

- a sentence mark with its closers (``?!``, ``."``, ``...``) and then whitespace, unless the
  dot belongs to an abbreviation (of some, "No." or "Sat.", what follows tells) or to a list's
  number; marks of scripts without spaces
  (``。``, ``।``) need no whitespace, only something that is not a closer;
- an empty line, or a line break before a list's bullet.

Nothing ends inside ``<|...|>``, and a tag stays with the text that follows it. Numbers,
addresses and the like need no rule of their own: no whitespace follows their marks.
"""

from __future__ import annotations

from dataclasses import dataclass

from streaming.fit import SpokenLengths, fit
from streaming.script import (
    BULLETS,
    CLAUSE_MARKS,
    CLOSERS,
    FREE_CLAUSE_MARKS,
    FREE_MARKS,
    OPENERS,
    SENTENCE_MARKS,
    Held,
    is_abbreviation,
    is_wide,
    joins,
    may_go_on,
)

#: ``<|`` opens a tag if it is closed within so many characters and without whitespace.
_MAX_TAG_CHARS = 48
#: Digits of a list's number ("1. Take a pan."); longer ones are years and the like.
_MAX_LIST_DIGITS = 3


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Lengths in characters.

    No utterance is longer than ``max_chars``; only a single written character longer than
    that would be cut. A sentence shorter than ``min_chars`` waits for the next one, which
    costs nothing while audio plays; for the first one, at the beginning and after each
    flush, ``first_min_chars`` holds instead. With ``spoken_lengths`` no utterance is longer
    than ``max_chars`` in words either, as far as text can be parted (see ``streaming.fit``).
    """

    max_chars: int = 300
    min_chars: int = 12
    first_min_chars: int = 1
    spoken_lengths: SpokenLengths | None = None

    def __post_init__(self) -> None:
        if self.max_chars < 2 or min(self.min_chars, self.first_min_chars) < 1:
            raise ValueError("max_chars >= 2, min_chars >= 1 and first_min_chars >= 1 are needed")
        if max(self.min_chars, self.first_min_chars) > self.max_chars:
            raise ValueError("the least lengths must not exceed max_chars")


class Segmenter:
    """Cuts one context's text into utterances.

    The utterances, in order, are the text itself but for whitespace at their edges.
    """

    def __init__(self, settings: SegmentSettings) -> None:
        self._settings = settings
        self._max_tag = min(_MAX_TAG_CHARS, settings.max_chars // 2)
        self._first = True
        self._done: list[str] = []
        self._begin()

    @property
    def pending_chars(self) -> int:
        """Characters held back, at most ``max_chars``."""
        return len(self._text)

    def push(self, text: str) -> list[str]:
        """Add text; return the utterances that are complete with it, in order."""
        for char in text:
            self._step(char)
        done, self._done = self._done, []
        return done

    def flush(self) -> list[str]:
        """End the text here; return what was held back: one utterance or none, or what one
        was parted into for its length in words.
        """
        rest = "".join(self._text).strip()
        self._first = True
        self._begin()
        return self._fit(rest) if rest else []

    def _fit(self, utterance: str) -> list[str]:
        settings = self._settings
        if settings.spoken_lengths is None:
            return [utterance]
        return fit(utterance, settings.spoken_lengths(utterance), settings.max_chars)

    def _begin(self) -> None:
        """Forget the utterance that was being collected."""
        self._text: list[str] = []
        self._speakable = False  # holds a letter or digit outside tags
        self._word = 0  # where the current word begins
        self._line_starts = True  # nothing before the word in its line
        self._mark = ""  # the last of the sentence marks that were just read
        self._dot: int | None = None  # where that run is, if it is a single dot
        self._held = Held()  # "No. " was read: is a digit next?
        self._clause = ""  # the clause mark that was just read
        self._line_break = False  # only whitespace since a line break
        self._tag: int | None = None  # where the open tag begins
        self._last_tag = (0, 0)  # the closed tag nearest to here, [start, end)
        self._clause_cut = self._space_cut = 0  # the last weaker boundaries

    def _step(self, char: str) -> None:
        if not self._text and char.isspace():
            return
        if self._tag is not None:
            self._read_in_tag(char)
        else:
            end = self._held.end_before(self._text, char)
            if self._ends_before(char):
                end = len(self._text)
            if end is not None and self._speakable:
                if end >= self._least():
                    self._emit(end)
                    return self._step(char)
                self._clause_cut = end
            self._note_cut(char)
            self._text.append(char)
            self._read(char)
        if len(self._text) > self._settings.max_chars:
            self._emit(self._cut())

    def _least(self) -> int:
        settings = self._settings
        return settings.first_min_chars if self._first else settings.min_chars

    def _emit(self, length: int) -> None:
        """The first ``length`` characters are an utterance; the rest is read again."""
        text = self._text
        self._done += self._fit("".join(text[:length]).strip())
        self._first = False
        self._begin()
        for char in text[length:]:
            self._step(char)

    # -- where a sentence ends

    def _ends_before(self, char: str) -> bool:
        """Whether what was read is a whole sentence, now that ``char`` follows."""
        if self._line_break and (char == "\n" or char in BULLETS):
            return True
        if not self._mark or char in SENTENCE_MARKS or char in CLOSERS:
            return False
        if self._mark in FREE_MARKS:
            return True
        if char.isspace():
            return not self._is_inner_dot()
        return char == "<" or (self._mark in "!?．" and is_wide(char))

    def _is_inner_dot(self) -> bool:
        """Whether the one dot that was read is part of its word."""
        word = self._dotted_word()
        if self._line_starts and word.isdigit() and len(word) <= _MAX_LIST_DIGITS:
            return True
        return may_go_on(word) or is_abbreviation(word)

    def _dotted_word(self) -> str:
        """The word before the single dot that was just read; empty if none was."""
        if self._dot is None:
            return ""
        return "".join(self._text[self._word : self._dot]).lstrip(OPENERS)

    # -- what was read

    def _read(self, char: str) -> None:
        """Update the state by ``char``, which was just added, outside a tag."""
        if char.isspace():
            self._held.note(self._dotted_word(), len(self._text))
            self._mark, self._clause, self._dot = "", "", None
            self._line_break = self._line_break or char == "\n"
            if self._word < len(self._text) - 1:
                self._line_starts = False
            self._line_starts = self._line_starts or char == "\n"
            self._word = len(self._text)
            return
        self._line_break = False
        if char in SENTENCE_MARKS:
            self._dot = len(self._text) - 1 if char == "." and not self._mark else None
            self._mark, self._clause = char, ""
        elif char in CLAUSE_MARKS:
            self._mark, self._clause, self._dot = "", char, None
        elif char not in CLOSERS:
            self._mark, self._clause, self._dot = "", "", None
            self._speakable = self._speakable or char.isalnum()
            if char == "|" and len(self._text) > 1 and self._text[-2] == "<":
                self._tag = len(self._text) - 2

    def _read_in_tag(self, char: str) -> None:
        start, length = self._tag or 0, len(self._text) + 1 - (self._tag or 0)
        if char.isspace() or length > self._max_tag:  # it was no tag
            self._tag = None
            inside = self._text[start:]
            self._speakable = self._speakable or any(map(str.isalnum, inside))
            return self._step(char)
        self._text.append(char)
        if char == ">" and self._text[-2] == "|" and length > 3:
            self._tag = None
            self._last_tag = (start, len(self._text))
            self._word = len(self._text)

    # -- where to cut what is too long

    def _note_cut(self, char: str) -> None:
        """Remember the place before ``char`` if it is a weaker boundary."""
        here = len(self._text)
        if not self._speakable or self._last_tag[1] == here:
            return  # a tag stays with what follows
        if self._clause and (
            char.isspace() or (self._clause in FREE_CLAUSE_MARKS and char not in CLOSERS)
        ):
            self._clause_cut = here
        if char.isspace() and not self._text[-1].isspace():
            self._space_cut = here

    def _cut(self) -> int:
        """How much of a text of ``max_chars + 1`` becomes an utterance: at least 1 character."""
        most = self._settings.max_chars
        # An early clause mark would make a short utterance, and reading the rest again dear.
        if self._clause_cut * 3 >= most:
            return self._clause_cut
        if self._space_cut:
            return self._space_cut
        tags = [self._last_tag] if self._tag is None else [(self._tag, most + 1)]
        cut = most
        for start, end in tags:
            if start < cut < end:
                cut = start
        while cut and joins(self._text[cut - 1], self._text[cut]):
            cut -= 1
        return cut or most

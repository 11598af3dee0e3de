"""Sentences of marked-up text, for a protocol that divides the text itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from text.markup.elements import Element, Text
from text.markup.reader import MarkupReader
from text.segmenter import Segmenter, SegmentSettings

#: Stands for a mark in the text that the segmenter reads.
_MARK = "\ufffc"


class MarkedSegmenter:
    """Cuts a text into pieces as ``Segmenter`` does, but never within a mark, nor within an element
    that is read as a whole, such as ``<spell>``. Marks do not count as the length of a piece.

    In order the pieces are the text itself, except for whitespace at their edges.
    """

    def __init__(self, reader: MarkupReader, settings: SegmentSettings) -> None:
        self._reader = reader
        self._segmenter = Segmenter(settings)
        #: The end of the text, which the segmenter has not read.
        self._unread = ""
        #: Offset of its first character in the text.
        self._at = 0
        #: What each mark in the segmenter stands for.
        self._marks: deque[str] = deque()

    def push(self, text: str) -> list[str]:
        """Add text; return the pieces that it completes, in order."""
        self._unread += text
        return self._segment(self._reader.push(text))

    def flush(self) -> list[str]:
        """End the text; return the rest of it."""
        pieces = self._segment(self._reader.flush(is_last=True))
        last = self._mark(self._unread)
        return pieces + self._restore([*self._segmenter.push(last), *self._segmenter.flush()])

    def _segment(self, elements: Iterable[Element]) -> list[str]:
        plain: list[str] = []
        at = 0
        for element in elements:
            if isinstance(element, Text):
                plain.append(self._mark(self._unread[at : element.start - self._at]))
                plain.append(element.text)
                self._marks.extend(_MARK * element.text.count(_MARK))
                at = element.end - self._at
        self._at += at
        self._unread = self._unread[at:]
        return self._restore(self._segmenter.push("".join(plain)))

    def _mark(self, source: str) -> str:
        """Return what the segmenter reads for marks."""
        if not source:
            return ""
        self._marks.append(source)
        return _MARK

    def _restore(self, pieces: Iterable[str]) -> list[str]:
        """Return pieces with their marks as they were written."""
        return [
            "".join(self._marks.popleft() if char == _MARK else char for char in piece)
            for piece in pieces
        ]

"""Offsets of spoken text in the client's text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class SourceMap:
    """Where the characters of the spoken text come from.

    The spoken text consists of spans in order. The characters of a verbatim span map one to one to
    the client's. Over any other span the client's offset grows evenly. Between the sources of two
    spans are marks that are not spoken.
    """

    def __init__(self) -> None:
        #: Where each span begins and ends in the spoken text. Spans follow each other directly.
        self._begins: list[int] = []
        self._ends: list[int] = []
        #: The client's characters that each speaks, and the end of the marks that belong to it.
        self._sources: list[tuple[int, int]] = []
        self._closed: list[int] = []
        self._is_verbatim: list[bool] = []

    @property
    def length(self) -> int:
        """Number of spoken characters."""
        return self._ends[-1] if self._ends else 0

    def add(self, length: int, start: int, end: int, *, is_verbatim: bool) -> None:
        """Add a span of ``length`` spoken characters, for the client's ``[start, end)``."""
        follows = self._sources and self._closed[-1] == self._sources[-1][1] == start
        if is_verbatim and follows and self._is_verbatim[-1]:
            self._ends[-1] += length
            self._sources[-1] = (self._sources[-1][0], end)
            self._closed[-1] = end
            return
        begin = self.length
        self._begins.append(begin)
        self._ends.append(begin + length)
        self._sources.append((start, end))
        self._closed.append(end)
        self._is_verbatim.append(is_verbatim)

    def close(self, end: int) -> None:
        """Let marks that end at ``end`` belong to the last span."""
        if self._closed:
            self._closed[-1] = end

    def start_of(self, spoken: int) -> int:
        """Return the client's offset of the spoken character at ``spoken``."""
        at = bisect_right(self._begins, spoken) - 1
        return self._within(at, spoken) if at >= 0 else 0

    def end_of(self, spoken: int, *, with_marks: bool = False) -> int:
        """Return the client's offset at which the first ``spoken`` characters end; if
        ``with_marks``, after the marks that belong to them.
        """
        at = bisect_left(self._ends, spoken)
        if not spoken or not self._ends:
            return 0
        at = min(at, len(self._ends) - 1)
        if with_marks and spoken >= self._ends[at]:
            return self._closed[at]
        return self._within(at, spoken)

    def substitute_at(self, spoken: int) -> tuple[int, int] | None:
        """Return where the span around ``spoken`` begins, in the spoken and in the client's text,
        if it is not verbatim. None at its edges.
        """
        at = bisect_right(self._begins, spoken) - 1
        if at < 0 or self._is_verbatim[at] or not self._begins[at] < spoken < self._ends[at]:
            return None
        return self._begins[at], self._sources[at][0]

    def substitutes(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the spoken ``[begin, end)`` of the spans there that are not verbatim."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return [
            (self._begins[at], self._ends[at])
            for at in range(first, last)
            if not self._is_verbatim[at]
        ]

    def _within(self, at: int, spoken: int) -> int:
        begin, end = self._begins[at], self._ends[at]
        start, stop = self._sources[at]
        offset = min(spoken, end) - begin
        if self._is_verbatim[at]:
            return start + offset
        return start + offset * (stop - start) // (end - begin)

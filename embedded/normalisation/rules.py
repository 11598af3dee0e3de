"""A rule of reading: what it matches, where, and what is said for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Match: TypeAlias = re.Match[str]
#: Words (several in one string if so) and pauses, one of ``, . ? !``; None: not here.
Reading: TypeAlias = "list[str] | None"

PAUSES = ",.!?"
_ENDS = re.compile(r"[\"')\]]*(?:\s+[\"'(\[]*[A-Z]|\s*$)")


class Rule:
    """``pattern``, tried at a position, and ``read``, which says what is spoken for a match.

    ``behind`` must match the one character before the position (none at the beginning).
    """

    def __init__(
        self, pattern: str, read: Callable[[Match], Reading], *, behind: str | None = None
    ) -> None:
        self._pattern = re.compile(pattern)
        self._behind = re.compile(behind) if behind else None
        self._read = read

    def at(self, text: str, position: int) -> tuple[int, list[str]] | None:
        """The end of what is read at ``position`` and its reading, or None."""
        if self._behind and not self._behind.fullmatch(text[position - 1 : position]):
            return None
        match = self._pattern.match(text, position)
        if match is None or match.end() == position:
            return None
        reading = self._read(match)
        return None if reading is None else (match.end(), reading)


def stopped(match: Match, *words: str) -> list[str]:
    """The words, and a stop where the match's last dot ends a sentence too."""
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [*words, *(["."] if stop else [])]


def dot_ends(text: str, end: int) -> bool:
    """Whether an abbreviation's dot, before ``end``, seems to end a sentence as well."""
    return bool(_ENDS.match(text, end))

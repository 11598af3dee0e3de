"""A normalisation rule: its pattern, its position, and its spoken form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Match: TypeAlias = re.Match[str]
#: Words (several may share a string) and pauses, one of ``, . ? !``; None: the rule does not apply.
Reading: TypeAlias = "list[str] | None"

PAUSES = ",.!?"
_ENDS = re.compile(r"[\"')\]]*(?:\s+[\"'(\[]*[A-Z]|\s*$)")


class Rule:
    """``pattern``, tried at a position, and ``read``, which returns the spoken form of a match.

    ``behind`` must match the one character before the position (none at the beginning).
    """

    def __init__(
        self, pattern: str, read: Callable[[Match], Reading], *, behind: str | None = None
    ) -> None:
        self._pattern = re.compile(pattern)
        self._behind = re.compile(behind) if behind else None
        self._read = read

    def at(self, text: str, position: int) -> tuple[int, list[str]] | None:
        """Return the end of the match at ``position`` and its reading, or None."""
        if self._behind and not self._behind.fullmatch(text[position - 1 : position]):
            return None
        match = self._pattern.match(text, position)
        if match is None or match.end() == position:
            return None
        reading = self._read(match)
        return None if reading is None else (match.end(), reading)


def stopped(match: Match, *words: str) -> list[str]:
    """Return the words, with a stop if the match's last dot also ends a sentence."""
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [*words, *(["."] if stop else [])]


def dot_ends(text: str, end: int) -> bool:
    """Whether an abbreviation's dot, before ``end``, seems to end a sentence as well."""
    return bool(_ENDS.match(text, end))

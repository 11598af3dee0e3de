"""A normalisation rule: its pattern, its position, and its spoken form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Match: TypeAlias = re.Match[str]
#: Words (several may share a string) and pauses, one of ``, . ? !``; None: the rule does not apply.
Reading: TypeAlias = "list[str] | None"

PAUSES = ",.!?"
_JOINED = 12
#: The name of a group in a pattern, where it is defined or referred to.
_GROUP = re.compile(r"\(\?P(<|=)(\w+)")
_ENDS = re.compile(r"[\"')\]]*(?:\s+[\"'(\[]*[A-Z]|\s*$)")


class Rule:
    """``pattern``, tried at a position, and ``read``, which returns the spoken form of a match.

    ``behind`` is a set of characters, of which one must be before the position. If it ends with a
    question mark, the position may also be the beginning of the text.
    """

    def __init__(
        self, pattern: str, read: Callable[[Match], Reading], *, behind: str | None = None
    ) -> None:
        if behind:
            is_optional = behind.endswith("?")
            last = f"(?<={behind.removesuffix('?')})"
            pattern = (rf"(?:{last}|\A)" if is_optional else last) + f"(?:{pattern})"
        self.pattern = pattern
        self._compiled = re.compile(pattern)
        self._read = read

    def at(self, text: str, position: int) -> tuple[int, list[str]] | None:
        """Return the end of the match at ``position`` and its reading, or None."""
        match = self._compiled.match(text, position)
        if match is None or match.end() == position:
            return None
        reading = self._read(match)
        return None if reading is None else (match.end(), reading)


class Rules:
    """Rules that are tried in order at each position.

    Few of them match at a position. So the patterns of ``_JOINED`` rules are joined to one, which
    finds the first of these that does.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        groups = (rules[at : at + _JOINED] for at in range(0, len(rules), _JOINED))
        self._groups = [(_join(group), tuple(group)) for group in groups]

    def at(self, text: str, position: int) -> tuple[int, list[str]] | None:
        """Return the end and the reading of the first rule that applies, or None."""
        for joined, rules in self._groups:
            if match := joined.match(text, position):
                first = int((match.lastgroup or "").removeprefix("rule_"))
                for rule in rules[first:]:
                    if found := rule.at(text, position):
                        return found
        return None


def _join(rules: Sequence[Rule]) -> re.Pattern[str]:
    """Join patterns; the last group of a match is named after the number of its rule."""
    parts = []
    for number, rule in enumerate(rules):
        own = _GROUP.sub(rf"(?P\1\2_{number}", rule.pattern)
        parts.append(f"(?P<rule_{number}>{own})")
    return re.compile("|".join(parts))


def stopped(match: Match, *words: str) -> list[str]:
    """Return the words, with a stop if the match's last dot also ends a sentence."""
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [*words, *(["."] if stop else [])]


def dot_ends(text: str, end: int) -> bool:
    """Whether an abbreviation's dot, before ``end``, seems to end a sentence as well."""
    return bool(_ENDS.match(text, end))

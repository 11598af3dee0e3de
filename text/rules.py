"""Rules of a language: what is said where a pattern matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

Match: TypeAlias = re.Match[str]
#: Words (several may share a string) and pauses, one of ``, . ? !``; None: the rule does not apply.
Reading: TypeAlias = "list[str] | None"

PAUSES = ",.!?"
#: Number of characters that a rule looks back or ahead.
REACH = 40
_JOINED = 12
#: The name of a group in a pattern, where it is defined or referred to.
_GROUP = re.compile(r"\(\?P(<|=)(\w+)")
_ENDS = re.compile(r"[\"')\]*_]*(?:\s+[\"'(\[*_]*[A-Z]|\s*$)")


class Rule:
    """What is said for a pattern where certain text stands around it.

    Args:
        pattern: What is matched at a position.
        say: What is said: words or a pause, "" for nothing; a table of words by the group "a" of
            the match; or a function of the match, whose result None means that the rule does not
            apply.
        behind: A set of characters, of which one must be before the position. If it ends with a
            question mark, the position may also be the beginning of the text.
        if_before: A pattern in the text before the match, as a rule up to its end.
        if_after: A pattern at the beginning of the text after the match. Of this and ``if_before``,
            one is enough.
        unless_before: As ``if_before``; the rule does not apply if it is found.
        unless_after: As ``if_after``; the rule does not apply if it is found.
    """

    def __init__(
        self,
        pattern: str,
        say: str | Mapping[str, str] | Callable[[Match], Reading],
        *,
        behind: str | None = None,
        if_before: str | None = None,
        if_after: str | None = None,
        unless_before: str | None = None,
        unless_after: str | None = None,
    ) -> None:
        if behind:
            is_optional = behind.endswith("?")
            last = f"(?<={behind.removesuffix('?')})"
            pattern = (rf"(?:{last}|\A)" if is_optional else last) + f"(?:{pattern})"
        self.pattern = pattern
        self._compiled = re.compile(pattern)
        self._say = say if callable(say) else _saying(say)
        wanted, unwanted = (if_before, if_after), (unless_before, unless_after)
        self._wanted = _Around(*wanted) if any(wanted) else None
        self._unwanted = _Around(*unwanted) if any(unwanted) else None

    def at(self, text: str, position: int) -> tuple[int, list[str]] | None:
        """Return the end of the match at ``position`` and what is said for it, or None."""
        match = self._compiled.match(text, position)
        if match is None or match.end() == position:
            return None
        if self._wanted and not self._wanted.holds(match):
            return None
        if self._unwanted and self._unwanted.holds(match):
            return None
        reading = self._say(match)
        return None if reading is None else (match.end(), reading)


class _Around:
    """Patterns before and after a match, of which one must be found."""

    def __init__(self, ahead: str | None, following: str | None) -> None:
        self._before = ahead and re.compile(ahead)
        self._after = following and re.compile(following)

    def holds(self, match: Match) -> bool:
        if self._before and self._before.search(before(match)):
            return True
        return bool(self._after and self._after.match(after(match)))


def _saying(words: str | Mapping[str, str]) -> Callable[[Match], Reading]:
    if isinstance(words, Mapping):
        return lambda match: [words[match["a"]]]
    reading = [words] if words else []
    return lambda match: reading


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


def paused(words: Iterable[str]) -> list[str]:
    """Return words with a pause between them."""
    return [part for word in words for part in (word, ",")][:-1]


def before(match: Match) -> str:
    """Return the text before a match, as much as a rule needs."""
    return match.string[max(0, match.start() - REACH) : match.start()]


def after(match: Match) -> str:
    """Return the text after a match, as much as a rule needs."""
    return match.string[match.end() : match.end() + REACH]


def stopped(match: Match, *words: str) -> list[str]:
    """Return the words, with a stop if the match's last dot also ends a sentence."""
    stop = match[0].endswith(".") and dot_ends(match.string, match.end())
    return [*words, *(["."] if stop else [])]


def dot_ends(text: str, end: int) -> bool:
    """Whether an abbreviation's dot, before ``end``, seems to end a sentence as well."""
    return bool(_ENDS.match(text, end))

"""What rules of pronunciation do to a text, by trying every rule everywhere: slow, and simple."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from text.pronunciation.rules import Rule
from text.segmenter import is_wide

_SPACES = "\t\n\r\x0b\x0c\xa0\u2009\u202f"


def replaced(text: str, rules: Sequence[Rule]) -> list[tuple[int, int, Rule]]:
    """Return the matches of rules in a text, as (start, end, rule), in order."""
    found: list[tuple[int, int, Rule]] = []
    at = 0
    while at < len(text):
        matching = [rule for rule in rules if _matches(rule, text, at)]
        if not matching:
            at += 1
            continue
        longest = max(len(rule.written) for rule in matching)
        rule = next(rule for rule in matching if len(rule.written) == longest)
        found.append((at, at + longest, rule))
        at += longest
    return found


def _matches(rule: Rule, text: str, at: int) -> bool:
    end = at + len(rule.written)
    here, written = _plain(text[at:end]), _plain(rule.written)
    if not rule.case_sensitive:
        here, written = _small(here), _small(written)
    if here != written:
        return False
    if not rule.word_boundaries:
        return True
    return not _is_within_word(text, at) and not _is_within_word(text, end)


def _is_within_word(text: str, at: int) -> bool:
    """Whether a word goes on from one side of a place to the other."""
    return 0 < at < len(text) and all(_is_of_word(char) for char in text[at - 1 : at + 1])


def _is_of_word(char: str) -> bool:
    if unicodedata.category(char)[0] == "M" or char == "_":
        return True
    return char.isalnum() and not is_wide(char)


def _plain(text: str) -> str:
    for char in _SPACES:
        text = text.replace(char, " ")
    return text.replace("\u2019", "'").replace("\u02bc", "'")


def _small(text: str) -> str:
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


def parts(text: str, cuts: Sequence[int]) -> list[str]:
    """Return a text cut at these places."""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]

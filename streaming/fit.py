"""Parting utterances that become too long in words: "1,234,567" is said with 70 characters.

Where a talker is given text in words, a front end knows for each place of a text how much is
said before it. From that, and nothing else, an utterance is parted where it is least heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from streaming.script import CLAUSE_MARKS, CLOSERS, SENTENCE_MARKS, joins

#: ``lengths[i]``: how many characters are said for ``text[:i]``, for 0 <= i <= len(text); -1 where
#: what stands on both sides of the place is said as one.
SpokenLengths: TypeAlias = Callable[[str], Sequence[int]]

#: A part begins within this share of its even length, if it begins with a clause.
_LEAST_SHARE = 0.6
#: What is said as one is torn apart if it is so many times too long.
_TORN_FROM = 2


def fit(text: str, lengths: Sequence[int], most: int) -> list[str]:
    """Part ``text`` into utterances of at most ``most`` spoken characters, of about the same
    length, at a clause's end where there is one, else between words.

    What is said as one (an amount, a date) stays in one piece and may be longer; from twice
    as long on (a very long number) it is cut into even parts. Together the parts are the text
    but for whitespace at their edges.
    """
    parts: list[str] = []
    begin = 0
    while (left := lengths[-1] - lengths[begin]) > most:
        even = left / -(-left // most)
        end = _best(text, lengths, begin, most, even)
        if end is None:
            break
        parts += _tear(text[begin:end].strip(), lengths[end] - lengths[begin], most)
        begin = end
    parts += _tear(text[begin:].strip(), lengths[-1] - lengths[begin], most)
    return [part for part in map(str.strip, parts) if part]


def _best(text: str, lengths: Sequence[int], begin: int, most: int, even: float) -> int | None:
    """Where the part that begins at ``begin`` ends; None if only at the end of the text."""
    clause = between = None
    off = float("inf")  # how far "between" is from an even part
    for place in range(begin + 1, len(text)):
        said = lengths[place] - lengths[begin]
        if said <= 0 or not _parts(text, place, lengths):
            continue
        if said > most:
            return clause or between or place
        if abs(said - even) <= off:
            between, off = place, abs(said - even)
        if _ends_clause(text, place) and said >= _LEAST_SHARE * even:
            clause = place
    return clause or between


def _parts(text: str, place: int, lengths: Sequence[int]) -> bool:
    """Whether words end at a place; a tag stays with what follows it."""
    return lengths[place] >= 0 and text[place].isspace() and not text.endswith("|>", 0, place)


def _ends_clause(text: str, place: int) -> bool:
    at = place - 1
    while at > 0 and text[at] in CLOSERS:
        at -= 1
    return text[at] in CLAUSE_MARKS or text[at] in SENTENCE_MARKS


def _tear(part: str, said: int, most: int) -> list[str]:
    """Even parts of what is far too long in one piece, else the piece."""
    if said < _TORN_FROM * most:
        return [part]
    count = -(-said // most)
    size = max(1, -(-len(part) // count))
    cuts = list(range(size, len(part), size))
    edges = [0, *(cut for cut in cuts if not joins(part[cut - 1], part[cut])), len(part)]
    return [part[start:end] for start, end in pairwise(edges)]

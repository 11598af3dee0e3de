"""Text front ends: from writing to words, for checkpoints that read nothing else.

A checkpoint whose generation_config.json names a ``text_frontend`` is given text as that front
end reads it: digits, signs and abbreviations in words. The front ends are not the talker's; the
service hands them in by name. What counts and travels stays the client's own text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Protocol, TypeAlias

from talker.shape import CheckpointError


class SpokenWord(Protocol):
    """A word of the reading, ``[start, end)``, and the source characters it is said for."""

    @property
    def start(self) -> int:
        """Its first character in the reading."""

    @property
    def end(self) -> int:
        """Where it ends there."""

    @property
    def source_start(self) -> int:
        """The first character of what it is said for."""

    @property
    def source_end(self) -> int:
        """Where that ends. Sources come in order; words may share one."""


class Reading(Protocol):
    """The spoken text, and its words in order."""

    @property
    def text(self) -> str:
        """All of it."""

    @property
    def spans(self) -> Sequence[SpokenWord]:
        """Its words."""


TextFrontEnd: TypeAlias = Callable[[str], Reading]


def choose_front_end(name: str | None, known: Mapping[str, TextFrontEnd]) -> TextFrontEnd | None:
    """The front end that a checkpoint names. Raises CheckpointError if it is not known."""
    if name is not None and name not in known:
        raise CheckpointError(f"text_frontend: {name!r} is not known here; known: {sorted(known)}")
    return None if name is None else known[name]


def origins(reading: Reading, source_chars: int) -> list[int]:
    """For each character of the reading the source character that is being said with it.

    Over the words of one source ("1,234") the place moves evenly; what stands between words
    belongs to the end of the one before. Never falls.
    """
    places: list[int] = []
    last = 0
    for (start, end), group in groupby(reading.spans, lambda w: (w.source_start, w.source_end)):
        words = list(group)
        places += [last] * (words[0].start - len(places))
        chars = words[-1].end - words[0].start
        places += [start + at * (end - start) // chars for at in range(chars)]
        last = min(end, source_chars - 1)
    return places + [last] * (len(reading.text) - len(places))


def spoken_lengths(
    front_end: TextFrontEnd,
    text: str,
    split_tags: Callable[[str], Sequence[str]] = lambda text: (text,),
) -> list[int]:
    """For each place of ``text``, its end included, how many characters are said before it;
    -1 where something is said for what stands on both sides of it. Tags say nothing;
    ``split_tags`` gives text and tags in turn.
    """
    lengths = [0]
    for index, piece in enumerate(split_tags(text)):
        before = max(lengths[-1], 0)
        if index % 2:
            lengths += [before] * len(piece)
            continue
        lengths += _piece_lengths(front_end(piece), len(piece), before)
    return lengths


def _piece_lengths(reading: Reading, chars: int, before: int) -> list[int]:
    """The lengths at places 1 to ``chars`` of one piece."""
    lengths: list[int] = []
    said = 0
    for word in reading.spans:
        lengths += [before + said] * (word.source_start - len(lengths))
        lengths += [-1] * (word.source_end - 1 - len(lengths))
        said = word.end
    lengths += [before + said] * (chars - len(lengths))
    return lengths

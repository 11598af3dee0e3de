"""Text front ends: text normalisation for checkpoints that can only read words.

If a checkpoint's generation_config.json names a ``text_frontend``, its text is normalised by that
front end: digits, signs and abbreviations become words. The front ends are not part of the talker;
the service passes them in by name. Offsets and lengths refer to the client's own text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias


class SpokenWord(Protocol):
    """A word of the reading, ``[start, end)``, and the source characters that it speaks."""

    @property
    def start(self) -> int:
        """Offset of its first character in the reading."""

    @property
    def end(self) -> int:
        """Offset of its end in the reading."""

    @property
    def source_start(self) -> int:
        """Offset of its first source character."""

    @property
    def source_end(self) -> int:
        """Offset of the end of its source. Sources are in order; words may share one."""


class Reading(Protocol):
    """The normalised text, and its words in order."""

    @property
    def text(self) -> str:
        """The whole reading."""

    @property
    def spans(self) -> Sequence[SpokenWord]:
        """Its words."""


TextFrontEnd: TypeAlias = Callable[[str], Reading]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A text front end, and what else it can read.

    Args:
        read: Reads a text.
        signs_of: Returns the words of a pronunciation in the International Phonetic Alphabet, as
            ``read`` takes them (text/pronunciation/in_band.py); None if it does not know the
            sounds. Without it, the front end takes no pronunciations.
        languages: The languages that it reads, as ISO 639 codes.
    """

    read: TextFrontEnd
    signs_of: Callable[[str], Sequence[str] | None] | None = None
    languages: tuple[str, ...] = ()

    def __call__(self, text: str) -> Reading:
        """Read a text."""
        return self.read(text)


def origins(reading: Reading, source_chars: int) -> list[int]:
    """Map each character of the reading to the source character that is spoken with it.

    Over the words of one source ("1,234") the source offset grows evenly. Characters between words
    belong to the end of the word before them. The result never decreases.
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
    """Return for each offset of ``text``, its end included, the number of spoken characters before
    it.

    An offset inside the source of a word has -1. Tags are not spoken; ``split_tags`` returns text
    and tags in turn.
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
    """Return the lengths at offsets 1 to ``chars`` of one part of the text."""
    lengths: list[int] = []
    said = 0
    for word in reading.spans:
        lengths += [before + said] * (word.source_start - len(lengths))
        lengths += [-1] * (word.source_end - 1 - len(lengths))
        said = word.end
    lengths += [before + said] * (chars - len(lengths))
    return lengths

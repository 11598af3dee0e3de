"""From the times of words to the times of characters, which is what ElevenLabs' clients read.

A word's times are measured; within the word they are spread evenly over its characters, and the
pause before a word over the characters between it and the word before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from streaming.words import WordTiming


@dataclass(frozen=True, slots=True)
class CharTimes:
    """Characters of the text and when each is spoken: ``edges_ms`` has one entry more than
    ``chars``, whole milliseconds of what is heard from the context's first sample; a character
    lasts from its own edge to the next.
    """

    chars: tuple[str, ...]
    edges_ms: tuple[int, ...]

    def relative(self, since_ms: int) -> dict[str, list[Any]]:
        """As the socket's messages have it, relative to ``since_ms``."""
        edges = self.edges_ms
        return {
            "chars": list(self.chars),
            "charStartTimesMs": [edge - since_ms for edge in edges[:-1]],
            "charDurationsMs": [after - before for before, after in pairwise(edges)],
        }

    def in_seconds(self) -> dict[str, list[Any]]:
        """As HTTP answers have it, from the beginning."""
        return {
            "characters": list(self.chars),
            "character_start_times_seconds": [edge / 1000 for edge in self.edges_ms[:-1]],
            "character_end_times_seconds": [edge / 1000 for edge in self.edges_ms[1:]],
        }

    def __add__(self, other: CharTimes) -> CharTimes:
        """Both, one after the other; a gap between them belongs to the first one's last."""
        return CharTimes(self.chars + other.chars, self.edges_ms[:-1] + other.edges_ms)


class Aligner:
    """One context's characters, in order, each once.

    ``append`` has to be told of the text just as it was appended to the context, for words name
    their places in it. Whitespace is given as spaces, and a space after every word, for clients
    know by it that the word is over; where the text has none yet, it is lent, and the text's
    own is left out when it comes.
    """

    def __init__(self) -> None:
        self._text: str = ""
        self._at = self._clock_ms = 0
        self._has_lent = False

    @property
    def clock_ms(self) -> int:
        """Where the characters that were given end."""
        return self._clock_ms

    def append(self, text: str) -> None:
        """More text."""
        self._text += text

    def take(self, words: Sequence[WordTiming]) -> CharTimes | None:
        """The characters up to and with ``words``; None if there are none."""
        chars: list[str] = []
        edges = [self._clock_ms]
        for word in words:
            self._skip_lent()
            begin, end = max(self._at, word.start), max(self._at, word.end)
            self._spread(chars, edges, self._text[self._at : begin], word.start_ms)
            edges[-1] = max(edges[-1], round(word.start_ms))
            self._spread(chars, edges, self._text[begin:end], word.end_ms)
            self._at = end
            self._add_space(chars, edges)
        self._clock_ms = edges[-1]
        return CharTimes(tuple(chars), tuple(edges)) if chars else None

    def _spread(self, chars: list[str], edges: list[int], text: str, until_ms: float) -> None:
        begin = edges[-1]
        lasts = max(0, round(until_ms) - begin)
        chars += (" " if char.isspace() else char for char in text)
        edges += [begin + lasts * (n + 1) // len(text) for n in range(len(text))]

    def _add_space(self, chars: list[str], edges: list[int]) -> None:
        following = self._text[self._at : self._at + 1]
        if following and not following.isspace():
            return  # no word ends here, to those who split at spaces
        self._has_lent = not following
        self._at += len(following)
        chars.append(" ")
        edges.append(edges[-1])

    def _skip_lent(self) -> None:
        if self._has_lent and self._text[self._at : self._at + 1].isspace():
            self._at += 1
        self._has_lent = False

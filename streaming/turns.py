"""Turns: the text that is spoken in one generation, and the delivery tags that apply to it.

A turn is a context's text up to a flush or its end. Text that is still arriving is spoken sentence
by sentence. Once a turn is complete, its waiting text is one generation, if it is short enough.
Delivery tags (emotion, speed) apply to all text after them in their turn. A piece that is spoken
apart from its tags gets the same tags in front.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

#: Characters per second of the slowest speech that control tags produce.
_SLOW_CHARS_PER_S = 8.0
#: Spoken length in letters of a CJK character (a syllable) and of a digit.
_WIDE, _DIGIT = 3, 4
_TAG = r"<\|[^|\s]+\|>"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """Settings of turns. ``max_chars``: the most that one generation speaks of a turn, as
    ``speech_chars`` counts; 0: each piece of text is a generation of its own. ``delivery``: the
    delivery tags and the aspect that each sets. Of two tags for one aspect the later applies.
    """

    max_chars: int = 0
    delivery: Mapping[str, str] = field(default_factory=dict)


def speech_chars(text: str) -> int:
    """Spoken length of ``text``: the number of letters that take about as long to say."""
    return len(text) + sum(
        _DIGIT - 1 if char.isdigit() else _WIDE - 1
        for char in text
        if char.isdigit() or (char >= "\u3040" and char.isalnum())
    )


def chars_within(frames: int, frame_s: float) -> int:
    """Number of letters certainly spoken within ``frames`` frames of ``frame_s`` seconds."""
    return int(frames * frame_s * _SLOW_CHARS_PER_S)


@dataclass(slots=True)
class Piece:
    """Text that waits for the talker, and the flushes that wait for it. ``before``: the tags in
    force that the text does not set itself. ``length``: as ``speech_chars`` counts.
    """

    text: str
    queued_at: float
    before: str
    length: int
    ends_turn: bool = False
    flush_ids: list[str] = field(default_factory=list)


class PendingText:
    """The pieces of a context's text that the talker has not been asked for, in order."""

    def __init__(self, settings: TurnSettings) -> None:
        self._most = settings.max_chars
        self._aspects = settings.delivery
        known = "|".join(re.escape(tag) for tag in sorted(settings.delivery)) or r"(?!)"
        self._known = re.compile(known)
        self._lead = re.compile(rf"(?:\s*(?:{known}|{_TAG}))*")
        self._in_force: dict[str, str] = {}
        self._pieces: deque[Piece] = deque()

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def last(self) -> Piece:
        """The last piece. IndexError if there is none."""
        return self._pieces[-1]

    @property
    def has_whole_turn(self) -> bool:
        """Whether the end of a turn is among the pieces."""
        return any(piece.ends_turn for piece in self._pieces)

    def add(self, text: str, now: float) -> None:
        """Add a complete piece of the current turn."""
        before = self._pass(text, self._in_force)
        self._pieces.append(Piece(text, now, before, speech_chars(text)))

    def delivery(self, parts: Sequence[str], before: str) -> list[str]:
        """Return for each of ``parts``, which follow each other, the tags in force that it does not
        set itself. ``before``: those of the first.
        """
        in_force = self._set_by(before)
        return [self._pass(part, in_force) for part in parts]

    def _pass(self, text: str, in_force: dict[str, str]) -> str:
        """Return the tags ``in_force`` that ``text`` does not set itself; add its own to them."""
        spoken = self._lead.sub("", text, count=1)
        own = self._set_by(text.removesuffix(spoken))
        before = "".join(tag for aspect, tag in in_force.items() if aspect not in own)
        in_force |= self._set_by(text)
        return before

    def _set_by(self, text: str) -> dict[str, str]:
        """The delivery tags in ``text``, by aspect."""
        return {self._aspects[tag]: tag for tag in self._known.findall(text)}

    def end_turn(self) -> None:
        """End the current turn."""
        if self._pieces:
            self._pieces[-1].ends_turn = True
        self._in_force.clear()

    def put_back(self, pieces: Sequence[Piece]) -> None:
        """Put pieces that were taken and not spoken yet back at the front."""
        self._pieces.extendleft(reversed(pieces))

    def take(self) -> list[Piece]:
        """Remove and return the pieces of the next generation: the waiting pieces of a complete
        turn, in parts of about equal length if they are too long for one generation; otherwise one
        piece.
        """
        ends = (number for number, piece in enumerate(self._pieces, 1) if piece.ends_turn)
        count = next(ends, 1) if self._most else 1
        lengths = [piece.length for piece in islice(self._pieces, count)]
        even = sum(lengths) / -(-sum(lengths) // self._most) if count > 1 else 0.0
        taken, length = [self._pieces.popleft()], lengths[0]
        for more in lengths[1:]:
            if length >= even or length + more > self._most:
                break
            taken.append(self._pieces.popleft())
            length += more
        return taken

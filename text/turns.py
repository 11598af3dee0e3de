"""Turns: the text that is spoken in one generation, and the delivery tags that apply to it.

A turn is a context's text up to a flush or its end. Text that is still arriving is spoken sentence
by sentence. Once a turn is complete, its waiting text is one generation, if it is short enough.
Delivery tags (emotion, speed) apply to all text after them in their turn. A piece that is spoken
apart from its tags gets the same tags in front.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from text.segmenter import ends_sentence

#: Characters per second of the slowest speech that control tags produce.
SLOW_CHARS_PER_S = 8.0
#: Spoken length in letters of a CJK character (a syllable) and of a digit.
_WIDE, _DIGIT = 3, 4
#: Longest spoken lengths in letters: of a digit ("seventy"), of a sign ("slash") or a capital,
#: which may be spelt ("W"), and of a space, since short words take longer than their letters.
_MAX_DIGIT, _MAX_SIGN, _MAX_SPACE = 8, 4, 3
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


def max_speech_chars(text: str) -> int:
    """Return an upper limit of the spoken length of ``text``, in letters, also for text that is
    read slowly for its length: lists, codes, initials, addresses.
    """
    return sum(count * _max_length(char) for char, count in Counter(text).items())


def _max_length(char: str) -> int:
    if char.isspace():
        return _MAX_SPACE
    if char.isnumeric():
        return _MAX_DIGIT
    if not char.isalnum() or char.isupper():
        return _MAX_SIGN
    return _WIDE if char >= "\u1200" else 1


def chars_within(frames: int, frame_s: float) -> int:
    """Number of letters certainly spoken within ``frames`` frames of ``frame_s`` seconds."""
    return int(frames * frame_s * SLOW_CHARS_PER_S)


@dataclass(frozen=True, slots=True)
class SentencePauses:
    """Seconds of silence between two utterances: after a sentence, and at the end of a paragraph.
    For talkers whose utterances end with less silence than people leave between sentences.
    """

    sentence_s: float = 0.0
    paragraph_s: float = 0.0

    def after(self, spoken: str) -> float:
        """Seconds before the next word, after the text ``spoken``."""
        words = spoken.rstrip()
        if not words:
            return 0.0
        if spoken.count("\n", len(words)) > 1:
            return self.paragraph_s
        return self.sentence_s if ends_sentence(words) else 0.0


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is done to the samples of an utterance. ``speed`` and ``volume`` are factors."""

    speed: float = 1.0
    volume: float = 1.0


@dataclass(slots=True)
class PendingPause:
    """A pause, and the flushes that wait for it. ``text_end``: see streaming.pause."""

    seconds: float
    text_end: int
    queued_at: float
    flush_ids: list[str] = field(default_factory=list)
    #: Number of characters of the spoken text that it is.
    chars: int = 1

    def extend(self, seconds: float, text_end: int) -> bool:
        """Add a pause that follows directly. Returns False if a flush waits between them."""
        if self.flush_ids:
            return False
        self.seconds += seconds
        self.chars += text_end - self.text_end
        self.text_end = text_end
        return True


@dataclass(slots=True)
class Piece:
    """Text that waits for the talker, and the flushes that wait for it."""

    text: str
    queued_at: float
    #: The tags in force that the text does not set itself.
    before: str
    #: As ``speech_chars`` counts.
    length: int
    #: The voice that speaks it; None: the context's own.
    voice: str | None = None
    #: Whether no later piece is spoken with it: its turn ends, or pauses follow.
    ends_part: bool = False
    #: Whether it is the first of its turn.
    begins_turn: bool = False
    shaping: Shaping = Shaping()
    flush_ids: list[str] = field(default_factory=list)
    pauses: list[PendingPause] = field(default_factory=list)


class PendingText:
    """The pieces of a context's text that the talker has not been asked for, in order."""

    def __init__(self, settings: TurnSettings) -> None:
        self._max_chars = settings.max_chars
        self._aspects = settings.delivery
        known = "|".join(re.escape(tag) for tag in sorted(settings.delivery)) or r"(?!)"
        self._known = re.compile(known)
        self._lead = re.compile(rf"(?:\s*(?:{known}|{_TAG}))*")
        self._in_force: dict[str, str] = {}
        #: Of the next piece.
        self.shaping = Shaping()
        #: The voice of the next pieces.
        self.voice: str | None = None
        self._pieces: deque[Piece] = deque()
        #: Whether the next piece is the first of its turn.
        self._begins_turn = True

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def last(self) -> Piece | PendingPause:
        """The last piece, or the last pause after it. IndexError if there is none."""
        piece = self._pieces[-1]
        return piece.pauses[-1] if piece.pauses else piece

    @property
    def has_whole_part(self) -> bool:
        """Whether the end of a turn or a pause is among the pieces."""
        return any(piece.ends_part for piece in self._pieces)

    def add(self, text: str, now: float) -> None:
        """Add a complete piece of the current turn. Delivery tags alone apply to the next one."""
        if text and not self._known.sub("", text).strip():
            self._in_force |= self._set_by(text)
            return
        before = self._pass(text, self._in_force)
        length, begins = speech_chars(text), self._begins_turn
        piece = Piece(
            text, now, before, length, self.voice, begins_turn=begins, shaping=self.shaping
        )
        self._pieces.append(piece)
        self._begins_turn = False

    def add_pause(self, pause: PendingPause) -> None:
        """Add a pause after the last piece; there must be one."""
        self._pieces[-1].ends_part = True
        self._pieces[-1].pauses.append(pause)

    def end_delivery(self, aspect: str) -> None:
        """Let the pieces from here on be spoken without the tag in force for an aspect."""
        if self._in_force.pop(aspect, None) is not None and self._pieces:
            self._pieces[-1].ends_part = True

    def shape(self, shaping: Shaping) -> None:
        """Let the samples of the pieces from here on be changed so."""
        if shaping != self.shaping and self._pieces:
            self._pieces[-1].ends_part = True
        self.shaping = shaping

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
            self._pieces[-1].ends_part = True
        self._in_force.clear()
        self.shaping = Shaping()
        self._begins_turn = True

    def put_back(self, pieces: Sequence[Piece]) -> None:
        """Put pieces that were taken and not spoken yet back at the front."""
        self._pieces.extendleft(reversed(pieces))

    def take(self) -> list[Piece]:
        """Remove and return the pieces of the next generation: the waiting pieces up to the end of
        their turn or to a pause, in parts of about equal length if they are too long for one
        generation; otherwise one piece.
        """
        ends = (number for number, piece in enumerate(self._pieces, 1) if piece.ends_part)
        count = next(ends, 1) if self._max_chars else 1
        lengths = [piece.length for piece in islice(self._pieces, count)]
        even = sum(lengths) / -(-sum(lengths) // self._max_chars) if count > 1 else 0.0
        taken, length = [self._pieces.popleft()], lengths[0]
        for more in lengths[1:]:
            if length >= even or length + more > self._max_chars:
                break
            taken.append(self._pieces.popleft())
            length += more
        return taken

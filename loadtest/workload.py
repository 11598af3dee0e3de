"""The workload: texts, and sessions drawn in full before they begin.

A session is a conversation with a voice agent. In each turn a text arrives piece by piece, as an
LLM writes it; the answer is spoken and played, and in some turns the caller barges in. Then the
caller speaks, which is a pause for the service, and the next turn begins.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

#: Sentences of a voice agent. The first of an answer is drawn from OPENINGS.
OPENINGS = (
    "Of course, I can help you with that.",
    "Thank you for waiting, I have found your order.",
    "Good morning, what can I do for you today?",
    "I am sorry to hear that the parcel was late.",
    "Yes, there is still a table for four this evening.",
    "Let me look that up for you.",
    "That is a very good question.",
    "I have changed the address as you asked.",
)
SENTENCES = (
    "The next train to the coast leaves at half past nine in the morning.",
    "You will get a message as soon as the driver is on the way.",
    "It takes two or three days until the money is back on your account.",
    "Please keep the paper that came with it, because the number is on it.",
    "The weather will be dry until noon, and then there may be some rain.",
    "If you like, I can send the whole list to your phone.",
    "The shop is open from eight to six, and on Saturdays until one.",
    "There are two rooms left, one with a view of the garden.",
    "Turn left after the bridge, and the station is on the other side.",
    "The first lesson is free, and you can stop whenever you want.",
    "Most people begin with the small one and take the large one later.",
    "Would you like me to book it for you now?",
    "Is there anything else that I can do for you?",
    "Nothing will be charged before you have said yes.",
    "The doctor has time for you on Thursday in the afternoon.",
    "Write down the last four letters, and read them to me slowly.",
)

#: About four characters, a leading space included, like an LLM's tokens in English.
_TOKEN = re.compile(r"\s*\w{1,5}|\s*[^\w\s]|\s+")
_SENTENCE_END = re.compile(r"[.!?]+[\"')]*(?=\s|$)")
#: Estimated speed of speech, for the time of a barge-in and the duration of a turn.
_CHARACTERS_PER_S = 14.0
#: Estimated time from a sentence to its first sound.
_FIRST_SOUND_S = 0.3


class Workload(Struct, frozen=True):
    """Parameters of sessions.

    With ``texts`` each turn speaks one of them; without, answers consist of an agent's sentences,
    ``sentences`` of them (minimum and maximum). ``tokens_per_s`` 0: the whole text arrives at once.
    ``jitter``: the standard deviation of the waits between tokens over their mean. ``barge_in``:
    the share of turns that are cut off, at a moment drawn uniformly from the answer's estimated
    length. ``think_s``: the mean pause between turns.
    """

    turns: tuple[int, int] = (2, 4)
    sentences: tuple[int, int] = (2, 4)
    texts: tuple[str, ...] = ()
    tokens_per_s: float = 30.0
    jitter: float = 0.5
    barge_in: float = 0.25
    think_s: float = 2.0


class Piece(NamedTuple):
    """``text`` is due ``at_s`` after the turn's start."""

    at_s: float
    text: str


class Turn(NamedTuple):
    """One answer. ``sentence_s``: when its first sentence is complete, after the turn's start.

    ``barge_in_s``: when the caller barges in, after the first sound; None: never. ``think_s``: when
    the next turn begins, after the last sound (or the barge-in).
    """

    pieces: tuple[Piece, ...]
    sentence_s: float
    barge_in_s: float | None
    think_s: float

    @property
    def characters(self) -> int:
        """The text's length."""
        return sum(len(piece.text) for piece in self.pieces)

    @property
    def estimated_s(self) -> float:
        """Estimated time from the turn's start to the next one's, before it is spoken."""
        begins_s = self.sentence_s + _FIRST_SOUND_S
        ends_s = max(self.pieces[-1].at_s, begins_s + self.characters / _CHARACTERS_PER_S)
        if self.barge_in_s is not None:
            ends_s = min(ends_s, begins_s + self.barge_in_s)
        return ends_s + self.think_s


def tokens(text: str) -> list[str]:
    """Split a text into pieces like an LLM's tokens, without losing a character."""
    return _TOKEN.findall(text)


def session(workload: Workload, seed: int, index: int) -> tuple[Turn, ...]:
    """Draw the turns of session ``index``: the same for the same seed, in any worker."""
    draw = random.Random(f"session:{seed}:{index}")
    return tuple(_turn(workload, draw) for _ in range(draw.randint(*workload.turns)))


def from_beginning(turns: Sequence[Turn], begin_s: float) -> tuple[tuple[Turn, ...], float]:
    """Return the turns of a session that are due in the run, and when the first is due. ``begin_s``
    may be before 0. No turns are left if the session would be in its last turn, or over.
    """
    for index, turn in enumerate(turns):
        if begin_s >= 0:
            return tuple(turns[index:]), begin_s
        begin_s += turn.estimated_s
    return (), begin_s


def _turn(workload: Workload, draw: random.Random) -> Turn:
    text = _text(workload, draw)
    pieces = _pieces(workload, text, draw)
    barge_in_s = None
    if draw.random() < workload.barge_in:
        barge_in_s = draw.uniform(0, len(text) / _CHARACTERS_PER_S)
    think_s = draw.expovariate(1 / workload.think_s) if workload.think_s else 0.0
    return Turn(pieces, _sentence_due(text, pieces), barge_in_s, think_s)


def _text(workload: Workload, draw: random.Random) -> str:
    if workload.texts:
        return draw.choice(workload.texts)
    count = draw.randint(*workload.sentences)
    return " ".join((draw.choice(OPENINGS), *draw.sample(SENTENCES, count - 1)))


def _pieces(workload: Workload, text: str, draw: random.Random) -> tuple[Piece, ...]:
    if not workload.tokens_per_s:
        return (Piece(0.0, text),)
    # A log-normal wait of mean 1 / tokens_per_s: mostly even, with an occasional long one.
    sigma = math.sqrt(math.log1p(workload.jitter**2))
    mu = -math.log(workload.tokens_per_s) - sigma**2 / 2
    at = 0.0
    pieces = []
    for token in tokens(text):
        pieces.append(Piece(at, token))
        at += draw.lognormvariate(mu, sigma)
    return tuple(pieces)


def _sentence_due(text: str, pieces: Sequence[Piece]) -> float:
    """Return when the piece is due that ends the first sentence, or else the text."""
    found = _SENTENCE_END.search(text)
    end = found.end() if found else len(text)
    said = 0
    for piece in pieces:
        said += len(piece.text)
        if said >= end:
            return piece.at_s
    return pieces[-1].at_s


def read_texts(path: Path) -> tuple[str, ...]:
    """Read a file of texts, one per line; empty lines are ignored.

    Raises:
        ValueError: It contains none.
        OSError: It cannot be read.
    """
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    texts = tuple(line for line in lines if line)
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts

"""The oracle for conversations: the expected speech of each utterance after earlier ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.reference_talker import Chance, ReferenceTalker, Spoken
from streaming.ports import Sampling
from streaming.spec import Codes
from talker.checkpoint import open_checkpoint
from tests.talker.harness import GREEDY, MAX_ROWS, Voices, text

#: Continued utterances are short, because the plain loop takes milliseconds per row.
SHORT_ROWS = 40
#: Closer decisions are not compared: rounding may change them.
_MARGIN = 2e-5


@dataclass
class Talk:
    """One conversation.

    ``ids`` is its prompt so far and ``said`` the rows in it. Only the prompt of a single utterance
    is shared with the engine.
    """

    oracle: TalkOracle
    voice: str = "default"
    sampling: Sampling = GREEDY
    ids: list[int] = field(default_factory=list)
    said: list[tuple[Codes, int]] = field(default_factory=list)
    last: tuple[list[int], Codes] | None = None

    def say(self, words: str, rows: int = MAX_ROWS) -> Spoken:
        """The expected speech; leaves the conversation unchanged."""
        return self._say(words, rows)[0]

    def go_on(self, words: str, rows: int = MAX_ROWS) -> Spoken:
        """The expected speech, which becomes part of the conversation."""
        spoken, ids, turn = self._say(words, rows)
        assert spoken.finish == "stop"
        self.ids, self.last = ids, (turn, spoken.rows[:-1])
        self._add(spoken.rows[:-1])
        return spoken

    def start_over(self) -> None:
        """Drop all but the last utterance."""
        assert self.last is not None
        turn, rows = self.last
        self.ids, self.said = [*self._head(), *turn], []
        self._add(rows)

    def next_text(self, start: int, finish: str = "stop") -> str:
        """The first text from number ``start`` on whose speech ends, or is cut at ``SHORT_ROWS``,
        and has clear margins.
        """
        for number in itertools.count(start):
            spoken = self.oracle.speak(self, text(number), SHORT_ROWS)[0]
            if spoken.finish == finish and spoken.margin > _MARGIN:
                return text(number)
        raise AssertionError

    def within(self, positions: int, start: int) -> tuple[str, Talk]:
        """Such a text, and the talk that it continues in a prompt of at most ``positions``: this
        one, else this one from its last utterance on, else a new one.
        """
        for number in itertools.count(start):
            words = text(number)
            talk = self._fitting(words, positions)
            spoken = self.oracle.speak(talk, words, SHORT_ROWS)[0]
            if spoken.finish == "stop" and spoken.margin > _MARGIN:
                return words, talk
        raise AssertionError

    def _fitting(self, words: str, positions: int) -> Talk:
        turn = len(self.oracle.turn(words))
        if not self.ids or len(self.ids) + turn <= positions:
            return self
        over = replace(self)
        over.start_over()
        return over if len(over.ids) + turn <= positions else Talk(self.oracle, self.voice)

    def _say(self, words: str, rows: int) -> tuple[Spoken, list[int], list[int]]:
        spoken, ids, turn = self.oracle.speak(self, words, rows)
        assert spoken.margin > _MARGIN, "too close to call: choose another text"
        return spoken, ids, turn

    def _add(self, rows: Codes) -> None:
        self.said.append((rows, len(self.ids)))
        self.ids += [0] * len(rows)

    def _head(self) -> list[int]:
        """The ids before the first turn, found from the common start of two prompts."""
        one, two = (self.oracle.prompts.build(t, Voices().get(self.voice)).ids for t in "ab")
        same = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
        return list(one[: same - 1])


class TalkOracle:
    """The plain loop, and the prompts of single utterances."""

    def __init__(self, folder: Path, max_positions: int = 1024) -> None:
        torch.set_num_threads(1)  # one row is too little work for several threads
        checkpoint = open_checkpoint(str(folder))
        self.prompts = checkpoint.prompt_builder(max_positions)
        self._talker = ReferenceTalker(folder)

    def turn(self, words: str) -> list[int]:
        """The ids of a turn: all of its prompt but ``<|tts|>``."""
        return list(self.prompts.build(words).ids[1:])

    def speak(self, talk: Talk, words: str, rows: int) -> tuple[Spoken, list[int], list[int]]:
        """The utterance, the whole prompt's ids and those of its last turn."""
        prompt = self.prompts.build(words, Voices().get(talk.voice))
        turn = self.turn(words)
        ids = [*talk.ids, *turn] if talk.ids else list(prompt.ids)
        draw, chance = talk.sampling, None
        if draw.temperature != 0:
            assert draw.seed is not None
            chance = Chance(draw.seed, draw.temperature or 1, draw.top_k or 50, draw.top_p or 0.95)
        spoken = self._talker.speak(tuple(ids), rows, chance, [*prompt.clips, *talk.said])
        return spoken, ids, turn

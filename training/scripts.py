"""Training sequences of the talker: ids, rows, targets and attention targets.

They are laid out like the real model's prompts:
``<|tts|> [<|ref_text|> text] [<|ref_audio|> rows]`` and then turns of
``<|text|> text <|audio|> rows``. Half of the speech follows a reference of the same speaker;
without one the default voice speaks. Sequences of several turns teach the talker to keep a voice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from text.english.normaliser import normalise
from text.english.sounds import spoken
from training.pitch import Floats, Ints
from training.quantise import ACTIVE
from training.talker import BOC, BOOKS, EOC, VOCABULARY

NOTHING = -100  # a target that does not count
#: Share of words that the talker learns by their letters although the lexicon has their sounds,
#: since it will meet words that the lexicon lacks.
_SPELLED = 0.06
_FREE_START = 8  # first rows of a reference, in which its voice cannot be known yet


@dataclass(frozen=True, slots=True)
class Utterance:
    """``codes`` ``[T, 8]``; ``place`` ``[T]``: the character spoken in each frame."""

    text: str
    codes: Ints
    place: Floats

    def at_once(self) -> Utterance:
        """Return it without the silence before the first word, except one frame, in which it may
        begin.
        """
        begun = np.flatnonzero(self.place > self.place[0])
        late = max(0, int(begun[0]) - 1) if len(begun) else 0
        return Utterance(self.text, self.codes[late:], self.place[late:])


def sounded(utterance: Utterance, random: np.random.Generator) -> Utterance:
    """Return it with its words as sounds, as the front end gives them to the talker, except for a
    few in letters.
    """
    reading = normalise(utterance.text)
    chosen = np.flatnonzero(random.random(len(reading.spans)) < _SPELLED)
    said = spoken(utterance.text, reading, frozenset(chosen.tolist()))
    letters, signs = [0], [0]
    for before, after in zip(reading.spans, said.spans, strict=True):
        letters += [before.start, before.end]
        signs += [after.start, after.end]
    place = np.interp(
        utterance.place, [*letters, len(reading.text)], [*signs, len(said.text)]
    ).astype(np.float32)
    return Utterance(said.text, utterance.codes, place)


@dataclass(frozen=True, slots=True)
class Script:
    """``ids`` ``[L]``, ``rows`` ``[L, 8]``, ``is_row`` ``[L]``, ``targets`` ``[L, ACTIVE]`` (the
    next row), ``look`` ``[L]``: the position to attend to, or -1.
    """

    ids: Ints
    rows: Ints
    is_row: npt.NDArray[np.bool_]
    targets: Ints
    look: Floats

    def __len__(self) -> int:
        return len(self.ids)


def delayed(codes: Ints) -> Ints:
    """Delay ``[T, 8]`` to ``[T + 7, 8]``: codebook k by k rows."""
    count = len(codes)
    rows = np.full((count + BOOKS - 1, BOOKS), EOC, np.int64)
    for k in range(BOOKS):
        rows[:k, k] = BOC
        rows[k : k + count, k] = codes[:, k]
    return rows


def _targets(rows: Ints, count: int) -> Ints:
    """Return the targets: codes, and one EOC of codebook 0. The sampler produces the rest."""
    wanted = rows[:, :ACTIVE].copy()
    for k in range(ACTIVE):
        wanted[:k, k] = NOTHING
        wanted[count + k + (k == 0) :, k] = NOTHING
    return wanted


class _Writer:
    def __init__(self, random: np.random.Generator, corruption: float) -> None:
        self._random, self._corruption = random, corruption
        self.ids: list[int] = []
        self.rows: list[Ints] = []
        self.is_row: list[bool] = []
        self.targets: list[Ints] = []
        self.look: list[float] = []

    def mark(self, name: str) -> None:
        self._put(VOCABULARY[name])

    def text(self, text: str) -> int:
        """Write ``text``. Returns its start."""
        start = len(self.ids)
        for letter in text:
            self._put(VOCABULARY[letter])
        return start

    def speech(self, utterance: Utterance, start: int | None, free: int) -> None:
        """Write rows after the mark that precedes them, with targets from row ``free`` on (none if
        -1).
        """
        count = len(utterance.codes)
        rows = delayed(utterance.codes)
        wanted = _targets(rows, count)
        if free:
            wanted[: free if free > 0 else None] = NOTHING
        self.targets[-1] = wanted[0]
        self.look[-1] = -1.0 if start is None else utterance.place[0] + start
        heard = self._corrupted(rows, count)
        nothing = np.full(ACTIVE, NOTHING)
        for t in range(len(rows)):
            self.ids.append(0)
            self.rows.append(heard[t])
            self.is_row.append(True)
            self.targets.append(wanted[t + 1] if t + 1 < len(rows) else nothing)
            spoken = start is not None and t + 1 < count
            self.look.append(utterance.place[t + 1] + start if spoken else -1.0)

    def _corrupted(self, rows: Ints, count: int) -> Ints:
        rows = rows.copy()
        for k in range(1, BOOKS):  # the sampler leaves one surplus code in each codebook
            if count + k < len(rows):
                rows[count + k, k] = self._random.integers(1024)
        wrong = (self._random.random(rows.shape) < self._random.random() * self._corruption) & (
            rows < BOC
        )
        rows[wrong] = self._random.integers(1024, size=int(wrong.sum()))
        return rows

    def _put(self, number: int) -> None:
        self.ids.append(number)
        self.rows.append(np.zeros(BOOKS, np.int64))
        self.is_row.append(False)
        self.targets.append(np.full(ACTIVE, NOTHING))
        self.look.append(-1.0)

    def done(self) -> Script:
        return Script(
            np.array(self.ids), np.stack(self.rows), np.array(self.is_row),
            np.stack(self.targets), np.array(self.look, np.float32),
        )  # fmt: skip


def write(
    turns: Sequence[Utterance], *, reference: Utterance | None, transcript: bool,
    random: np.random.Generator, corruption: float = 0.08,
) -> Script:  # fmt: skip
    """Write one sequence: a reference if there is one, then ``turns``. The first turn starts
    without silence, since a listener waits for it; the others start with the pause between
    sentences.
    """
    writer = _Writer(random, corruption)
    writer.mark("<|tts|>")
    if reference is not None:
        start = None
        if transcript:
            writer.mark("<|ref_text|>")
            start = writer.text(reference.text)
        writer.mark("<|ref_audio|>")
        writer.speech(reference, start, _FREE_START if transcript else -1)
    for number, turn in enumerate(turns):
        writer.mark("<|text|>")
        start = writer.text(turn.text)
        writer.mark("<|audio|>")
        writer.speech(turn if number else turn.at_once(), start, 0)
    return writer.done()


def scripts_of(
    group: Sequence[Utterance], default: bool, random: np.random.Generator, longest: int
) -> Iterator[Script]:
    """Yield the scripts of one speaker's utterances; those over ``longest`` are left out."""
    order = [group[i] for i in random.permutation(len(group))]
    while order:
        plain = default and random.random() < 0.5
        take = int(random.choice((1, 2, 2, 3) if plain else (2, 2, 3)))
        chosen, order = order[:take], order[take:]
        if plain:
            script = write(chosen, reference=None, transcript=False, random=random)
        elif len(chosen) > 1:
            shortest = min(range(len(chosen)), key=lambda i: len(chosen[i].codes))
            reference = chosen.pop(shortest) if random.random() < 0.5 else chosen.pop()
            script = write(
                chosen, reference=reference, transcript=random.random() < 0.75, random=random
            )
        else:
            continue
        if len(script) <= longest:
            yield script

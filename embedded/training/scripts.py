"""Training sequences: what the talker will be given, as ids, rows, targets and where to look.

Laid out as the real model's prompts are: ``<|tts|> [<|ref_text|> text] [<|ref_audio|> rows]``
and then turns of ``<|text|> text <|audio|> rows``. Half of the speech follows a reference of the
same speaker; without one it is the default voice that speaks. Several turns in a row teach that
a voice goes on as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedded.pronunciation import spoken
from embedded.text import normalise
from embedded.training.pitch import Floats, Ints
from embedded.training.quantise import ACTIVE
from embedded.training.talker import BOC, BOOKS, EOC, VOCABULARY

NOTHING = -100  # a target that does not count
#: The share of words that the talker learns by their letters, though it knows their sounds: it
#: will meet words that the lexicon lacks.
_SPELLED = 0.06
_FREE_START = 8  # rows of a reference before which nobody can know its voice


@dataclass(frozen=True, slots=True)
class Utterance:
    """``codes`` ``[T, 8]``; ``place`` ``[T]``: the character that is being said."""

    text: str
    codes: Ints
    place: Floats

    def at_once(self) -> Utterance:
        """Without the silence before the first word, but for the frame in which that may begin."""
        begun = np.flatnonzero(self.place > self.place[0])
        late = max(0, int(begun[0]) - 1) if len(begun) else 0
        return Utterance(self.text, self.codes[late:], self.place[late:])


def sounded(utterance: Utterance, random: np.random.Generator) -> Utterance:
    """The same with its words by their sounds, as the front end gives them to the talker, but for
    a few in letters.
    """
    reading = normalise(utterance.text)
    chosen = np.flatnonzero(random.random(len(reading.spans)) < _SPELLED)
    said = spoken(reading, frozenset(chosen.tolist()))
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
    """``[T, 8]`` -> ``[T + 7, 8]``: codebook k is k rows late."""
    count = len(codes)
    rows = np.full((count + BOOKS - 1, BOOKS), EOC, np.int64)
    for k in range(BOOKS):
        rows[:k, k] = BOC
        rows[k : k + count, k] = codes[:, k]
    return rows


def _targets(rows: Ints, count: int) -> Ints:
    """What is to be said: codes, and one EOC by codebook 0; the sampler does the rest."""
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
        """Write it; returns where it begins."""
        start = len(self.ids)
        for letter in text:
            self._put(VOCABULARY[letter])
        return start

    def speech(self, utterance: Utterance, start: int | None, free: int) -> None:
        """Rows, after the mark that precedes them; targets from row ``free`` on (none at -1)."""
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
        for k in range(1, BOOKS):  # the sampler leaves one code too many in each codebook
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
    """One sequence: a reference if there is one, then ``turns``. The first begins at once, since
    somebody waits for it; before the others is the pause between sentences.
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
    """Scripts of all the utterances of one speaker; those over ``longest`` are left out."""
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

"""Scores of attention heads that need no labels: how well they follow the text, and when.

*Margin*: the best monotonic path through a head's attention, from the first id to the last, less
the best path through the same attention to the text reversed. It is about 1 for a head that reads
along, and 0 for any that does not follow the text, however sharp it is. A head that looks ahead by
a fixed number of ids has a good margin too, so a *clock* is needed that uses no attention: the
frames whose codes become less likely if a word is replaced are those that speak the word.

Letters: as in ``reading``; W words, F frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.alignment.reading import PlainTalker, Utterance, Weights, likelihoods
from streaming.delay import RowLayout
from streaming.word_timing import WordPath

Floats = npt.NDArray[np.float64]
#: Share of a row's weight that is spread over the whole text, so that a row that looks away costs
#: little.
_AWAY = 0.1
#: A path enters at most this many ids per row, and more if the text has more ids than that.
_STEP = 4
#: Evidence of a frame for a word, in nats: more of it decides nothing.
_LEAST_EVIDENCE, _MOST_EVIDENCE = -1.0, 6.0
#: The clock's frames are whole, so that it is late by half a frame.
_HALF = 0.5


def gains(look: Weights) -> Floats:
    """The gain of each head's best path in ``[H, n, L]``: the mean logarithm of the weight on it,
    relative to equal weights, divided by the logarithm of the number of ids.
    """
    heads, rows, ids = look.shape
    if ids < 2:
        return np.zeros(heads)
    score = np.log((1 - _AWAY) * look * ids + _AWAY).astype(np.float64)
    step = max(_STEP, -(-3 * ids // rows))
    total = np.full((heads, ids), -np.inf)
    total[:, : step + 1] = score[:, 0, : step + 1]
    for row in range(1, rows):
        best = total.copy()
        for by in range(1, min(step, ids - 1) + 1):
            np.maximum(best[:, by:], total[:, : ids - by], out=best[:, by:])
        total = best + score[:, row]
    found: Floats = total[:, -(step + 1) :].max(1) / rows / np.log(ids)
    return found


def margins(look: Weights) -> Floats:
    """The margin of each head in ``[H, n, L]``."""
    return gains(look) - gains(look[:, :, ::-1])


def shifted(look: Weights, shift: int) -> Weights:
    """Move weights ``[n, L]`` by ``shift`` ids towards the beginning, as the tap does; what would
    leave the text stays at its edge.
    """
    at = np.clip(np.arange(look.shape[-1]) - shift, 0, look.shape[-1] - 1)
    moved = np.zeros_like(look)
    for origin, place in enumerate(at):
        moved[..., place] += look[..., origin]
    return moved


def begins(said: Utterance, look: Weights, near: int, frame_ms: float) -> Floats:
    """Where words begin by weights ``[n, L]``, in ms: ``[W]``. Pauses of the audio do not count."""
    ids = np.arange(look.shape[1])
    close = look * (np.abs(ids - look.argmax(1)[:, None]) <= near)
    places = (close * ids).sum(1) / close.sum(1)
    spoken = np.interp(places, np.arange(len(said.prompt.text_starts)), said.prompt.text_starts)
    words = said.words
    path = WordPath([float(begin) for begin, _ in words])
    for place in spoken[: said.frames].tolist():
        path.push(place)
    found = path.settle(said.frames, at_end=True)
    found += [float(said.frames)] * (len(words) - len(found))
    return np.array(found[: len(words)]) * frame_ms


def clock(talker: PlainTalker, said: Utterance, layout: RowLayout, frame_ms: float) -> Floats:
    """Where words begin by the likelihood of the codes, in ms: ``[W]``."""
    return (_divided(_evidence(talker, said, layout)) - _HALF) * frame_ms


def _evidence(talker: PlainTalker, said: Utterance, layout: RowLayout) -> Floats:
    """How much less likely each frame's codes are with other ids of the text in each word's place:
    ``[W, F]``.
    """
    random = np.random.default_rng(0)
    ids, at, words = said.prompt.ids, said.prompt.text_at, said.ids_of_words
    base = likelihoods(talker, said, ids, layout)
    found = np.zeros((len(words), said.frames))
    for number, word in enumerate(words):
        others = [ids[at + i] for w in words if w != word for i in w]
        if not word or not others:
            continue
        changed = list(ids)
        for i in word:
            different = [other for other in others if other != ids[at + i]] or others
            changed[at + i] = int(random.choice(different))
        found[number] = base - likelihoods(talker, said, tuple(changed), layout)
    return found


def _divided(evidence: Floats) -> Floats:
    """The frame in which each word begins: of all monotonic divisions of the frames among the
    words, the one with the most evidence.
    """
    words, frames = evidence.shape
    weight = np.clip(evidence, _LEAST_EVIDENCE, _MOST_EVIDENCE)
    total = np.full((words, frames), -np.inf)
    total[0] = np.cumsum(weight[0])
    entered = np.zeros((words, frames), int)
    for word in range(1, words):
        best, begin = -np.inf, 0
        for frame in range(1, frames):
            enter = total[word - 1, frame - 1]
            if enter >= best:
                best, begin = enter, frame
            best += weight[word, frame]
            total[word, frame] = best
            entered[word, frame] = begin
    found, at = np.zeros(words), frames - 1
    for word in range(words - 1, 0, -1):
        found[word] = entered[word, at]
        at = int(found[word]) - 1
    return found


def apart(
    said: Sequence[Utterance],
    looks: Sequence[Weights],
    clocks: Sequence[Floats],
    near: int,
    frame_ms: float,
) -> Floats:
    """How far words begin from the clock, in ms, without the first of each utterance."""
    return np.concatenate(
        [
            np.abs(begins(one, look, near, frame_ms) - wanted)[1:]
            for one, look, wanted in zip(said, looks, clocks, strict=True)
        ]
    )

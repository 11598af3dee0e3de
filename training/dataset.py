"""The talker's training data: sentences as codes, stored in numbered parts.

The teacher's front gives pitch and durations, a small network predicts the spectra, and the
quantiser turns them into codes. That takes a twentieth of the work of speaking the sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from training.guess import SpectrumGuess
from training.kokoro import Teacher
from training.phonemes import read
from training.pitch import F0_STEP, Floats, Ints, codes_of
from training.quantise import ACTIVE, Quantiser
from training.speech import GROUP, british, part_file, places, voice_of

#: Groups per part.
GROUPS = 50
PART = GROUP * GROUPS
#: Share of texts that are passages, and a passage's maximum number of characters.
_PASSAGES, LONGEST = 0.2, 300
#: Level below which a frame is silent (silence has -5.8), and the silent frames kept at the end.
_QUIET, _TAIL = -4.9, 4


@dataclass(frozen=True, slots=True)
class Item:
    """One utterance: ``codes`` ``[T, ACTIVE]``; ``place`` ``[T]``: the character of ``text`` spoken
    in each frame. Utterances of the same ``group`` have the same voice.
    """

    text: str
    voice: str
    group: int
    codes: Ints
    place: Floats


def passages(sentences: Sequence[str], seed: int) -> list[str]:
    """Return single sentences, and for about one text in five several joined ones."""
    random, made, rest = Random(seed), list[str](), iter(sentences)
    while True:
        long = random.random() < _PASSAGES
        text = _joined(rest, random.randint(90, LONGEST) if long else 0)
        if not text:
            return made[: len(made) // GROUP * GROUP]
        made.append(text)


def _joined(rest: Iterator[str], length: int) -> str:
    """Join the next sentences up to about ``length`` characters, at most ``LONGEST``."""
    text = next(rest, "")
    while text and len(text) < length:
        more = next(rest, "")
        if not more or len(text) + 1 + len(more) > LONGEST:
            break
        text += " " + more
    return text


def make(text: str, voice: str, teacher: Teacher, guess: SpectrumGuess, table: Quantiser) -> Item:
    """Make the codes of a text without a waveform. ValueError if it is too long for the teacher."""
    reading = read(text, british(voice))
    features = teacher.features(reading.phonemes, voice)
    begin, frames = features.span()
    pitch = codes_of(features.f0[begin // F0_STEP :], frames)
    codes = table.encode(guess.spectra(features, frames), torch.from_numpy(pitch))
    place = places(reading, features, len(text), frames)
    kept = ending(codes, table)
    return Item(text, voice, 0, codes[:kept, :ACTIVE].numpy(), place[:kept])


def ending(codes: Tensor, table: Quantiser) -> int:
    """Return the number of frames of ``codes`` ``[T, 8]`` to keep. Kokoro ends a sentence with a
    third of a second of silence, which a listener should not have to wait for.
    """
    loud = (table.levels(codes) > _QUIET).any(1).nonzero()
    return min(len(codes), int(loud[-1]) + 1 + _TAIL) if len(loud) else len(codes)


def write_part(
    number: int, *, folder: Path, texts: Sequence[str], seed: int,
    tools: Callable[[], tuple[Teacher, SpectrumGuess, Quantiser]],
) -> None:  # fmt: skip
    """Make and write a part."""
    file = part_file(folder, number)
    teacher, guess, table = tools()
    items, groups = list[Item](), list[int]()
    for i in range(number * PART, min((number + 1) * PART, len(texts))):
        try:
            items.append(make(texts[i], voice_of(i // GROUP, seed), teacher, guess, table))
        except ValueError:  # too many phonemes for the teacher
            continue
        groups.append(i // GROUP)
    partial_file = file.with_suffix(".partial.npz")
    np.savez(
        partial_file,
        texts=np.array([item.text for item in items]),
        voices=np.array([item.voice for item in items]),
        groups=np.array(groups),
        lengths=np.array([len(item.codes) for item in items]),
        codes=np.concatenate([item.codes for item in items]).astype(np.int16),
        place=np.concatenate([item.place for item in items]),
    )
    partial_file.rename(file)


def load(folder: Path) -> Iterator[Item]:
    """Yield all utterances made so far, in order."""
    for file in sorted(folder.glob("part-?????.npz")):
        with np.load(file) as part:
            ends, codes, place = np.cumsum(part["lengths"]), part["codes"], part["place"]
            facts = zip(part["texts"], part["voices"], part["groups"], strict=True)
            for (text, voice, group), end, length in zip(facts, ends, part["lengths"], strict=True):
                cut = slice(end - length, end)
                yield Item(
                    str(text), str(voice), int(group), codes[cut].astype(np.int64), place[cut]
                )

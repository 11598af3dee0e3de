"""The spoken sentences as the codec and the talker see them, made once and kept in a folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from embedded.training.corpus import sentences
from embedded.training.features import Ints, Speaker, analyse, pitch_codes
from embedded.training.flite import VOICES, Flite, Floats

#: Sentences with one speaker: the talker learns to follow a reference from such neighbours.
GROUP = 4
_FRAME_S = 0.04
_PART = 500


@dataclass(frozen=True, slots=True)
class Item:
    """One utterance. ``envelopes`` ``[T, WIDTH]``, ``pitch`` codes ``[T]``, ``place`` ``[T]``:
    the character of ``text`` that is being said in each frame.
    """

    text: str
    speaker: int
    envelopes: Floats
    pitch: Ints
    place: Floats


def speakers(count: int, seed: int) -> list[Speaker]:
    """The speaker of each group: the voices themselves, and others made of them."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        kind = random.random()
        if kind < 0.7:
            made.append(Speaker("slt" if kind < 0.3 else "rms" if kind < 0.5 else "awb"))
        else:
            voice = VOICES[random.integers(3)]
            pitch, tract = np.exp(random.uniform(-0.22, 0.28)), random.uniform(-0.06, 0.06)
            made.append(Speaker(voice, float(pitch), float(tract)))
    return made


def make(text: str, number: int, speaker: Speaker, flite: Flite) -> Item:
    """Say ``text`` and analyse it."""
    spoken = flite.speak(speaker.voice, text)
    envelopes, f0 = analyse(spoken, speaker)
    known: list[tuple[float, float]] = []  # (second, character)
    for first, start, end in spoken.words:
        length = len(text[first:].split(" ", 1)[0].rstrip(",.?!"))
        known += [(start, first), (max(end, start + 1e-3), first + length)]
    known = sorted(known) or [(0.0, 0.0)]
    known.append((max(len(f0) * _FRAME_S, known[-1][0] + 0.08) - 0.04, len(text)))
    seconds, characters = np.array(known, np.float32).T
    at = (np.arange(len(f0)) + 0.5) * _FRAME_S
    place = np.interp(at, seconds, characters).astype(np.float32)
    return Item(text, number, envelopes, pitch_codes(f0), place)


def _part(folder: Path, texts: list[str], voices: list[Speaker], number: int) -> None:
    file = folder / f"part-{number:04d}.npz"
    if file.exists():
        return
    flite = Flite()
    chosen = range(number * _PART, min((number + 1) * _PART, len(texts)))
    items = [make(texts[i], i // GROUP, voices[i // GROUP], flite) for i in chosen]
    partial_file = file.with_suffix(".partial.npz")
    np.savez(
        partial_file,
        texts=np.array([item.text for item in items]),
        speakers=np.array([item.speaker for item in items]),
        lengths=np.array([len(item.pitch) for item in items]),
        envelopes=np.concatenate([item.envelopes for item in items]).astype(np.float16),
        pitch=np.concatenate([item.pitch for item in items]).astype(np.int16),
        place=np.concatenate([item.place for item in items]),
    )
    partial_file.rename(file)


def build(folder: Path, count: int, seed: int, held_out: frozenset[str], workers: int) -> None:
    """Make what is missing of ``count`` utterances in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = sentences(count, seed, held_out)
    voices = speakers(count // GROUP + 1, seed)
    began, parts = time.monotonic(), range(-(-len(texts) // _PART))
    with ProcessPoolExecutor(workers) as pool:
        for done, _ in enumerate(pool.map(partial(_part, folder, texts, voices), parts), 1):
            left = (time.monotonic() - began) / done * (len(parts) - done)
            print(f"data {done}/{len(parts)}, {left:.0f} s left", file=sys.stderr, flush=True)


def load(folder: Path) -> Iterator[Item]:
    """What ``build`` made, in its order."""
    for file in sorted(folder.glob("part-????.npz")):
        with np.load(file) as part:
            ends = np.cumsum(part["lengths"])
            envelopes, pitch, place = part["envelopes"], part["pitch"], part["place"]
            for text, speaker, end, length in zip(
                part["texts"], part["speakers"], ends, part["lengths"], strict=True
            ):
                cut = slice(end - length, end)
                yield Item(
                    str(text),
                    int(speaker),
                    envelopes[cut].astype(np.float32),
                    pitch[cut].astype(np.int64),
                    place[cut],
                )

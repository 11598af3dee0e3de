"""The codec's training data: spoken sentences, stored in numbered parts.

Each part is a file, written atomically, and depends only on its number and the seed. So making data
can be interrupted at any time and extended later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from training.kokoro import Features, Teacher
from training.phonemes import Reading, read
from training.pitch import HOP, RATE, Floats, Ints

#: Consecutive sentences by one speaker, from which the talker learns to follow a reference.
GROUP = 4
#: Groups per part.
GROUPS = 10
PART = GROUP * GROUPS
#: Each voice's gain, stored in a checkpoint so that codes of a run that continues from it mean the
#: same.
KEPT_GAINS = "training/gains.json"
_FRAME_S = HOP / RATE
_LOUD = 32767
#: Mean RMS of voiced frames once levelled; peaks are then about .7.
_VOICED_RMS = 0.1


@dataclass(frozen=True, slots=True)
class Spoken:
    """One utterance: ``samples`` ``[T * HOP]`` at 24 kHz, ``pitch`` codes ``[T]``, ``place``
    ``[T]``: the character of ``text`` spoken in each frame.
    """

    text: str
    voice: str
    samples: Floats
    pitch: Ints
    place: Floats


#: Voices that ship, and the share of utterances that each speaks; the default is the first.
NAMED = {
    "af_heart": 0.28,
    "am_michael": 0.15,
    "bf_emma": 0.15,
    "am_fenrir": 0.12,
    "bm_george": 0.12,
}
#: Voices that speak the rest, so that codec and talker can follow other voices too.
OTHERS = (
    "af_bella", "af_aoede", "af_kore", "af_nova", "af_sarah", "am_eric", "am_liam", "am_onyx",
    "am_puck", "bf_alice", "bf_isabella", "bf_lily", "bm_daniel", "bm_fable", "bm_lewis",
)  # fmt: skip


def british(voice: str) -> bool:
    """Whether a voice speaks British English."""
    return voice.startswith("b")


def voice_of(group: int, seed: int) -> str:
    """Return the voice of a group of sentences."""
    kind, other = np.random.default_rng((seed, 7, group)).random(2)
    for voice, share in NAMED.items():
        kind -= share
        if kind < 0:
            return voice
    return OTHERS[int(other * len(OTHERS))]


def places(reading: Reading, features: Features, characters: int, frames: int) -> Floats:
    """Return the character spoken in each frame ``[frames]``, from the teacher's durations."""
    starts = features.starts_s()
    known = [(0.0, 0.0)]
    for first, end, symbol, last in reading.words:
        # the first duration is the silence before the first symbol
        known += [(starts[symbol + 1], first), (starts[last + 1], end)]
    known.append((max(frames * _FRAME_S, known[-1][0] + 0.04), characters))
    seconds, letters = np.array(known, np.float32).T
    at = (np.arange(frames) + 0.5) * _FRAME_S
    return np.asarray(np.interp(at, seconds, letters), np.float32)


def speak(text: str, voice: str, teacher: Teacher) -> Spoken:
    """Let the teacher speak a sentence."""
    reading = read(text, british(voice))
    features = teacher.features(reading.phonemes, voice)
    samples, pitch = teacher.speak(features)
    return Spoken(text, voice, samples, pitch, places(reading, features, len(text), len(pitch)))


def write_part(
    number: int, *, folder: Path, texts: Sequence[str], seed: int, teacher: Callable[[], Teacher]
) -> None:
    """Make and write a part."""
    file = part_file(folder, number)
    speaker, said = teacher(), list[Spoken]()
    for i in range(number * PART, min((number + 1) * PART, len(texts))):
        said.append(speak(texts[i], voice_of(i // GROUP, seed), speaker))
    partial_file = file.with_suffix(".partial.npz")
    levels = np.concatenate([one.samples for one in said]) * _LOUD
    np.savez(
        partial_file,
        texts=np.array([one.text for one in said]),
        voices=np.array([one.voice for one in said]),
        lengths=np.array([len(one.pitch) for one in said]),
        samples=np.clip(np.rint(levels), -_LOUD, _LOUD).astype(np.int16),
        pitch=np.concatenate([one.pitch for one in said]).astype(np.int16),
        place=np.concatenate([one.place for one in said]),
    )
    partial_file.rename(file)


def load(folder: Path, parts: int | None = None) -> Iterator[Spoken]:
    """Yield the utterances of the first ``parts``, or of all existing parts, in order."""
    for file in sorted(folder.glob("part-?????.npz"))[:parts]:
        with np.load(file) as part:
            ends, samples = np.cumsum(part["lengths"]), part["samples"]
            pitch, place = part["pitch"], part["place"]
            facts = zip(part["texts"], part["voices"], ends, part["lengths"], strict=True)
            for text, voice, end, length in facts:
                cut = slice(end - length, end)
                heard = samples[cut.start * HOP : end * HOP].astype(np.float32) / _LOUD
                yield Spoken(str(text), str(voice), heard, pitch[cut].astype(np.int64), place[cut])


def gains(said: Iterable[Spoken]) -> dict[str, float]:
    """Return the factor for each voice that makes all equally loud."""
    powers: dict[str, list[Floats]] = {}
    for one in said:
        blocks = np.square(one.samples.reshape(-1, HOP)).mean(1)
        powers.setdefault(one.voice, []).append(blocks[one.pitch > 0])
    return {
        voice: float(_VOICED_RMS / np.sqrt(np.concatenate(found).mean()))
        for voice, found in powers.items()
    }


def levelled(said: Iterable[Spoken], gain: Mapping[str, float]) -> Iterator[Spoken]:
    """Yield the same utterances at equal loudness, with peaks within one."""
    for one in said:
        samples = np.clip(one.samples * np.float32(gain[one.voice]), -1, 1)
        yield replace(one, samples=samples)


def part_file(folder: Path, number: int) -> Path:
    """Return the file of a part."""
    return folder / f"part-{number:05d}.npz"


def make_parts(folder: Path, count: int, make: Callable[[int], None], workers: int) -> None:
    """Make the missing ones of ``count`` parts in ``workers`` processes, and report the time
    needed.
    """
    folder.mkdir(exist_ok=True)
    missing = [number for number in range(count) if not part_file(folder, number).exists()]
    began = time.monotonic()
    with ProcessPoolExecutor(workers) if workers > 1 else nullcontext() as pool:
        for done, _ in enumerate(pool.map(make, missing) if pool else map(make, missing), 1):
            left = (time.monotonic() - began) / done * (len(missing) - done)
            had = count - len(missing) + done
            print(f"{folder.name} {had}/{count}, {left:.0f} s left", file=sys.stderr, flush=True)

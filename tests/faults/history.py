"""Checker for the audio that a client received of one context.

The samples come from a LabelTalker and a LiteralDecoder, so each identifies its context and its
position. A history is correct if it has the requested samples in order, once each and without
gaps: all of them if the context completed, a prefix of them if it was cancelled or broken off.
No audio may follow the end. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming.spec import CodecSpec
from tests.faults.labelled_audio import labelled

Pcm = npt.NDArray[np.int16]
#: Frames of 4 ms, so that a test can check a hundred thousand of them quickly.
SPEC = CodecSpec(24_000, 96, (1024,) * 8, 0, 0)
_BOOKS, _CODE_BITS = SPEC.num_codebooks, 10


@dataclass(frozen=True, slots=True)
class Heard:
    """An audio message; the sequence number and offset if the protocol has them."""

    pcm: Pcm
    sequence: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the context, as told by the protocol."""

    reason: Literal["complete", "cancelled", "broken"]


Event = Heard | Ended
Kind = Literal["lost", "doubled", "swapped", "foreign", "torn", "late", "short", "extra", "number"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault and the sample of the context at which it occurs."""

    kind: Kind
    at: int


@dataclass(frozen=True, slots=True)
class Script:
    """The speech requested of a context; ``frames`` has the length of each part."""

    voice: int
    frames: tuple[int, ...]

    @property
    def text(self) -> str:
        """The text for a LabelTalker, one sentence per part."""
        return "".join(
            f"Voice {self.voice} says part {part} of {frames} frames. "
            for part, frames in enumerate(self.frames)
        )

    def pcm(self) -> Pcm:
        """The samples that the client must receive."""
        codes = np.concatenate(
            [labelled(self.voice, part, frames) for part, frames in enumerate(self.frames)]
        )
        groups = np.arange(1, SPEC.hop_length // _BOOKS + 1, dtype=np.int16) << _CODE_BITS
        return (groups[None, :, None] | codes[:, None, :]).reshape(-1)


def faults(script: Script, history: Sequence[Event]) -> list[Fault]:
    """All faults of a history, in order."""
    ended: Ended | None = None
    found: list[Fault] = []
    heard: list[Pcm] = []
    at = 0
    for event in history:
        if isinstance(event, Ended):
            ended = ended or event
            continue
        if ended is not None and len(event.pcm):
            found.append(Fault("late", at))
        if event.sequence is not None and (event.sequence, event.offset) != (len(heard), at):
            found.append(Fault("number", at))
        heard.append(event.pcm)
        at += len(event.pcm)
    got, want = np.concatenate([np.zeros(0, np.int16), *heard]), script.pcm()
    if wrong := _first_fault(script, got, want):
        found.append(wrong)
    elif len(got) < len(want) and ended == Ended("complete"):
        found.append(Fault("short", len(got)))
    return sorted(found, key=lambda fault: fault.at)


def _first_fault(script: Script, got: Pcm, want: Pcm) -> Fault | None:
    """Classify the first sample that differs from the expected one."""
    both = min(len(got), len(want))
    differs = np.flatnonzero(got[:both] != want[:both])
    if not len(differs):
        return Fault("extra", both) if len(got) > len(want) else None
    at = int(differs[0])
    label, place = _next_label(got, at - at % _BOOKS)
    if label is None:
        return Fault("torn", at)
    if label[0] != script.voice:
        return Fault("foreign", at)
    meant = _position(script, label)
    if meant is None:
        return Fault("foreign", at)
    if meant < place:
        return Fault("doubled", at)
    group = want[at - at % _BOOKS :][:_BOOKS].tobytes()
    return Fault("swapped" if group in got[at:].tobytes() else "lost", at)


def _next_label(got: Pcm, start: int) -> tuple[tuple[int, int, int, int] | None, int]:
    """The first whole label from ``start`` on (voice, part, frame, group), and its position."""
    for at in range(start, min(start + 4 * _BOOKS, len(got) - _BOOKS + 1)):
        label = _label(got[at : at + _BOOKS])
        after = got[at + _BOOKS : at + 2 * _BOOKS]
        if label is None:
            continue
        # What was joined in the midst of a label may look like another, but not what follows too.
        following = _label(after) if len(after) == _BOOKS else label
        if following is not None and (at == start or following[0] == label[0]):
            return label, at
    return None, start


def _label(got: Pcm) -> tuple[int, int, int, int] | None:
    """The label (voice, part, frame, group) that these samples are; None if they are none."""
    samples = got.astype(np.int64)
    groups, codes = (samples >> _CODE_BITS) - 1, samples & ((1 << _CODE_BITS) - 1)
    whole = (groups == groups[0]).all() and codes[5] == codes[:5].sum() % 1024
    if not whole or (samples < 0).any() or codes[6:].any():
        return None
    frame = int(codes[3] + 1024 * codes[4])
    return int(codes[0] + 1024 * codes[1]), int(codes[2]), frame, int(groups[0])


def _position(script: Script, label: tuple[int, int, int, int]) -> int | None:
    """The position in the context of a label's samples."""
    _, part, frame, group = label
    if part >= len(script.frames) or frame >= script.frames[part]:
        return None
    before = sum(script.frames[:part]) + frame
    return before * SPEC.hop_length + group * _BOOKS

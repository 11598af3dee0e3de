"""Alignment heads: the attention heads that look at the text which a frame speaks.

A checkpoint names them in generation_config.json, as Whisper's do, or they are found by calibration
(``python -m benchmarks.alignment``). Its result is a file beside the checkpoint or in the user's
cache, where it is named by the fingerprint of the weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from talker.shape import CheckpointError, TalkerShape

#: The result of a calibration in a checkpoint's folder.
ALIGNMENT_FILE = "alignment.json"
#: Ids on each side of the peak whose attention counts towards the position. It suits ids of about a
#: letter; for ids of whole words it is 0.
NEAR = 2
#: Limits of a calibration that can be trusted. Heads that work have margins of 1.0 and are 20 to
#: 30 ms off the clock, those of a talker with shuffled queries .33 and 220 ms at best.
MIN_MARGIN, MAX_OFF_MS, MAX_OFF_P90_MS = 0.6, 50.0, 150.0
#: Parts of a file of weights that its fingerprint reads, beside its header.
_SAMPLES, _SAMPLE_BYTES = 64, 4096


class AlignmentHead(NamedTuple):
    """A head of a layer. ``shift``: by how many ids it looks ahead of the speech."""

    layer: int
    head: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment heads of a checkpoint; without any there are no word timings."""

    heads: tuple[AlignmentHead, ...] = ()
    #: See NEAR.
    near: int = NEAR
    #: Median deviation of word beginnings in the calibration; None if the checkpoint names its
    #: heads.
    off_ms: float | None = None
    #: Why a calibration is not used.
    refusal: str | None = None


class Calibration(msgspec.Struct, frozen=True):
    """The result of a calibration."""

    fingerprint: str
    heads: list[tuple[int, int, int]]
    near: Annotated[int, msgspec.Meta(ge=0, le=8)]
    #: How much better the heads' attention follows the text than the text reversed: about 1 if it
    #: follows closely, 0 if not at all.
    margin: float
    #: Deviation of word beginnings from those that the likelihood of the codes shows: the median,
    #: and below what 90 % are.
    off_ms: float
    off_p90_ms: float

    @property
    def refusal(self) -> str | None:
        """Why it cannot be trusted; None if it can."""
        if not self.margin >= MIN_MARGIN:
            return f"the heads follow the text with a margin of {self.margin:.2f}, not {MIN_MARGIN}"
        if not (self.off_ms <= MAX_OFF_MS and self.off_p90_ms <= MAX_OFF_P90_MS):
            return (
                f"words begin {self.off_ms:.0f} ms (90 %: {self.off_p90_ms:.0f}) from where the "
                f"codes show it, not {MAX_OFF_MS:.0f} ({MAX_OFF_P90_MS:.0f}) at most"
            )
        return None


def read_alignment(generation: Mapping[str, Any], folder: Path, shape: TalkerShape) -> Alignment:
    """Return the heads that generation_config.json names, or else those of a calibration of this
    checkpoint, if there is one. Raises CheckpointError.
    """
    if "alignment_heads" in generation:
        return Alignment(_named(generation["alignment_heads"], shape), _near(generation))
    found = find_calibration(folder)
    if found is None:
        return Alignment()
    if found.refusal is not None:
        return Alignment(refusal=f"there are no word timings: {found.refusal}")
    heads = _named([list(head) for head in found.heads], shape)
    return Alignment(heads, found.near, found.off_ms)


def _named(named: Any, shape: TalkerShape) -> tuple[AlignmentHead, ...]:
    if not isinstance(named, list | None):
        raise CheckpointError(f"alignment_heads must be a list, not {named!r}")
    return tuple(_head(one, shape) for one in named or ())


def _head(given: Any, shape: TalkerShape) -> AlignmentHead:
    body, size = shape.backbone, len(given) if isinstance(given, list) else 0
    whole = size in (2, 3) and all(type(number) is int for number in given)
    if not whole or not (0 <= given[0] < body.num_layers and 0 <= given[1] < body.num_heads):
        raise CheckpointError(
            f"alignment_heads: {given!r} is not a [layer, head] or [layer, head, shift] here"
        )
    return AlignmentHead(*given)


def _near(generation: Mapping[str, Any]) -> int:
    near = generation.get("alignment_near", NEAR)
    if type(near) is not int or not 0 <= near <= 8:
        raise CheckpointError(f"alignment_near must be a number from 0 to 8, not {near!r}")
    return near


def find_calibration(folder: Path) -> Calibration | None:
    """Return the calibration of a checkpoint; None if there is none for these weights. Raises
    CheckpointError.
    """
    beside = folder / ALIGNMENT_FILE
    if not beside.is_file() and not any(_cache().glob("*.json")):
        return None  # do not read the weights in vain
    mark = fingerprint(folder)
    for file in (beside, cached_calibration(mark)):
        if not file.is_file():
            continue
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Calibration)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{file}: {error}") from error
        if found.fingerprint == mark:
            return found
    return None


def cached_calibration(mark: str) -> Path:
    """Where the calibration of the checkpoint with this fingerprint is kept."""
    return _cache() / f"{mark}.json"


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "talkwire", "alignment")


def fingerprint(folder: Path) -> str:
    """A digest of a checkpoint's weights: of the files' sizes, headers and samples."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest.update(f"{path.name} {size};".encode())
            for number in range(_SAMPLES):
                file.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]

"""Interfaces of a codec family, and the errors of the codec package.

A family is one architecture of codec with everything specific to it: how its checkpoint is
recognised, its configuration, the names and shapes of its tensors, its decoder and its encoder.
``codec.families`` has one package for each and lists them.

Error texts are for operators, never for clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from streaming.ports import CodecDecoder
from streaming.spec import CodecSpec, Codes, Samples, SpeakerVector
from streaming.window import DecodeWindow


class CheckpointError(Exception):
    """The folder holds no codec that can be loaded; a retry will not help."""


class DeviceError(Exception):
    """The device does not exist, or torch cannot use it."""


class CodesError(ValueError):
    """These codes can never be decoded: wrong shape, or a code outside the codebooks."""


class ClipError(ValueError):
    """These samples can never be encoded."""


class ClipEncoder(Protocol):
    """The encoder of a codec, from clips to codes. Thread-safe."""

    def encode(self, samples: Samples) -> Codes:
        """Encode ``[n]`` samples at the codec's rate to ``[K, T]``, ``T = ceil(n / hop)``.

        Raises ClipError for samples that are not one channel of finite numbers.
        """


class SpeakerEncoder(Protocol):
    """Makes vectors of speakers, for talkers that need them. Thread-safe."""

    @property
    def fingerprint(self) -> str:
        """Identifier, equal for two encoders if their vectors mean the same."""

    def encode(self, samples: Samples) -> SpeakerVector:
        """Return the vector ``[D]`` of a clip ``[n]`` at the codec's rate.

        Raises ClipError for samples that are not one channel of finite numbers, or too few.
        """


_Encoded = TypeVar("_Encoded", covariant=True)


class Encoder(Protocol[_Encoded]):
    """What encoders have in common."""

    def encode(self, samples: Samples) -> _Encoded:
        """Encode a clip ``[n]``."""


@runtime_checkable
class StatefulDecoder(CodecDecoder, Protocol):
    """A decoder that caches the states of streams, and recomputes lost ones."""

    def catch_up(self, window: DecodeWindow) -> Iterator[None]:
        """Compute the state that a window continues from, if it is not cached, slice by slice.

        Decoding does so too, but in one go; here the caller can do other work between slices.
        Raises CodesError.
        """


class FoundCodec(Protocol):
    """A codec that a family has recognised in a folder. Only headers have been read."""

    @property
    def family(self) -> CodecFamily:
        """The family that recognised it."""

    def can_encode(self) -> bool:
        """Whether the checkpoint has everything that encoding needs. Raises CheckpointError."""

    def load_decoder(self, device: str = "cpu") -> CodecDecoder:
        """Read the decoder's tensors. Raises CheckpointError."""

    def load_encoder(self, device: str = "cpu") -> ClipEncoder:
        """Read the encoder's tensors. Raises CheckpointError."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Contents of a converted file: tensors by name and shape, the names under which each may be
    stored (see ``codec.checkpoint``), and the file's metadata.
    """

    shapes: dict[str, tuple[int, ...]]
    names: Callable[[str], Iterator[tuple[str, ...]]]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion of a family's pickle to safetensors. ``source`` and ``target`` are file names.

    ``plan`` takes the shapes of the pickle's tensors and the folder's ``config.json``. It raises
    CheckpointError for tensors of another kind of codec.
    """

    source: str
    target: str
    plan: Callable[[dict[str, tuple[int, ...]], Mapping[str, Any]], TensorPlan]


@dataclass(frozen=True, slots=True)
class CodecFamily:
    """One architecture of codec.

    ``find`` takes a folder, its ``config.json`` (empty if there is none) and the number of
    codebooks that the talker speaks, if known. It returns None for a folder of another family, and
    raises CheckpointError for one of this family that cannot be loaded. ``models`` briefly
    describes the models that it decodes. ``licence``: text that operators must be shown.
    ``conversion``: for models that are published as a pickle.
    """

    name: str
    models: str
    find: Callable[[Path, Mapping[str, Any], int | None], FoundCodec | None]
    licence: str = ""
    conversion: Conversion | None = None


def check_codes(spec: CodecSpec, codes: Codes, lookahead: int = 0) -> None:
    """Raise CodesError unless ``codes`` are ``[K, T]`` real codes with T >= 1. Those of the last
    ``lookahead`` frames may be UNKNOWN.
    """
    if codes.ndim != 2 or codes.shape[0] != spec.num_codebooks or not codes.shape[1]:
        raise CodesError(f"codes of shape {codes.shape} are not [{spec.num_codebooks}, T]")
    if not spec.are_codes(codes, lookahead):
        ranges = ", or ".join(f"0..{size - 1}" for size in dict.fromkeys(spec.codebook_sizes))
        raise CodesError(f"a code is not within {ranges}")


def check_clip(samples: Samples) -> None:
    """Raise ClipError unless a clip is one channel of finite samples."""
    if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all():
        raise ClipError("a clip is one channel of finite samples")


def padded_clip(samples: Samples, hop_length: int) -> Samples:
    """Pad a clip with silence to whole frames.

    Raises ClipError unless it is one channel of finite samples.
    """
    check_clip(samples)
    return np.pad(samples, (0, -len(samples) % hop_length))

"""Messages between the gateway and the codec worker. Fixed schema; see ipc.framing.

Deadlines are seconds on CLOCK_MONOTONIC, which all processes of one Linux machine share.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from codec.batching import DecodeCost
from ipc.framing import Alive, Fatal, Progress, Stop
from streaming.ports import EncodedClip
from streaming.spec import CodecSpec, Codes, Samples, SpeakerVector
from streaming.window import DecodeWindow

#: ``bad_window``: these codes can never be decoded. ``decode_failed``: the decoder failed.
#: ``bad_clip`` and ``encode_failed``: the same for a clip and the encoder.
FailureReason = Literal["bad_window", "decode_failed", "bad_clip", "encode_failed"]


class Decode(msgspec.Struct, tag="decode", frozen=True):
    """A window to decode; see ``streaming.window.DecodeWindow``."""

    id: int
    #: int16 little-endian, ``[num_codebooks, T]``.
    codes: bytes
    num_codebooks: int
    left_context: int
    new_frames: int
    lookahead: int
    #: When its samples are needed, in monotonic seconds.
    deadline_s: float
    #: Whether it is kept out of batches: it was being decoded when a worker died, and if it is the
    #: cause, no other window must fail with it.
    alone: bool = False
    #: Whether its stream does not play yet.
    begins: bool = False
    first_frame: int = 0
    is_last: bool = False
    #: As ``codes``; empty if there is none.
    history: bytes = b""


class Encode(msgspec.Struct, tag="encode", frozen=True):
    """A clip to encode, without a deadline: float32 little-endian, mono at the codec's rate."""

    id: int
    samples: bytes


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Drop a window or clip. Unknown ids are ignored."""

    id: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The worker accepts work. ``cost`` was measured during warm-up.

    ``fingerprint`` differs for codecs whose codes mean other sounds; see ``CodecEngine``.
    ``licence`` is that of ``codec.family.CodecFamily``. ``settings``: the values, for the log, of
    those that follow from the device.
    """

    spec: CodecSpec
    cost: DecodeCost
    can_encode: bool = False
    fingerprint: str = ""
    licence: str = ""
    settings: dict[str, str | int] = {}


class Decoding(msgspec.Struct, tag="decoding", frozen=True):
    """The worker begins to decode these windows. If it dies meanwhile, one of them is the cause."""

    ids: list[int]


class Decoded(msgspec.Struct, tag="decoded", frozen=True):
    """Samples of a window's new frames, float32 little-endian.

    ``queue_s``: from receipt to the start of its decoding. ``decode_s``: time that its batches
    took. ``batch``: number of windows in the largest of them. ``frames``: its length with context.
    ``busy_s``: the part of ``decode_s`` that was on the processor, if that is known.
    """

    id: int
    samples: memoryview
    queue_s: float
    decode_s: float
    batch: int
    frames: int
    busy_s: float | None = None


class Encoding(msgspec.Struct, tag="encoding", frozen=True):
    """The worker begins to encode this clip, beside the decoding."""

    id: int


class Encoded(msgspec.Struct, tag="encoded", frozen=True):
    """Codes of a clip, int16 little-endian, ``[num_codebooks, T]``, and the vector of its speaker,
    float32 little-endian; empty if the talker needs none.
    """

    id: int
    codes: bytes
    num_codebooks: int
    vector: bytes = b""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """This window or clip failed, and no other. ``detail`` is for operators."""

    id: int
    reason: FailureReason
    detail: str


ToWorker = Decode | Encode | Cancel | Stop
FromWorker = Ready | Decoding | Decoded | Encoding | Encoded | Failed | Alive | Progress | Fatal


def decode_message(
    id: int, window: DecodeWindow, deadline_s: float, *, alone: bool, begins: bool = False
) -> Decode:
    """Pack a window."""
    return Decode(
        id=id,
        codes=_packed(window.codes),
        num_codebooks=window.codes.shape[0],
        left_context=window.left_context,
        new_frames=window.new_frames,
        lookahead=window.lookahead,
        deadline_s=deadline_s,
        alone=alone,
        begins=begins,
        first_frame=window.first_frame,
        is_last=window.is_last,
        history=b"" if window.history is None else _packed(window.history),
    )


def window_of(message: Decode) -> DecodeWindow:
    """Unpack a window. Raises ValueError if its parts do not fit together."""
    books = message.num_codebooks
    return DecodeWindow(
        _unpacked(message.codes, books),
        message.left_context,
        message.new_frames,
        message.lookahead,
        message.first_frame,
        message.is_last,
        history=_unpacked(message.history, books) if message.history else None,
    )


def encoded_message(id: int, codes: Codes, vector: SpeakerVector | None) -> Encoded:
    """Pack an encoded clip."""
    packed = b"" if vector is None else vector.astype("<f4").tobytes()
    return Encoded(id, _packed(codes), codes.shape[0], packed)


def clip_of(message: Encoded) -> EncodedClip:
    """Unpack an encoded clip. Raises ValueError if it is incomplete."""
    vector = np.frombuffer(message.vector, "<f4").astype(np.float32)
    codes = _unpacked(message.codes, message.num_codebooks)
    return EncodedClip(codes, vector if len(vector) else None)


def _packed(codes: Codes) -> bytes:
    return codes.astype("<i2", order="C").tobytes()


def _unpacked(data: bytes, num_codebooks: int) -> Codes:
    codes: Codes = np.frombuffer(data, "<i2").astype(np.int16)
    return codes.reshape(num_codebooks, -1)


def samples_of(message: Decoded | Encode) -> Samples:
    """Unpack samples. Raises ValueError if they are incomplete."""
    return np.frombuffer(message.samples, "<f4").astype(np.float32)

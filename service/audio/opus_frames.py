"""libopus, frame by frame: the system's through opuslib, else the one that PyAV brings.

Both give one packet for each full frame, at once, and are never told of an end: a context's
next utterance goes on in the same stream.
"""

from __future__ import annotations

import importlib
import struct
from fractions import Fraction
from typing import Any, Protocol

import av
import numpy as np

from streaming.spec import Samples

#: Hz that libopus takes. Its own clock, and pre-skip, always count at 48 kHz.
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
#: Bits per second; libopus takes fewer where the rate leaves nothing to spend them on.
OPUS_BIT_RATE = 48_000
_APPLICATION = "audio"
_PRE_SKIP_AT, _CLOCK = 10, 48_000


class OpusFrames(Protocol):
    """An Opus stream. ``delay_samples``: how far a decoder's output lags behind the input."""

    @property
    def delay_samples(self) -> int:
        """Samples at the encoder's rate (pre-skip, in 48ths of a millisecond elsewhere)."""

    def encode(self, frame: Samples) -> bytes:
        """One frame of the length that the encoder was made for, within [-1, 1]."""


def _load_opuslib() -> Any:
    """The package, or None where it or the system's library is not there."""
    try:
        return importlib.import_module("opuslib")
    except Exception:  # it raises a bare Exception when there is no libopus
        return None


_opuslib = _load_opuslib()


def has_system_opus() -> bool:
    """Whether opuslib and the system's libopus can be used."""
    return _opuslib is not None


class SystemOpus:
    """OpusFrames through opuslib."""

    def __init__(self, sample_rate: int, frame_samples: int, bit_rate: int = OPUS_BIT_RATE) -> None:
        self._encoder = _opuslib.Encoder(sample_rate, 1, _APPLICATION)
        self._encoder.bitrate = bit_rate
        self._frame_samples = frame_samples
        self.delay_samples: int = self._encoder.lookahead

    def encode(self, frame: Samples) -> bytes:
        """See OpusFrames."""
        data: bytes = self._encoder.encode_float(
            frame.astype(np.float32, copy=False).tobytes(), self._frame_samples
        )
        return data


class BundledOpus:
    """OpusFrames through PyAV."""

    def __init__(self, sample_rate: int, frame_samples: int, bit_rate: int = OPUS_BIT_RATE) -> None:
        encoder = av.AudioCodecContext.create("libopus", "w")
        encoder.sample_rate, encoder.layout, encoder.format = sample_rate, "mono", "flt"
        encoder.time_base, encoder.bit_rate = Fraction(1, sample_rate), bit_rate
        duration = str(frame_samples * 1000 // sample_rate)
        encoder.options = {"frame_duration": duration, "application": _APPLICATION}
        encoder.open()
        (pre_skip,) = struct.unpack_from("<H", bytes(encoder.extradata or b""), _PRE_SKIP_AT)
        self._encoder, self._sample_rate, self._position = encoder, sample_rate, 0
        self.delay_samples: int = pre_skip * sample_rate // _CLOCK

    def encode(self, frame: Samples) -> bytes:
        """See OpusFrames."""
        packed = av.AudioFrame.from_ndarray(frame[np.newaxis], format="flt", layout="mono")
        packed.sample_rate, packed.pts = self._sample_rate, self._position
        self._position += len(frame)
        (packet,) = self._encoder.encode(packed)
        return bytes(packet)


def open_opus(sample_rate: int, frame_samples: int, bit_rate: int = OPUS_BIT_RATE) -> OpusFrames:
    """The system's libopus where it is there, else PyAV's. ``bit_rate`` in bits per second."""
    make = SystemOpus if has_system_opus() else BundledOpus
    return make(sample_rate, frame_samples, bit_rate)

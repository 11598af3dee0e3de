"""Raw Opus packets, one per binary message, from the system's libopus or PyAV's."""

from __future__ import annotations

import contextlib
import importlib
import struct
from fractions import Fraction
from typing import Any

import av
import numpy as np

from service.audio.encoder import Packet, audio_frame
from streaming.spec import Samples

#: Sample rates of libopus in Hz. Its clock and pre-skip always count at 48 kHz.
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
#: Bits per second; libopus uses fewer if the sample rate does not need them.
OPUS_BIT_RATE = 48_000
_APPLICATION = "audio"
_PRE_SKIP_AT, _CLOCK = 10, 48_000


#: The package; None if it or the system's library is missing.
_opuslib: Any = None
with contextlib.suppress(Exception):  # opuslib raises a bare Exception without libopus
    _opuslib = importlib.import_module("opuslib")


def has_system_opus() -> bool:
    """Whether opuslib and the system's libopus can be used."""
    return _opuslib is not None


class SystemOpus:
    """An Opus stream through opuslib. ``delay_samples``: the pre-skip, at the encoder's rate."""

    def __init__(self, sample_rate: int, frame_samples: int, bit_rate: int = OPUS_BIT_RATE) -> None:
        self._encoder = _opuslib.Encoder(sample_rate, 1, _APPLICATION)
        self._encoder.bitrate = bit_rate
        self._frame_samples = frame_samples
        self.delay_samples: int = self._encoder.lookahead

    def encode(self, frame: Samples) -> bytes:
        """Encode a frame of ``frame_samples`` within [-1, 1]."""
        data: bytes = self._encoder.encode_float(
            frame.astype(np.float32, copy=False).tobytes(), self._frame_samples
        )
        return data


class BundledOpus:
    """An Opus stream through PyAV, with the same interface."""

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
        """See SystemOpus."""
        (packet,) = self._encoder.encode(audio_frame(frame, self._sample_rate, self._position))
        self._position += len(frame)
        return bytes(packet)


def open_opus(
    sample_rate: int, frame_samples: int, bit_rate: int = OPUS_BIT_RATE
) -> SystemOpus | BundledOpus:
    """Open a stream of the system's libopus, or else of PyAV's. ``bit_rate``: bits per second."""
    make = SystemOpus if has_system_opus() else BundledOpus
    return make(sample_rate, frame_samples, bit_rate)


OPUS_FRAME_MS = (10, 20, 40, 60)
DEFAULT_FRAME_MS = 20


class OpusEncoder:
    """Packets of ``frame_samples``; an utterance's last one is filled up with silence.

    The encoder is never reset, so decoders need not be. The ``padding`` of an utterance is the
    encoder's delay at the beginning and the silence at the end::

        decoded   |delay|  the utterance's samples  |silence|delay|  the next one's ...
        packets   |      |      |      |      |      |     |      |
    """

    inline = False

    def __init__(
        self, frames: SystemOpus | BundledOpus, sample_rate: int, frame_samples: int
    ) -> None:
        self._frames, self.sample_rate, self._frame = frames, sample_rate, frame_samples
        self.delay_samples = frames.delay_samples
        self._held = np.empty(0, np.float32)
        self._taken = self._made = 0

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        self._taken += len(samples)
        self._held = np.concatenate([self._held, np.clip(samples, -1.0, 1.0)])
        full = len(self._held) - len(self._held) % self._frame
        frames, self._held = self._held[:full].reshape(-1, self._frame), self._held[full:]
        return [self._pack(frame) for frame in frames]

    def end_utterance(self) -> list[Packet]:
        """See AudioEncoder."""
        return []

    def flush(self) -> list[Packet]:
        """Return the rest of the utterance, including the samples in the encoder's delay."""
        if not self._taken:
            return []
        missing = self._taken + self.delay_samples - self._made
        silence = np.zeros(-(-missing // self._frame) * self._frame - len(self._held), np.float32)
        filled = np.concatenate([self._held, silence]).reshape(-1, self._frame)
        packets = [self._pack(frame, is_rest=True) for frame in filled]
        self._held, self._taken, self._made = self._held[:0], 0, 0
        return packets

    def _pack(self, frame: Samples, *, is_rest: bool = False) -> Packet:
        delay, start = self.delay_samples, self._made
        self._made += self._frame
        audio_end = min(self._made, self._taken + delay) if is_rest else self._made
        audio = max(0, audio_end - max(start, delay))
        return Packet(self._frames.encode(frame), self._frame, self._frame - audio)

"""Encodings with a fixed number of bytes per sample: linear PCM, G.711, and WAV around PCM."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from service.audio.encoder import Packet
from streaming.spec import Samples

_Ints = npt.NDArray[np.int64]
_SIGN, _MU_MASK, _A_MASK = 0x80, 0xFF, 0xD5
_MU_BIAS = 0x84
_MAGNITUDES: _Ints = np.arange(128)


def _table(outputs: _Ints, mask: int) -> npt.NDArray[np.uint8]:
    """Return a table [65536] of bytes, indexed by a sample as u16, from the magnitudes' 16-bit
    ``outputs``. A code is a magnitude XOR ``mask``, with the sign bit inverted if negative.
    """
    decisions = (outputs[:-1] + outputs[1:] + 4) >> 3  # 14-bit magnitudes
    linear = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64) >> 2
    magnitude = np.searchsorted(decisions, np.abs(linear), side="right")
    signed = np.where(linear < 0, magnitude | _SIGN, magnitude)
    table: npt.NDArray[np.uint8] = (signed ^ mask).astype(np.uint8)
    return table


@cache
def mulaw_table() -> npt.NDArray[np.uint8]:
    """Return the table [65536] of mu-law bytes, indexed by a sample as u16."""
    exponent, mantissa = _MAGNITUDES >> 4, _MAGNITUDES & 15
    return _table((((mantissa << 3) + _MU_BIAS) << exponent) - _MU_BIAS, _MU_MASK)


@cache
def alaw_table() -> npt.NDArray[np.uint8]:
    """Return the table [65536] of A-law bytes, indexed by a sample as u16."""
    exponent, mantissa = _MAGNITUDES >> 4, _MAGNITUDES & 15
    linear = (mantissa << 4) + 8
    curved = (linear + 0x100) << np.maximum(exponent - 1, 0)
    return _table(np.where(exponent == 0, linear, curved), _A_MASK)


def pack_mulaw(samples: Samples) -> bytes:
    """Encode samples as mu-law, one byte each."""
    return mulaw_table()[to_s16(samples).view(np.uint16)].tobytes()


def pack_alaw(samples: Samples) -> bytes:
    """Encode samples as A-law, one byte each."""
    return alaw_table()[to_s16(samples).view(np.uint16)].tobytes()


_S16_MAX = 32767.0
_WAV = struct.Struct("<4sI4s4sIHHIIHH4sI")
_WAV_OTHER = struct.Struct("<4sI4s4sIHHIIHHH4sII4sI")
_WAV_PCM, _WAV_REST, _UNKNOWN = 1, 36, 0xFFFFFFFF
_RATE_AT = 24


def to_s16(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Convert samples to integers; those outside [-1, 1] are clipped."""
    scaled: Samples = np.clip(samples, -1.0, 1.0)
    scaled *= np.float32(_S16_MAX)
    return np.rint(scaled, out=scaled).astype(np.int16)


def pack_s16(samples: Samples) -> bytes:
    """Encode samples as s16le, two bytes each."""
    return to_s16(samples).astype("<i2", copy=False).tobytes()


def pack_f32(samples: Samples) -> bytes:
    """Encode samples as f32le, four bytes each, without clipping."""
    return samples.astype("<f4", copy=False).tobytes()


class PcmEncoder:
    """Packets of ``frame_samples`` (0: one packet per call, of any length)."""

    inline, delay_samples = True, 0

    def __init__(
        self, pack: Callable[[Samples], bytes], sample_rate: int, frame_samples: int = 0
    ) -> None:
        self._pack_samples, self.sample_rate, self._frame = pack, sample_rate, frame_samples
        self._held = np.empty(0, np.float32)

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        if not self._frame:
            return [self._pack(samples)] if len(samples) else []
        samples = np.concatenate([self._held, samples])
        full = len(samples) - len(samples) % self._frame
        self._held = samples[full:]
        return [self._pack(samples[at : at + self._frame]) for at in range(0, full, self._frame)]

    def end_utterance(self) -> list[Packet]:
        """See AudioEncoder."""
        return []

    def flush(self) -> list[Packet]:
        """Return the samples that did not fill a packet."""
        held, self._held = self._held, self._held[:0]
        return [self._pack(held)] if len(held) else []

    def _pack(self, samples: Samples) -> Packet:
        return Packet(self._pack_samples(samples), len(samples))


def wav_header(sample_rate: int, samples: int | None = None) -> bytes:
    """Return the 44 bytes before mono s16le samples. If their number is unknown, or too large for
    WAV, both sizes are 0xFFFFFFFF, which players and ffmpeg read as "until the end".
    """
    size = _UNKNOWN if samples is None else 2 * samples
    if size > _UNKNOWN - _WAV_REST:
        size = _UNKNOWN
    riff = min(_UNKNOWN, size + _WAV_REST)
    format_ = (16, _WAV_PCM, 1, sample_rate, 2 * sample_rate, 2, 16)
    return _WAV.pack(b"RIFF", riff, b"WAVE", b"fmt ", *format_, b"data", size)


def tell_wav_length(file: bytearray, size: int) -> None:
    """Write the length into the header of an s16le ``file`` of ``size`` bytes."""
    (sample_rate,) = struct.unpack_from("<I", file, _RATE_AT)
    file[: _WAV.size] = wav_header(sample_rate, (size - _WAV.size) // 2)


@dataclass(frozen=True, slots=True)
class WavLayout:
    """A WAV format other than s16le; ``tag`` is its number."""

    tag: int
    sample_bytes: int
    pack: Callable[[Samples], bytes]

    def header(self, sample_rate: int) -> bytes:
        """Return the 58 bytes before an unknown number of mono samples, with the format chunk's
        empty extension and the fact chunk that these formats need. Its number of samples is 0,
        since readers trust any other: the maximum would be shown as hours.
        """
        size = self.sample_bytes
        format_ = (18, self.tag, 1, sample_rate, size * sample_rate, size, 8 * size, 0)
        chunks = (b"fmt ", *format_, b"fact", 4, 0, b"data", _UNKNOWN)
        return _WAV_OTHER.pack(b"RIFF", _UNKNOWN, b"WAVE", *chunks)


class WavEncoder(PcmEncoder):
    """A WAV file of unknown length, s16le unless ``layout`` is given. If empty, only a header."""

    def __init__(
        self, sample_rate: int, frame_samples: int = 0, layout: WavLayout | None = None
    ) -> None:
        super().__init__(layout.pack if layout else pack_s16, sample_rate, frame_samples)
        self._header = layout.header(sample_rate) if layout else wav_header(sample_rate)

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        packets = super().flush()
        if self._header:
            packets, self._header = [Packet(self._header, 0)], b""
        return packets

    def _pack(self, samples: Samples) -> Packet:
        header, self._header = self._header, b""
        return Packet(header + self._pack_samples(samples), len(samples))

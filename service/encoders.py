"""Samples to the bytes a client asked for."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from streaming.errors import ErrorCode, RequestError
from streaming.spec import AudioFormat, Encoding, Samples

_S16_MAX = 32767.0


class Packet(NamedTuple):
    """One binary message's worth of audio."""

    data: bytes
    samples: int


class AudioEncoder(Protocol):
    """Encodes one context's samples, in order."""

    def encode(self, samples: Samples) -> list[Packet]:
        """Take samples; return the packets that are full."""

    def flush(self) -> list[Packet]:
        """Return what is held back, as a shorter packet."""


class PcmEncoder:
    """PCM in packets of ``frame_samples`` (0: one packet per call, of whatever length)."""

    def __init__(self, encoding: Encoding, frame_samples: int = 0) -> None:
        self._encoding, self._frame = encoding, frame_samples
        self._held = np.empty(0, np.float32)

    def encode(self, samples: Samples) -> list[Packet]:
        """Float samples within [-1, 1] (louder ones are clipped in s16le)."""
        if not self._frame:
            return [self._pack(samples)] if len(samples) else []
        samples = np.concatenate([self._held, samples])
        full = len(samples) - len(samples) % self._frame
        self._held = samples[full:]
        return [self._pack(samples[at : at + self._frame]) for at in range(0, full, self._frame)]

    def flush(self) -> list[Packet]:
        """The samples that did not fill a packet."""
        held, self._held = self._held, self._held[:0]
        return [self._pack(held)] if len(held) else []

    def _pack(self, samples: Samples) -> Packet:
        if self._encoding is Encoding.PCM_F32LE:
            return Packet(samples.astype("<f4", copy=False).tobytes(), len(samples))
        scaled = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(_S16_MAX))
        return Packet(scaled.astype("<i2").tobytes(), len(samples))


def make_encoder(audio: AudioFormat, frame_ms: int, codec_rate: int) -> AudioEncoder:
    """The encoder for a client's format. Raises RequestError (``unsupported``)."""
    if audio.sample_rate != codec_rate:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"This server sends {codec_rate} Hz only.",
            param="audio.sample_rate",
        )
    return PcmEncoder(audio.encoding, codec_rate * frame_ms // 1000)

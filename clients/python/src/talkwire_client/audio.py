"""Chunks of audio as they arrive, their number of samples, and a WAV file to write them to."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from talkwire_client.protocol import AudioHeader, Encoding

_SAMPLE_BYTES = {
    Encoding.PCM_S16LE: 2,
    Encoding.PCM_F32LE: 4,
    Encoding.PCM_MULAW: 1,
    Encoding.PCM_ALAW: 1,
}


class AudioChunk(NamedTuple):
    """A chunk of audio: one binary message of the protocol.

    Attributes:
        data: The audio in the requested encoding; an Opus chunk is one packet.
        samples: Number of samples that it decodes to, at the rate of the audio.
        header: The message's header.
        arrived_s: Time of arrival, on the clock of ``time.monotonic()``.
    """

    data: bytes
    samples: int
    header: AudioHeader
    arrived_s: float


def count_samples(data: bytes, encoding: Encoding, sample_rate: int | None) -> int:
    """Count the samples that ``data`` decodes to.

    Args:
        data: Audio in ``encoding``.
        encoding: The encoding of ``data``.
        sample_rate: In Hz; required only for Opus.

    Returns:
        The number of samples.

    Raises:
        ValueError: It ends within a sample, is not an Opus packet, or lacks a required rate.
    """
    if sample_bytes := _SAMPLE_BYTES.get(encoding):
        samples, rest = divmod(len(data), sample_bytes)
        if rest:
            raise ValueError(f"{len(data)} bytes are not whole samples of {sample_bytes}")
        return samples
    if sample_rate is None:
        raise ValueError("audio before audio.started")
    return int(opus_packet_ms(data) * sample_rate / 1000)


_SILK_MS, _HYBRID_MS, _CELT_MS = (10, 20, 40, 60), (10, 20), (2.5, 5, 10, 20)
_HYBRID_FROM, _CELT_FROM = 12, 16


def opus_packet_ms(packet: bytes) -> float:
    """Read the duration of an Opus packet from its first two bytes (RFC 6716, section 3.1).

    Returns:
        Milliseconds of audio.

    Raises:
        ValueError: It is too short to be a packet.
    """
    if not packet:
        raise ValueError("an Opus packet has at least one byte")
    config, code = packet[0] >> 3, packet[0] & 3
    if config < _HYBRID_FROM:
        frame_ms: float = _SILK_MS[config % 4]
    elif config < _CELT_FROM:
        frame_ms = _HYBRID_MS[config % 2]
    else:
        frame_ms = _CELT_MS[config % 4]
    if code < 3:
        return frame_ms * (2 if code else 1)
    if len(packet) < 2:
        raise ValueError("an Opus packet of several frames says how many")
    return frame_ms * (packet[1] & 63)


_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_WAV_MAX_BYTES = 0xFFFFFFFF


class WavWriter:
    """A WAV file of mono 16-bit PCM that is valid after every write.

    Use it as a context manager. A file without samples is removed after an error.

    Args:
        path: The file, which is created or overwritten.
        sample_rate: In Hz.

    Raises:
        OSError: The file cannot be opened or written, or is a pipe, whose header cannot be
            rewritten.
    """

    def __init__(self, path: str | Path, sample_rate: int) -> None:
        self._path, self._rate = Path(path), sample_rate
        self._bytes = 0
        # Unbuffered, so that closing does not retry a failed write.
        self._file = self._path.open("wb", buffering=0)  # closed by __exit__
        try:
            if not self._file.seekable():
                raise OSError(errno.ESPIPE, "a WAV file cannot go into a pipe")
            self._write(self._header())
        except OSError:
            self._file.close()
            raise

    def write(self, pcm: bytes) -> None:
        """Append samples: signed 16 bits, little-endian.

        Raises:
            OSError: They cannot be written.
        """
        self._write(pcm)
        self._bytes += len(pcm)
        self._file.seek(0)
        self._write(self._header())
        self._file.seek(0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _header(self) -> bytes:
        """The header's 44 bytes; the two lengths are limited to 32 bits."""
        data, whole = min(self._bytes, _WAV_MAX_BYTES), min(36 + self._bytes, _WAV_MAX_BYTES)
        layout = (16, 1, 1, self._rate, 2 * self._rate, 2, 16)
        return _WAV_HEADER.pack(b"RIFF", whole, b"WAVE", b"fmt ", *layout, b"data", data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError) if kind else contextlib.nullcontext():
            self._file.close()
        if kind is not None and not self._bytes and self._path.is_file():
            self._path.unlink(missing_ok=True)

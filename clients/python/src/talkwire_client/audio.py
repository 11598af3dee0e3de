"""Chunks of audio as they arrive, all of it that was read, and a WAV file to write it to."""

from __future__ import annotations

import base64
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

    def __repr__(self) -> str:
        """Describe the chunk without its bytes, of which a notebook would show all."""
        header = self.header
        return f"<AudioChunk {header.sequence}: {self.samples} samples, {len(self.data)} bytes>"


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


#: Durations of an Opus frame in each of the three modes, by the configuration's lowest bits.
_SILK_MS = (10, 20, 40, 60)
_HYBRID_MS = (10, 20)
_CELT_MS = (2.5, 5, 10, 20)
#: The first configuration of a mode.
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


#: The tag of an encoding's format in a WAV file.
_WAV_TAGS = {
    Encoding.PCM_S16LE: 1,
    Encoding.PCM_F32LE: 3,
    Encoding.PCM_MULAW: 7,
    Encoding.PCM_ALAW: 6,
}
#: Longer recordings (six minutes at 24 kHz) would make a notebook's file unwieldy.
_MAX_SHOWN_BYTES = 16 << 20


def wav_header(encoding: Encoding, sample_rate: int, size: int) -> bytes:
    """Make the header of a mono WAV file.

    Args:
        encoding: Of the samples; not Opus.
        sample_rate: In Hz.
        size: Bytes of samples. The header's lengths are limited to 32 bits.

    Returns:
        44 bytes, after which the samples follow.
    """
    data, whole = min(size, _WAV_MAX_BYTES), min(36 + size, _WAV_MAX_BYTES)
    width = _SAMPLE_BYTES[encoding]
    layout = (16, _WAV_TAGS[encoding], 1, sample_rate, width * sample_rate, width, 8 * width)
    return _WAV_HEADER.pack(b"RIFF", whole, b"WAVE", b"fmt ", *layout, b"data", data)


class Recording(bytes):
    """All audio of a speech: the bytes, which a notebook plays.

    Attributes:
        encoding: The encoding of the bytes.
        sample_rate: In Hz; 0 if there is no audio.
    """

    encoding: Encoding
    sample_rate: int

    def __new__(
        cls, data: bytes, encoding: Encoding = Encoding.PCM_S16LE, sample_rate: int = 0
    ) -> Self:
        """Make a recording of ``data``. Copies pass the bytes alone, and set the rest after."""
        made = super().__new__(cls, data)
        made.encoding, made.sample_rate = encoding, sample_rate
        return made

    def __repr__(self) -> str:
        """Describe the recording without its bytes, of which a notebook would show all."""
        return f"<Recording: {len(self)} bytes of {self.encoding} at {self.sample_rate} Hz>"

    def _repr_html_(self) -> str | None:
        """Return a player for notebooks; None for Opus and for what is empty or too long."""
        if self.encoding not in _WAV_TAGS or not 0 < len(self) <= _MAX_SHOWN_BYTES:
            return None
        wav = wav_header(self.encoding, self.sample_rate, len(self)) + self
        return f'<audio controls src="data:audio/wav;base64,{base64.b64encode(wav).decode()}">'


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
        self._path = Path(path)
        self._rate = sample_rate
        self._bytes = 0
        # Unbuffered, so that closing does not retry a failed write.
        self._file = self._path.open("wb", buffering=0)  # closed by __exit__
        try:
            if not self._file.seekable():
                raise OSError(errno.ESPIPE, "a WAV file cannot go into a pipe")
            self._write(wav_header(Encoding.PCM_S16LE, self._rate, self._bytes))
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
        self._write(wav_header(Encoding.PCM_S16LE, self._rate, self._bytes))
        self._file.seek(0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

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

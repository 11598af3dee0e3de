"""A WAV file that is valid at any moment of its being written."""

from __future__ import annotations

import wave
from pathlib import Path
from types import TracebackType
from typing import Self


class WavWriter:
    """Writes mono 16-bit PCM as it comes; the header's lengths follow every chunk.

    Raises OSError when the file cannot be opened or written. Use it as a context manager; a file
    that got no sample because of an error is removed again.
    """

    def __init__(self, path: Path, sample_rate: int) -> None:
        self._path = path
        self._file = path.open("wb")  # closed by __exit__
        self._wave = wave.open(self._file, "wb")  # noqa: SIM115
        self._wave.setnchannels(1)
        self._wave.setsampwidth(2)
        self._wave.setframerate(sample_rate)
        self._empty = True

    def write(self, pcm: bytes) -> None:
        """More samples, signed 16 bits, little-endian."""
        self._wave.writeframes(pcm)
        self._file.flush()
        self._empty = self._empty and not pcm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wave.close()
        self._file.close()
        if kind is not None and self._empty:
            self._path.unlink(missing_ok=True)

"""A WAV file that is valid at any moment of its being written."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_MOST = 0xFFFFFFFF


class WavWriter:
    """Writes mono 16-bit PCM as it comes; the header's lengths follow every chunk.

    Raises OSError when the file cannot be opened or written, or is a pipe, in which no header can
    be written anew. Use it as a context manager; a file that got no sample because of an error is
    removed again.
    """

    def __init__(self, path: Path, sample_rate: int) -> None:
        self._path, self._rate = path, sample_rate
        self._bytes = 0
        # Without a buffer: what could not be written is not tried again on closing.
        self._file = path.open("wb", buffering=0)  # closed by __exit__
        try:
            if not self._file.seekable():
                raise OSError(errno.ESPIPE, "a WAV file cannot go into a pipe")
            self._write(self._header())
        except OSError:
            self._file.close()
            raise

    def write(self, pcm: bytes) -> None:
        """More samples, signed 16 bits, little-endian."""
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
        """44 bytes: the sizes, then mono, the rate, 16 bits. The sizes stop at their highest."""
        data, whole = min(self._bytes, _MOST), min(36 + self._bytes, _MOST)
        form = (16, 1, 1, self._rate, 2 * self._rate, 2, 16)
        return _HEADER.pack(b"RIFF", whole, b"WAVE", b"fmt ", *form, b"data", data)

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

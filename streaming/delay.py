"""The delay pattern: converts a talker's rows to a codec's frames, and back.

Some talkers generate a whole frame in every step (``WholeRows``). Others use the delay pattern:
codebook k of frame t is in row t + k. With K = 4 codebooks and T = 3 frames (``.`` is BOC, ``#`` is
EOC, ``tk`` is frame t's code in codebook k)::

              row 0   1   2   3   4   5
    codebook 0   00  10  20   #   #   #
    codebook 1    .  01  11  21   #   #
    codebook 2    .   .  02  12  22   #
    codebook 3    .   .   .  03  13  23

Frame 0 is the first diagonal, complete with row K - 1, and T frames need T + K - 1 rows. Every
array here is int16; codes from ``codebook_size`` upwards are special and never audio.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import numpy as np

from streaming.spec import UNKNOWN, CodecSpec, Codes

#: The largest code that int16 holds.
_LARGEST = 0x7FFF


class RowReader(Protocol):
    """Converts the rows of one utterance to frames as they come."""

    @property
    def ended(self) -> bool:
        """True once it is known that no frame follows."""

    def incomplete(self, max_frames: int) -> Codes:
        """Return the next frames ``[m, K]``, m <= ``max_frames``. A code that has not come is
        UNKNOWN.
        """

    def push_rows(self, rows: Codes) -> Codes:
        """Take rows ``[n, K]``; return the frames ``[m, K]`` that they complete, m <= n.

        Raises ValueError for a wrong shape or type and for a negative code.
        """


class RowLayout(StrEnum):
    """Layout of an utterance's frames in the rows of the talker's steps."""

    DELAYED = "delayed"
    WHOLE = "whole"

    def delay_rows(self, codec: CodecSpec) -> int:
        """Number of rows from a frame's first code to its last audible one."""
        return codec.delay_rows if self is RowLayout.DELAYED else 0

    def reader(self, codec: CodecSpec) -> RowReader:
        """Return a reader for one utterance."""
        if self is RowLayout.WHOLE:
            return WholeRows(codec.codebook_sizes)
        return DelayReverter(codec.num_codebooks, codec.codebook_size, codec.inert_codebooks)

    def rows(self, frames: Codes, codec: CodecSpec) -> Codes:
        """Return the rows that show a talker the frames ``[T, K]`` of a reference clip.

        Raises ValueError for a wrong shape or type, for a negative code, and if ``frames`` is
        empty.
        """
        if self is RowLayout.DELAYED:
            return apply_delay(frames, codec.codebook_size, codec.codebook_size + 1)
        _check(frames, codec.num_codebooks)
        if not len(frames):
            raise ValueError("there are no frames")
        return frames.copy()


class WholeRows:
    """Reads frames from rows that are each a whole frame.

    The first row with a special code ends the stream, and is not a frame.
    """

    def __init__(self, codebook_sizes: tuple[int, ...]) -> None:
        if not codebook_sizes or min(codebook_sizes) < 1:
            raise ValueError("there must be codebooks, each of a positive size")
        self._sizes = np.array(codebook_sizes, np.int16)
        self._smallest = min(codebook_sizes)
        #: Whether a row with a special code has come.
        self.ended = False

    def incomplete(self, max_frames: int) -> Codes:
        """Return ``[0, K]``: no frame is ever incomplete."""
        return np.empty((0, len(self._sizes)), np.int16)

    def push_rows(self, rows: Codes) -> Codes:
        """Take rows ``[n, K]``; return those that are frames. Rows after the end are checked and
        ignored. Raises ValueError for a wrong shape or type and for a negative code.
        """
        may_be_special = _check(rows, len(self._sizes), self._smallest)
        if self.ended:
            return rows[:0].copy()
        if may_be_special:
            special = (rows >= self._sizes).any(axis=1)
            if special.any():
                self.ended = True
                rows = rows[: int(special.argmax())]
        return rows.copy()


class DelayReverter:
    """Converts the rows of one utterance to frames as they come.

    The first frame with a special code ends the stream: neither it nor anything after it is audio.
    A special code is never clamped to a real one, because that real code would be audible.

    In the last ``inert`` codebooks all codes sound the same. Each frame has code 0 there, and is
    complete without waiting for them.
    """

    def __init__(self, num_codebooks: int, codebook_size: int, inert: int = 0) -> None:
        if num_codebooks < 1 or codebook_size < 1:
            raise ValueError("num_codebooks and codebook_size must be positive")
        if not 0 <= inert < num_codebooks:
            raise ValueError("at least the first codebook must be audible")
        self._num_codebooks = num_codebooks
        self._audible = num_codebooks - inert
        self._codebook_size = codebook_size
        # Audible codes of the rows with codes of incomplete frames: at most K - 1 rows.
        self._tail: Codes = np.empty((0, self._audible), np.int16)
        self._is_plain = True  # no special code among them
        #: Whether the next frame is known to hold a special code, so that no frame follows. This is
        #: known before the frame is complete, usually one row sooner.
        self.ended = False

    def incomplete(self, max_frames: int) -> Codes:
        """Return the next frames ``[m, K]``, m <= ``max_frames``. A code that has not come is
        UNKNOWN.

        There are at most K - 1, each with one code less than the last, and none after the end is
        known.
        """
        rows = self._tail
        audible = self._audible
        count = 0 if self.ended else min(max_frames, len(rows))
        frames = np.full((count, self._num_codebooks), UNKNOWN, np.int16)
        frames[:, audible:] = 0
        for ahead in range(count):
            known = min(audible, len(rows) - ahead)
            codes = rows[ahead : ahead + known, :known].diagonal()
            if (codes >= self._codebook_size).any():
                return frames[:ahead]
            frames[ahead, :known] = codes
        return frames

    def push_rows(self, rows: Codes) -> Codes:
        """Take rows ``[n, K]``; return the frames ``[m, K]`` that they complete, m <= n.

        Rows after the end are checked and ignored. Raises ValueError for a wrong shape or type and
        for a negative code.
        """
        has_special = _check(rows, self._num_codebooks, self._codebook_size)
        if self.ended:
            return rows[:0].copy()
        frames = self._complete(rows[:, : self._audible], has_special)
        inert = self._num_codebooks - self._audible
        return np.pad(frames, ((0, 0), (0, inert))) if inert else frames

    def _complete(self, rows: Codes, has_special: bool) -> Codes:
        """Return the frames that these rows complete, without those at or after the end."""
        held = np.concatenate([self._tail, rows])
        frames = _diagonals(held)
        if not has_special and self._is_plain:  # the usual case
            self._tail = held[len(frames) :]
            return frames
        special = (frames >= self._codebook_size).any(axis=1)
        if special.any():
            self.ended = True
            frames = frames[: int(special.argmax())]
        else:
            self._tail = held[len(frames) :]
            self._is_plain = not (self._tail >= self._codebook_size).any()
            # The diagonal of the remaining rows holds the next frame's codes so far.
            self.ended = bool((np.diagonal(self._tail) >= self._codebook_size).any())
        return frames


def apply_delay(frames: Codes, boc: int, eoc: int) -> Codes:
    """Convert frames ``[T, K]`` to delayed rows ``[T + K - 1, K]``, filled up with BOC and EOC.

    This is how a talker is shown reference audio. Raises ValueError for a wrong shape or type, for
    a negative code, and if ``frames`` is empty.
    """
    _check(frames, None)
    total, num_codebooks = frames.shape
    if not total:
        raise ValueError("there are no frames to delay")
    rows = np.full((total + num_codebooks - 1, num_codebooks), eoc, np.int16)
    for k in range(num_codebooks):
        rows[:k, k] = boc
        rows[k : k + total, k] = frames[:, k]
    return rows


def _diagonals(rows: Codes) -> Codes:
    """Return the diagonals of ``rows``, its frames: each code is one row and one column further."""
    total, books = rows.shape
    if total < books:
        return np.empty((0, books), np.int16)
    rows = np.ascontiguousarray(rows)
    down, right = rows.strides
    return np.ndarray((total - books + 1, books), np.int16, rows, 0, (down, down + right)).copy()


def _check(codes: Codes, num_codebooks: int | None, codebook_size: int = 0) -> bool:
    """Validate ``codes``; return whether one of them is ``codebook_size`` or more."""
    if codes.ndim != 2 or codes.dtype != np.int16 or not codes.shape[1]:
        raise ValueError("codes must be int16 of shape [n, K]")
    if num_codebooks is not None and codes.shape[1] != num_codebooks:
        raise ValueError(f"expected {num_codebooks} codebooks, got {codes.shape[1]}")
    if not codes.size:
        return False
    # As unsigned, negative codes are the largest. ``reduce`` avoids the Python wrapper of ``max``.
    largest = int(np.maximum.reduce(codes.view(np.uint16), axis=None))
    if largest > _LARGEST:
        raise ValueError("codes must not be negative")
    return largest >= codebook_size

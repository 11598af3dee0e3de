"""The batch shapes that a GPU's graphs are captured for, and how windows are placed in them.

A CUDA graph has fixed shapes and fixed addresses, so one is captured at start-up for each *bucket*:
a number of rows, and a number of new frames between two contexts as wide as the receptive field. A
window fits into the smallest bucket with at least as many new frames::

    bucket   |< left_frames >|===== new_frames =====|< right_frames >|
    window           |< left |= new =|< lookahead >|
                     ^ begin                       ^ end

Each row of the laid-out batch ends with its begin and end, and the decoder sets everything outside
them to zero (``LaidOutDecoder.decode_laid_out``). So windows of different lengths run together, and
padding changes no sample. Pure arithmetic: no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from codec.batching import BatchLimits
from streaming.ports import CodecDecoder
from streaming.spec import CodecSpec, Codes
from streaming.window import DecodeWindow

#: Ratio of each length to the one before, which limits the padding of a window.
_GROWTH = 1.5


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The shape of one graph: ``rows`` windows of up to ``new_frames`` new frames. ``interior``:
    for windows with the full left context and the usual lookahead, without masks.
    """

    new_frames: int
    rows: int
    interior: bool = False


@dataclass(frozen=True, slots=True)
class Buckets:
    """All buckets that are captured: each of ``rows`` with each of ``lengths``, ascending.

    ``left`` and ``right`` are the receptive field. With a ``lookahead`` there are interior buckets
    too, for windows with exactly that lookahead. Implements ``codec.batching.Grouping``: windows
    run together if they fit into buckets of one kind and length.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    left: int
    right: int
    lookahead: int | None = None

    @staticmethod
    def of(limits: BatchLimits, spec: CodecSpec, lookahead: int | None = None) -> Buckets:
        """Return buckets for every window that the queue yields under ``limits``, and interior ones
        for windows of this ``lookahead``, if it is given and within the receptive field.

        Lengths go up to the longest piece. Rows double up to the largest batch.
        """
        lengths = [1]
        while lengths[-1] < limits.piece_frames:
            longer = max(lengths[-1] + 1, int(lengths[-1] * _GROWTH))
            lengths.append(min(longer, limits.piece_frames))
        rows = [1]
        while rows[-1] < limits.rows:
            rows.append(min(2 * rows[-1], limits.rows))
        left, right = spec.left_frames, spec.right_frames
        steady = lookahead if lookahead is not None and lookahead <= right else None
        return Buckets(tuple(rows), tuple(lengths), left, right, steady)

    def all(self) -> list[Bucket]:
        """Return all buckets, the largest first, so that smaller ones find enough memory."""
        kinds = (False,) if self.lookahead is None else (False, True)
        buckets = [
            Bucket(length, rows, interior)
            for length in self.lengths
            for rows in self.rows
            for interior in kinds
        ]
        return sorted(buckets, key=lambda b: (b.new_frames * b.rows, b.rows), reverse=True)

    def length(self, new_frames: int) -> int | None:
        """The smallest length that holds ``new_frames``; None if none does."""
        at = bisect_left(self.lengths, new_frames)
        return self.lengths[at] if at < len(self.lengths) else None

    def is_interior(self, window: DecodeWindow) -> bool:
        """Whether an interior bucket holds the window: no edge of its stream is near enough to be
        heard, except for the end of the lookahead, which is the bucket's own edge.
        """
        return window.left_context >= self.left and window.lookahead == self.lookahead

    def fit(self, rows: int, length: int, interior: bool = False) -> Bucket:
        """Return the smallest bucket of ``length`` for ``rows`` rows. ValueError if there is
        none.
        """
        if length not in self.lengths or rows > self.rows[-1]:
            raise ValueError(f"no bucket holds {rows} rows of {length} frames")
        return Bucket(length, self.rows[bisect_left(self.rows, rows)], interior)

    def key(self, piece: DecodeWindow) -> Hashable:
        """See ``codec.batching.Grouping``."""
        return self.length(piece.new_frames) or piece.new_frames, self.is_interior(piece)

    def frames(self, piece: DecodeWindow) -> int:
        """Number of frames that a piece costs in a batch, including padding."""
        right = piece.lookahead if self.is_interior(piece) else self.right
        return self.left + (self.length(piece.new_frames) or piece.new_frames) + right

    def row_size(self, bucket: Bucket, num_codebooks: int) -> int:
        """Number of values in a laid-out row: codes and, if it is masked, begin and end."""
        if bucket.interior:
            assert self.lookahead is not None
            return num_codebooks * (self.left + bucket.new_frames + self.lookahead)
        return num_codebooks * (self.left + bucket.new_frames + self.right) + 2

    def lay_out(self, windows: Sequence[DecodeWindow], rows: Codes, interior: bool = False) -> None:
        """Write windows into ``rows`` ``[B, ...]`` int16 of a bucket's size, where B is at least
        their number.

        Contexts beyond the receptive field are left out. Rows without a window become empty
        streams. In an ``interior`` bucket windows are aligned to the right: the space before them
        is too far away to affect their new frames.
        """
        rows[:] = 0
        if interior:
            for window, row in zip(windows, rows, strict=False):
                needed = window.codes[:, window.left_context - self.left :]
                row.reshape(len(needed), -1)[:, -needed.shape[1] :] = needed
            return
        for window, row in zip(windows, rows, strict=False):
            left = min(window.left_context, self.left)
            lookahead = min(window.lookahead, self.right)
            first = window.left_context - left
            end = window.left_context + window.new_frames + lookahead
            codes = row[:-2].reshape(window.codes.shape[0], -1)
            begin = self.left - left
            codes[:, begin : begin + end - first] = window.codes[:, first:end]
            row[-2:] = begin, begin + end - first


@runtime_checkable
class BucketedDecoder(CodecDecoder, Protocol):
    """A decoder that has a graph for each bucket."""

    @property
    def buckets(self) -> Buckets:
        """The buckets that were captured."""

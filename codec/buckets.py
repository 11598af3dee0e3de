"""The shapes of batches that a GPU's graphs are captured for, and how windows fit into them.

A CUDA graph has fixed shapes and fixed addresses, so one is captured at the start for each
*bucket*: so many rows, and so many new frames between two contexts as wide as the receptive
field. Any window fits into the smallest bucket with as many new frames or more::

    bucket   |< left_frames >|===== new_frames =====|< right_frames >|
    window           |< left |= new =|< lookahead >|
                     ^ begin                       ^ end

Each row of the laid-out batch ends with its begin and end, and the decoder makes zero what lies
outside them (``LaidOutDecoder.decode_laid_out``). So windows of different lengths run together,
and what is padding changes no sample. Pure arithmetic: no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from codec.batching import BatchLimits
from streaming.spec import CodecSpec, Codes
from streaming.window import DecodeWindow

#: Each length is about this much more than the one before: what a window may be padded by.
_GROWTH = 1.5


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The shape of one graph: ``rows`` windows of up to ``new_frames`` new frames. ``interior``:
    for windows with all of the left context and the steady lookahead, without masks.
    """

    new_frames: int
    rows: int
    interior: bool = False


@dataclass(frozen=True, slots=True)
class Buckets:
    """All that are captured: every one of ``rows`` with every one of ``lengths``, ascending.

    ``left`` and ``right`` are the receptive field. With a ``lookahead`` there are interior buckets
    as well, for windows of just that lookahead. Implements ``codec.batching.Grouping``: windows
    run together when they fit into buckets of one kind and length.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    left: int
    right: int
    lookahead: int | None = None

    @staticmethod
    def of(limits: BatchLimits, spec: CodecSpec, lookahead: int | None = None) -> Buckets:
        """Buckets for every window that the queue hands out under ``limits``; interior ones for
        windows of this ``lookahead``, if one is given that the receptive field holds.

        Lengths go up to the longest piece, rows by doubling up to the largest batch.
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
        """Largest first, so that the smaller ones find the memory that they need."""
        kinds = (False,) if self.lookahead is None else (False, True)
        made = [
            Bucket(length, rows, interior)
            for length in self.lengths
            for rows in self.rows
            for interior in kinds
        ]
        return sorted(made, key=lambda b: (b.new_frames * b.rows, b.rows), reverse=True)

    def length(self, new_frames: int) -> int | None:
        """The smallest length that holds so many new frames; None if there is none."""
        at = bisect_left(self.lengths, new_frames)
        return self.lengths[at] if at < len(self.lengths) else None

    def is_interior(self, window: DecodeWindow) -> bool:
        """Whether an interior bucket holds the window: no edge of its stream is near enough to be
        heard, but for the lookahead's end, which is where the bucket's is.
        """
        return window.left_context >= self.left and window.lookahead == self.lookahead

    def fit(self, rows: int, length: int, interior: bool = False) -> Bucket:
        """The smallest bucket of ``length`` that holds so many rows. ValueError if none does."""
        if length not in self.lengths or rows > self.rows[-1]:
            raise ValueError(f"no bucket holds {rows} rows of {length} frames")
        return Bucket(length, self.rows[bisect_left(self.rows, rows)], interior)

    def key(self, piece: DecodeWindow) -> Hashable:
        """See ``codec.batching.Grouping``."""
        return self.length(piece.new_frames) or piece.new_frames, self.is_interior(piece)

    def frames(self, piece: DecodeWindow) -> int:
        """The cost of a piece in a batch, padding included."""
        right = piece.lookahead if self.is_interior(piece) else self.right
        return self.left + (self.length(piece.new_frames) or piece.new_frames) + right

    def row_size(self, bucket: Bucket, num_codebooks: int) -> int:
        """Numbers in one laid-out row: codes, and of a masked one begin and end."""
        if bucket.interior:
            assert self.lookahead is not None
            return num_codebooks * (self.left + bucket.new_frames + self.lookahead)
        return num_codebooks * (self.left + bucket.new_frames + self.right) + 2

    def lay_out(self, windows: Sequence[DecodeWindow], rows: Codes, interior: bool = False) -> None:
        """Write windows into ``rows`` ``[B, ...]`` int16 of a bucket's size, with B at least their
        number.

        Contexts beyond the receptive field are left out. Rows without a window become empty
        streams. In an ``interior`` bucket windows stand at the right: what is before them is too
        far away for their new frames to hear.
        """
        rows[:] = 0
        if interior:
            for window, row in zip(windows, rows, strict=False):
                needed = window.codes[:, window.left_context - self.left :]
                row.reshape(len(needed), -1)[:, -needed.shape[1] :] = needed
            return
        for window, row in zip(windows, rows, strict=False):
            left, lookahead = min(window.left_context, self.left), min(window.lookahead, self.right)
            first = window.left_context - left
            end = window.left_context + window.new_frames + lookahead
            codes = row[:-2].reshape(window.codes.shape[0], -1)
            begin = self.left - left
            codes[:, begin : begin + end - first] = window.codes[:, first:end]
            row[-2:] = begin, begin + end - first

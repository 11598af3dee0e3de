"""The shapes of batches that a GPU's graphs are captured for, and how windows fit into them.

A CUDA graph has fixed shapes and fixed addresses, so one is captured at the start for each
*bucket*: so many rows, and so many new frames between two contexts as wide as the receptive
field. Any window fits into the smallest bucket with as many new frames or more::

    bucket   |<---- reach ---->|===== new_frames =====|<---- reach ---->|
    window             |< left |= new =|< lookahead >|
                       ^ begin                       ^ end

Each row of the laid-out batch ends with its begin and end, and the decoder makes zero what lies
outside them (``HiggsDecoder.decode_laid_out``). So windows of different lengths run together,
and what is padding changes no sample. Pure arithmetic: no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from codec.batching import BatchLimits
from streaming.spec import Codes
from streaming.window import DecodeWindow

#: Each length is about this much more than the one before: what a window may be padded by.
_GROWTH = 1.5


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The shape of one graph: ``rows`` windows of up to ``new_frames`` new frames."""

    new_frames: int
    rows: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """All that are captured: every one of ``rows`` with every one of ``lengths``, ascending.

    ``reach`` is the receptive field. Implements ``codec.batching.Grouping``: windows run
    together when they fit into buckets of one length.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    reach: int

    @staticmethod
    def of(limits: BatchLimits, reach: int) -> Buckets:
        """Buckets for every window that the queue hands out under ``limits``.

        Lengths go up to the longest piece, rows by doubling up to the largest batch.
        """
        lengths = [1]
        while lengths[-1] < limits.piece_frames:
            longer = max(lengths[-1] + 1, int(lengths[-1] * _GROWTH))
            lengths.append(min(longer, limits.piece_frames))
        rows = [1]
        while rows[-1] < limits.rows:
            rows.append(min(2 * rows[-1], limits.rows))
        return Buckets(tuple(rows), tuple(lengths), reach)

    def all(self) -> list[Bucket]:
        """Largest first, so that the smaller ones find the memory that they need."""
        made = [Bucket(length, rows) for length in self.lengths for rows in self.rows]
        return sorted(made, key=lambda b: (b.new_frames * b.rows, b.rows), reverse=True)

    def length(self, new_frames: int) -> int | None:
        """The smallest length that holds so many new frames; None if there is none."""
        at = bisect_left(self.lengths, new_frames)
        return self.lengths[at] if at < len(self.lengths) else None

    def fit(self, rows: int, length: int) -> Bucket:
        """The smallest bucket of ``length`` that holds so many rows. ValueError if none does."""
        if length not in self.lengths or rows > self.rows[-1]:
            raise ValueError(f"no bucket holds {rows} rows of {length} frames")
        return Bucket(length, self.rows[bisect_left(self.rows, rows)])

    def key(self, piece: DecodeWindow) -> Hashable:
        """See ``codec.batching.Grouping``."""
        return self.length(piece.new_frames) or piece.new_frames

    def frames(self, piece: DecodeWindow) -> int:
        """What a piece costs a batch, padding included."""
        return (self.length(piece.new_frames) or piece.new_frames) + 2 * self.reach

    def row_size(self, bucket: Bucket, num_codebooks: int) -> int:
        """Numbers in one laid-out row: codes, begin and end."""
        return num_codebooks * (bucket.new_frames + 2 * self.reach) + 2


def lay_out(windows: Sequence[DecodeWindow], reach: int, rows: Codes) -> None:
    """Write windows into ``rows`` ``[B, K * T + 2]`` int16, with B at least their number.

    Contexts beyond ``reach`` are left out. Rows without a window become empty streams.
    """
    rows[:] = 0
    for window, row in zip(windows, rows, strict=False):
        left, lookahead = min(window.left_context, reach), min(window.lookahead, reach)
        first = window.left_context - left
        end = window.left_context + window.new_frames + lookahead
        codes = row[:-2].reshape(window.codes.shape[0], -1)
        begin = reach - left
        codes[:, begin : begin + end - first] = window.codes[:, first:end]
        row[-2:] = begin, begin + end - first

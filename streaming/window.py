"""The window of frames that one codec call sees, and the chunker that cuts a stream into them.

A stream of frames ``0 1 2 ...`` is emitted in chunks. The codec needs neighbours on both
sides of a chunk, so it is given a window::

      left context     new frames     lookahead
    |--------------|===============|-----------|
                   ^ first_frame

and only the samples of the new frames leave it: the rest is trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming.spec import Codes, Samples


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """One piece of codec work, a pure function of what it holds.

    ``codes`` is ``[K, T]`` int16 with ``T = left_context + new_frames + lookahead``. Where
    the window begins or ends inside the stream, the decoder sees its edge as the edge of
    the stream (it pads with zeros there); contexts as wide as the receptive field make
    that unnoticeable. ``first_frame`` is the stream's number of the first new frame.
    """

    codes: Codes
    left_context: int
    new_frames: int
    lookahead: int
    first_frame: int = 0
    is_last: bool = False

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.int16:
            raise ValueError("codes must be int16 of shape [K, T]")
        if min(self.left_context, self.lookahead, self.first_frame) < 0 or self.new_frames < 1:
            raise ValueError("a window needs at least one new frame and no negative context")
        if self.codes.shape[1] != self.left_context + self.new_frames + self.lookahead:
            raise ValueError("codes do not fill the window")

    def trim(self, pcm: Samples) -> Samples:
        """Cut the decoding of the whole window, ``[T * hop]``, down to the new frames.

        Raises ValueError if ``pcm`` is not a whole number of samples per frame: a decoder
        that drops or adds samples would shift every seam after it.
        """
        frames = self.codes.shape[1]
        hop, rest = divmod(len(pcm), frames)
        if pcm.ndim != 1 or rest or not hop:
            raise ValueError(f"{pcm.shape} samples do not fit a window of {frames} frames")
        return pcm[self.left_context * hop : (self.left_context + self.new_frames) * hop]

"""The window of frames for one codec call, and the chunker that cuts a stream into windows.

A stream of frames ``0 1 2 ...`` is emitted in chunks. The codec needs neighbours on both sides of a
chunk, so it is given a window::

      left context     new frames     lookahead
    |--------------|===============|-----------|
                   ^ first_frame

Only the samples of the new frames are used: the rest is trimmed. If a codec has state that reaches
back further (``CodecSpec.history_frames``), the window also has the frames before the left context,
so that a decoder which has lost that state can recompute it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming.spec import Codes, Samples


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """The input of one codec call, which alone determines its samples.

    ``codes`` is ``[K, T]`` int16 with ``T = left_context + new_frames + lookahead``. If the window
    begins or ends inside the stream, the decoder treats its edge as the edge of the stream and pads
    with zeros; contexts as wide as the receptive field make that inaudible. ``first_frame`` is the
    number of the first new frame in the stream. Codes of the lookahead may be UNKNOWN. ``history``
    ``[K, H]`` holds the frames before the left context, for codecs that need them. The stream may
    begin with frames that were never new ones: those of a clip that the speech continues.
    ``is_first``: no window of the stream came before.
    """

    codes: Codes
    left_context: int
    new_frames: int
    lookahead: int
    first_frame: int = 0
    is_last: bool = False
    history: Codes | None = None
    is_first: bool = False

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.int16:
            raise ValueError("codes must be int16 of shape [K, T]")
        if min(self.left_context, self.lookahead, self.first_frame) < 0 or self.new_frames < 1:
            raise ValueError("a window needs at least one new frame and no negative context")
        if self.codes.shape[1] != self.left_context + self.new_frames + self.lookahead:
            raise ValueError("codes do not fill the window")
        if self.history is not None:
            if self.history.ndim != 2 or self.history.dtype != np.int16:
                raise ValueError("the history must be int16 of shape [K, H]")
            if self.history.shape[0] != self.codes.shape[0]:
                raise ValueError("the history has another number of codebooks than the window")
            if self.history.shape[1] + self.left_context > self.first_frame:
                raise ValueError("the window holds more frames than the stream has had")

    def trim(self, pcm: Samples) -> Samples:
        """Trim the samples of the whole window, ``[T * hop]``, to those of the new frames.

        Raises ValueError if ``pcm`` is not a whole number of samples per frame: a decoder that
        drops or adds samples would shift every seam after it.
        """
        frames = self.codes.shape[1]
        hop, rest = divmod(len(pcm), frames)
        if pcm.ndim != 1 or rest or not hop:
            raise ValueError(f"{pcm.shape} samples do not fit a window of {frames} frames")
        return pcm[self.left_context * hop : (self.left_context + self.new_frames) * hop]


class SlidingWindowChunker:
    """Cuts one stream of frames into windows, in order and without loss.

    It keeps the pending frames, and the last ``left_context_frames`` and ``history_frames`` of the
    emitted ones. The schedule decides how many frames the next window takes.
    """

    def __init__(self, left_context_frames: int, history_frames: int = 0) -> None:
        if min(left_context_frames, history_frames) < 0:
            raise ValueError("contexts must not be negative")
        self._left_context_frames = left_context_frames
        self._history_frames = history_frames
        self._frames: Codes | None = None  # [emitted and kept + pending, K], without ``_new``
        self._kept = 0
        #: The newest pending frames, as they were pushed.
        self._new: list[Codes] = []
        #: Number of frames among them.
        self._new_frames = 0
        #: Number of frames emitted as new frames of a window.
        self.emitted = 0
        #: Number of frames before those.
        self._continued = 0
        #: Whether ``finish`` was called, so that only the pending frames are left.
        self.finished = False

    @property
    def pending(self) -> int:
        """Number of frames pushed and not yet emitted."""
        return 0 if self._frames is None else len(self._frames) - self._kept + self._new_frames

    def continue_from(self, frames: Codes) -> None:
        """Let the stream begin with frames ``[m, K]`` int16 that are emitted in no window, only as
        context. Raises RuntimeError after ``push``.
        """
        if self._frames is not None:
            raise RuntimeError("the stream of frames has begun")
        self._continued = len(frames)
        self._kept = min(len(frames), self._left_context_frames + self._history_frames)
        self._frames = frames[len(frames) - self._kept :].copy()

    def push(self, frames: Codes) -> None:
        """Add frames ``[m, K]`` int16, m >= 0.

        Raises ValueError for a wrong shape or type, RuntimeError after ``finish``.
        """
        if self.finished:
            raise RuntimeError("the stream of frames has finished")
        if frames.ndim != 2 or frames.dtype != np.int16:
            raise ValueError("frames must be int16 of shape [m, K]")
        if self._frames is None:
            self._frames = frames.copy()
        elif frames.shape[1] != self._frames.shape[1]:
            raise ValueError(f"expected {self._frames.shape[1]} codebooks, got {frames.shape[1]}")
        else:  # joined only for a window, of which most have many rows
            self._new.append(frames.copy())
            self._new_frames += len(frames)

    def finish(self) -> None:
        """Record that no more frames come. May be called again."""
        self.finished = True

    def take(
        self, new_frames: int, lookahead: int, incomplete: Codes | None = None
    ) -> DecodeWindow:
        """Emit the next ``new_frames`` frames with ``lookahead`` frames after them. The
        ``incomplete`` frames ``[m, K]``, which follow all pending ones, are added to the lookahead.

        At the end of a finished stream the lookahead is cut to the frames there are, and the window
        that takes the last frame is the last. Raises ValueError if fewer frames are pending than
        that.
        """
        if new_frames < 1 or lookahead < 0:
            raise ValueError("a window needs at least one new frame and no negative lookahead")
        if self.finished:
            lookahead = min(lookahead, max(0, self.pending - new_frames))
        if self._frames is None or new_frames + lookahead > self.pending:
            raise ValueError(f"{new_frames} + {lookahead} frames requested, {self.pending} pending")
        if self._new:
            self._frames = np.concatenate([self._frames, *self._new])
            self._new.clear()
            self._new_frames = 0
        context = min(self._kept, self._left_context_frames)
        history = self._kept - context
        codes = self._frames[history : self._kept + new_frames + lookahead]
        if incomplete is not None and len(incomplete):
            if new_frames + lookahead != self.pending:
                raise ValueError("complete frames lie between the window and the incomplete ones")
            codes = np.concatenate([codes, incomplete])
            lookahead += len(incomplete)
        window = DecodeWindow(
            codes=np.ascontiguousarray(codes.T),
            left_context=context,
            new_frames=new_frames,
            lookahead=lookahead,
            first_frame=self._continued + self.emitted,
            is_last=self.finished and new_frames == self.pending,
            history=np.ascontiguousarray(self._frames[:history].T) if history else None,
            is_first=self.emitted == 0,
        )
        self.emitted += new_frames
        kept = min(self._continued + self.emitted, self._left_context_frames + self._history_frames)
        # A copy, so that the old, larger array is freed.
        self._frames = self._frames[self._kept + new_frames - kept :].copy()
        self._kept = kept
        return window

"""What the chunk schedule may choose from, what is promised to it, and what follows.

The symbols and the derivation of both formulas are in ``streaming.schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """What the schedule may choose from.

    ``delay_rows`` is K - 1 for a delay pattern. ``first_chunk_frames`` fixes the first
    chunk's size; None computes it. Of the first lookahead so many as ``incomplete_frames`` may be
    frames that have begun and are not complete. Where ``first_lookahead_frames`` equals
    ``lookahead_frames`` no window gets less, however late it is: set both to the receptive
    field for streamed audio equal to one-shot. ``guard_s`` is audio that should always be
    left at the client, against the network's jitter. ``max_hold_frames`` bounds what is
    held back before a start, and ``horizon_frames`` is the length assumed of an utterance
    whose length nobody expects; it matters only to talkers slower than playback.

    Two chunks may exceed ``max_chunk_frames``: a first one that has to, and the last one,
    by half.
    """

    frame_s: float
    delay_rows: int
    left_context_frames: int
    first_lookahead_frames: int = 2
    lookahead_frames: int = 4
    incomplete_frames: int = 0
    max_chunk_frames: int = 50
    first_chunk_frames: int | None = None
    min_chunk_frames: int = 1
    growth: float = 2.0
    guard_s: float = 0.0
    max_hold_frames: int = 150
    horizon_frames: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.frame_s < inf or not 0 <= self.guard_s < inf or not self.growth >= 1:
            raise ValueError("frame_s > 0, guard_s >= 0 and growth >= 1 are needed")
        if min(self.delay_rows, self.left_context_frames, self.first_lookahead_frames) < 0:
            raise ValueError("delay, context and lookahead must not be negative")
        if self.lookahead_frames < self.first_lookahead_frames:
            raise ValueError("lookahead_frames must be at least first_lookahead_frames")
        if not 0 <= self.incomplete_frames <= min(self.delay_rows, self.first_lookahead_frames):
            raise ValueError("no more frames can be incomplete than have begun and are looked at")
        if not 1 <= self.min_chunk_frames <= self.max_chunk_frames:
            raise ValueError("1 <= min_chunk_frames <= max_chunk_frames is needed")
        if self.max_hold_frames < 1 or self.horizon_frames < 1:
            raise ValueError("max_hold_frames and horizon_frames must be positive")
        if self.first_chunk_frames is not None and self.first_chunk_frames < 1:
            raise ValueError("first_chunk_frames must be positive")


@dataclass(frozen=True, slots=True)
class PaceBounds:
    """Upper bounds on the pace of a talker and its codec, all in seconds.

    ``row_s`` is S and ``burst_s`` is B, ``queue_s`` is Q, ``decode_fixed_s`` is d0 and
    ``decode_frame_s`` is d1, per frame of the whole window. ``decode_floor`` is f, from 0
    to 1: a decode takes at least that share of d0 + d1 * w. ``beginners_s`` is G.
    ``codec_share`` is the part of the codec's time that is one stream's, as bounds count time.
    """

    row_s: float
    burst_s: float
    queue_s: float
    decode_fixed_s: float
    decode_frame_s: float
    decode_floor: float = 0.0
    beginners_s: float = 0.0
    codec_share: float = 1.0

    def __post_init__(self) -> None:
        pace, waits = (self.row_s, self.burst_s), (self.queue_s, self.beginners_s)
        times = (*pace, *waits, self.decode_fixed_s, self.decode_frame_s)
        if not all(0 <= value < inf for value in times) or not 0 <= self.decode_floor <= 1:
            raise ValueError("bounds must be finite, not negative, and decode_floor at most 1")
        if not 0 < self.codec_share < inf:
            raise ValueError("a stream has some share of the codec")

    @property
    def wait_s(self) -> float:
        """The longest that a window waits for the codec now: Q + G."""
        return self.queue_s + self.beginners_s

    def decode_s(self, window_frames: int) -> float:
        """The longest that a window of so many frames takes in the codec, without the queue."""
        return self.decode_fixed_s + self.decode_frame_s * window_frames


def sustainable_frames(settings: ScheduleSettings, bounds: PaceBounds) -> int:
    """m0: the smallest chunk with which the codec keeps up with playback (step 1).

    The largest chunk, if none does.
    """
    spare_s = settings.frame_s - bounds.decode_frame_s
    if spare_s <= 0:
        return settings.max_chunk_frames
    context = settings.left_context_frames + settings.lookahead_frames
    frames = ceil((bounds.queue_s + bounds.decode_s(context)) / spare_s - _EPS)
    return max(settings.min_chunk_frames, min(settings.max_chunk_frames, frames))


def start_frames(
    settings: ScheduleSettings, bounds: PaceBounds, *, left_frames: int, lead_s: float = 0.0
) -> int:
    """n1: the fewest frames with which playback may start and never run dry (step 2).

    ``left_frames`` is how many frames are still to be emitted; it matters if S > T (step 5).
    ``lead_s`` is audio that the client still has.
    """
    m0 = sustainable_frames(settings, bounds)
    window = settings.left_context_frames + m0 + settings.lookahead_frames
    decoded_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window)
    need_s = m0 * bounds.row_s + bounds.burst_s + decoded_s
    floor_s = bounds.decode_floor * bounds.decode_s(settings.first_lookahead_frames)
    if bounds.row_s <= settings.frame_s:
        per_frame_s, floor_frame_s = settings.frame_s, bounds.decode_floor * bounds.decode_frame_s
    else:
        # Each frame that is held back is one that need not be waited for later. They are sent
        # in pieces, so only one piece's decode comes before the first sound: leave it out.
        need_s += left_frames * (bounds.row_s - settings.frame_s)
        per_frame_s, floor_frame_s = bounds.row_s, 0.0
    frames = ceil((need_s - floor_s) / (per_frame_s + floor_frame_s) - _EPS)
    if lead_s > 0:
        frames = min(frames, ceil((need_s - lead_s) / per_frame_s - _EPS))
    # However late it is sent itself, it lasts while the next chunk is decoded.
    least = max(m0, ceil(decoded_s / settings.frame_s - _EPS))
    return min(settings.max_hold_frames, max(least, frames))

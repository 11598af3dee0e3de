"""The chunk schedule: the number of frames of each chunk, small but without underruns.

``PaceBounds`` promises: between any two rows i < j at most ``(j - i) * S + B`` seconds pass. A
window of w new and looked-at frames leaves the codec at most ``Q + d(w)`` after it was handed over,
with ``d(w) = d0 + d1 * w``, or G later while other streams begin. T is the duration of a frame, r
the lookahead. The left context is part of d0: it hardly costs anything, since a layer computes only
what the window's new frames need of it. One window of an utterance is in the codec at a time.

1. **The smallest sustainable chunk.** The codec keeps up with playback if a chunk is decoded
   while it lasts: ``Q + d(m + r) <= m T``, so ``m0 = ceil((Q + d(r)) / (T - d1))``.
2. **The first chunk.** Emitted at time 0, it is heard at ``f d(n1 + r1)`` at the earliest, where f
   is the least share of its bound that a decode takes. The client runs out of audio ``n1 T``
   later. By then the next m0 frames must have come, after ``m0 S + B`` at most, and have been
   decoded, after ``Q + G + d(m0 + r)`` more, with ``guard_s`` to spare. The first chunk is the
   smallest such n1 that also outlasts this decode if it is itself as late as possible.
3. **Later chunks** may be emitted until ``U = dry_at - guard_s - Q - G - d``. By step 2 and
   ``S <= T`` at least m0 frames are in hand then, and again after the chunk. A chunk waits for its
   target, ``growth`` times the last chunk, but not past U. It takes at most the target, or half
   of the frames that would just be in time: taking all would leave no margin, and occupy the codec
   for longest. Nor does it exceed this stream's share of the codec's time until ``dry_at``, except
   for m0, since streams that begin together want larger chunks together. If the wide lookahead
   would be late, the first chunk's narrow one is used.
4. **The end.** The rest is sent as one chunk if it is at most 1.5 times the target, or if it would
   be decoded anyway as lookahead.
5. **S > T.** The talker is slower than playback. The deficit of all frames to come,
   ``left * (S - T)``, must be in hand at the start, as far as ``max_hold_frames`` allows.

After an underrun the utterance starts again with step 2. Times are seconds on the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """Settings of the schedule.

    If ``first_lookahead_frames`` equals ``lookahead_frames``, no window gets less, however late it
    is: set both to the receptive field to make streamed audio equal to one-shot audio.
    """

    #: Duration of a frame.
    frame_s: float
    #: Rows from a frame's first code to its last: K - 1 for a delay pattern.
    delay_rows: int
    #: Frames before the new ones in each window.
    left_context_frames: int
    #: Lookahead of the first chunk, and of later chunks that would be late.
    first_lookahead_frames: int = 2
    #: Lookahead of the other chunks.
    lookahead_frames: int = 4
    #: Frames of the first lookahead that may have begun without being complete.
    incomplete_frames: int = 0
    #: Largest chunk, except for a first chunk that must be larger, and for the last one, by half.
    max_chunk_frames: int = 50
    #: Size of the first chunk; None computes it.
    first_chunk_frames: int | None = None
    #: Smallest chunk.
    min_chunk_frames: int = 1
    #: Factor from one chunk to the next.
    growth: float = 2.0
    #: Audio that should always be left at the client, against network jitter.
    guard_s: float = 0.0
    #: Maximum number of frames held back before a start.
    max_hold_frames: int = 150
    #: Assumed length of an utterance of unknown length, if the talker is slower than playback.
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
    """Upper bounds on the pace of a talker and its codec, with their letters in the text above."""

    #: S, the seconds per row.
    row_s: float
    #: B, the largest delay of a row.
    burst_s: float
    #: Q, the longest wait of a window in the codec's queue.
    queue_s: float
    #: d0, the seconds per window.
    decode_fixed_s: float
    #: d1, the seconds per new frame and per frame of lookahead.
    decode_frame_s: float
    #: f, from 0 to 1: a decode takes at least that share of d0 + d1 * w.
    decode_floor: float = 0.0
    #: G, the additional wait while other streams begin.
    beginners_s: float = 0.0
    #: One stream's share of the codec's time, in terms of ``decode_s``.
    codec_share: float = 1.0
    #: Inaudible audio of a context's first chunk, which is not sent.
    trimmed_s: float = 0.0

    def __post_init__(self) -> None:
        waits = (self.queue_s, self.beginners_s, self.trimmed_s)
        times = (self.row_s, self.burst_s, *waits, self.decode_fixed_s, self.decode_frame_s)
        if not all(0 <= value < inf for value in times) or not 0 <= self.decode_floor <= 1:
            raise ValueError("bounds must be finite, not negative, and decode_floor at most 1")
        if not 0 < self.codec_share < inf:
            raise ValueError("a stream has some share of the codec")

    @property
    def wait_s(self) -> float:
        """The longest that a window may wait for the codec now: Q + G."""
        return self.queue_s + self.beginners_s

    def decode_s(self, frames: int) -> float:
        """The longest that a window of ``frames`` new and looked-at frames takes in the codec,
        without the queue.
        """
        return self.decode_fixed_s + self.decode_frame_s * frames


def sustainable_frames(settings: ScheduleSettings, bounds: PaceBounds) -> int:
    """Return m0, the smallest chunk with which the codec keeps up with playback (step 1), or the
    largest chunk if none does.
    """
    spare_s = settings.frame_s - bounds.decode_frame_s
    if spare_s <= 0:
        return settings.max_chunk_frames
    wait_s = bounds.queue_s + bounds.decode_s(settings.lookahead_frames)
    frames = ceil(wait_s / spare_s - _EPS)
    return max(settings.min_chunk_frames, min(settings.max_chunk_frames, frames))


def start_frames(
    settings: ScheduleSettings, bounds: PaceBounds, *, left_frames: int, lead_s: float = 0.0,
    trimmed_s: float = 0.0, pace: tuple[float, float] | None = None,
) -> int:  # fmt: skip
    """Return n1, the fewest frames with which playback may start and never underrun (step 2).

    ``left_frames``: number of frames still to be emitted; it matters if S > T (step 5). ``lead_s``:
    audio that the client still has. ``trimmed_s``: audio of the chunk that will not be sent.
    ``pace``: S and B, instead of those of ``bounds``.
    """
    row_s, burst_s = (bounds.row_s, bounds.burst_s) if pace is None else pace
    m0 = sustainable_frames(settings, bounds)
    decode_s = bounds.decode_s(m0 + settings.lookahead_frames)
    decoded_s = settings.guard_s + bounds.wait_s + decode_s + trimmed_s
    need_s = m0 * row_s + burst_s + decoded_s
    floor_s = bounds.decode_floor * bounds.decode_s(settings.first_lookahead_frames)
    if row_s <= settings.frame_s:
        per_frame_s = settings.frame_s
        floor_frame_s = bounds.decode_floor * bounds.decode_frame_s
    else:
        # A frame that is held back need not be waited for later. The frames are sent in several
        # chunks. Only one of these is decoded before the first sound, so that decode is not counted
        # per frame.
        need_s += left_frames * (row_s - settings.frame_s)
        per_frame_s = row_s
        floor_frame_s = 0.0
    from_first_sound = ceil((need_s - floor_s) / (per_frame_s + floor_frame_s) - _EPS)
    frames = min(from_first_sound, ceil((need_s - lead_s) / per_frame_s - _EPS))
    # Even if it is sent late, it must last while the next chunk is decoded.
    smallest = max(m0, ceil(decoded_s / settings.frame_s - _EPS))
    return min(settings.max_hold_frames, max(smallest, frames))


#: At the end of an utterance, up to this many times the target is sent as one chunk.
_LAST_CHUNK = 1.5


@dataclass(frozen=True, slots=True)
class ChunkDecision:
    """Emit ``new_frames`` now, with a lookahead of ``lookahead`` complete and then ``incomplete``
    incomplete frames. If ``new_frames`` is 0, wait.

    Ask again at ``wake_at`` (inf: no timer is needed), or after a row, a send or the end.
    """

    new_frames: int
    lookahead: int
    wake_at: float
    incomplete: int = 0


_WAIT = ChunkDecision(0, 0, inf)


class ChunkSchedule:
    """The chunks of one utterance.

    ``dry_at``: when the client runs out of the audio of earlier utterances; -inf if nothing plays.
    An utterance that starts while audio still plays has until then, so its first chunk may be
    larger.

    ``expected_frames``: an upper estimate of the utterance's length. ``is_trimmed``:
    ``bounds.trimmed_s`` of its beginning will not be sent.
    """

    def __init__(
        self,
        settings: ScheduleSettings,
        bounds: PaceBounds,
        *,
        dry_at: float = -inf,
        expected_frames: int | None = None,
        is_trimmed: bool = False,
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        #: See ``_sizes``; None after what they depend on has changed.
        self._later_sizes: tuple[int, int, int] | None = None
        #: When the client will have played all sent audio; -inf before the first send.
        self.dry_at = dry_at
        #: Assumed number of frames in all.
        self._expected = settings.horizon_frames if expected_frames is None else expected_frames
        #: Whether some of the beginning will not be sent.
        self._is_trimmed = is_trimmed
        #: Complete frames so far.
        self._frames = 0
        #: Whether no more frames come.
        self._finished = False
        #: Frames handed to the codec.
        self._emitted = 0
        #: New frames of the window in the codec; 0 if there is none.
        self._in_flight = 0
        #: New frames of the last window; 0 before the first.
        self._last_chunk = 0

    def update_bounds(self, bounds: PaceBounds) -> None:
        """Continue with newer bounds. Call ``decide`` again."""
        if bounds is not self._bounds:
            self._bounds = bounds
            self._later_sizes = None

    def on_frames(self, count: int) -> None:
        """Add ``count`` complete frames. Raises ValueError after the end."""
        if count < 0 or self._finished:
            raise ValueError("frames cannot be taken back, nor come after the end")
        self._frames += count

    def on_finished(self) -> None:
        """Record that the talker has ended, so that no more frames come."""
        self._finished = True

    def on_emitted(self, new_frames: int, lookahead: int) -> None:
        """Record that a window with ``new_frames`` new frames was handed to the codec.

        Raises ValueError if there are not enough frames, or if a window is in the codec already.
        """
        if self._in_flight or not 0 < new_frames <= self._frames - self._emitted - lookahead:
            raise ValueError(f"{new_frames} frames cannot be emitted now")
        self._emitted += new_frames
        self._in_flight = new_frames
        self._last_chunk = new_frames
        self._later_sizes = None

    def on_sent(self, new_frames: int, now: float, trimmed_s: float = 0.0) -> None:
        """Record that the samples of ``new_frames`` emitted frames were sent, except for
        ``trimmed_s`` of them.

        Raises ValueError if there are fewer frames in the codec.
        """
        if not 0 < new_frames <= self._in_flight:
            raise ValueError(f"{new_frames} frames cannot have been sent")
        self._in_flight -= new_frames
        sent_s = new_frames * self._settings.frame_s - trimmed_s
        if sent_s > _EPS:  # a chunk without sound does not begin the playback
            self.dry_at = max(self.dry_at, now) + sent_s

    def decide(self, now: float) -> ChunkDecision:
        """Decide at ``now``. The decision is to wait while a window is in the codec."""
        if self._in_flight or self._frames == self._emitted:
            return _WAIT
        lead_s = self.dry_at - now
        if lead_s < 0:
            return self._start(0.0)
        if self._emitted == 0 and self._bounds.row_s > self._settings.frame_s:
            # A gap between utterances disturbs less than the otherwise certain one inside them.
            return self._start(lead_s)
        return self._keep_up(now)

    def missing_frames(self, *, playing: bool) -> int:
        """Number of frames missing for the next chunk, by the present bounds: while audio plays,
        for a chunk of the wanted size; otherwise for the smallest that can be started with.
        """
        if playing:
            wanted = self._sizes()[1] + self._settings.lookahead_frames
        else:
            wanted = self._start_size(0.0) + self._narrowest
        return max(0, wanted - (self._frames - self._emitted))

    def _start_size(self, lead_s: float, *, in_hand: bool = False) -> int:
        """Size of the first chunk, or of the first after an underrun. ``in_hand``: the frames of
        the chunk after it need not be waited for.
        """
        if self._first_fixed is not None:
            return self._first_fixed
        bounds = self._bounds
        pace = (0.0, 0.0) if self._finished or in_hand else None
        left = max(1, self._expected - self._emitted)
        trimmed_s = bounds.trimmed_s if self._is_trimmed and not self._emitted else 0.0
        return start_frames(
            self._settings, bounds, left_frames=left, lead_s=lead_s, trimmed_s=trimmed_s, pace=pace
        )

    def _start(self, lead_s: float) -> ChunkDecision:
        """Steps 2 and 5: no audio, or too little, is playing."""
        settings = self._settings
        ready = self._frames - self._emitted
        narrow, wide = settings.first_lookahead_frames, settings.lookahead_frames
        size = self._start_size(lead_s)
        if self._finished:
            size = ready if self._is_last_chunk(ready, size) else size
        elif ready < size + self._narrowest:
            return _WAIT
        elif self._bounds.row_s > settings.frame_s:
            # Held-back frames are sent in several chunks; the first lasts for the second's decode.
            smallest = self._start_size(lead_s, in_hand=True)
            size = min(size, max(smallest, settings.max_chunk_frames))
        # Frames already in hand improve the seam at almost no cost.
        return self._emit(size, wide if ready >= size + wide else narrow)

    def _keep_up(self, now: float) -> ChunkDecision:
        """Steps 3 and 4: grow the chunk until the deadline."""
        settings = self._settings
        bounds = self._bounds
        ready = self._frames - self._emitted
        smallest, target, largest = self._sizes()
        if self._finished and self._is_last_chunk(ready, target):
            smallest, target, largest = min(smallest, ready), ready, ready
        start_by = self.dry_at - settings.guard_s - bounds.wait_s - bounds.decode_fixed_s
        for lookahead, complete in self._lookaheads:
            count = min(largest, ready if self._finished else ready - complete)
            if count < smallest:
                continue
            seen = ready if self._finished else ready + lookahead - complete
            due = start_by - bounds.decode_frame_s * (count + lookahead)
            fit = _fitting(start_by - now, bounds.decode_frame_s, lookahead, seen)
            if fit < smallest:
                if complete > self._narrowest:
                    continue
                if self._emitted == 0:
                    return self._start(self.dry_at - now)
            full = complete == settings.lookahead_frames and count >= target
            if self._finished or full or due - now <= _EPS:
                fit = min(fit, self._fair(lookahead, now))
                if not self._finished:
                    fit = min(fit, max(target, fit // 2))
                return self._emit(min(count, max(fit, smallest)), lookahead)
            return ChunkDecision(0, 0, due)
        return _WAIT

    def _fair(self, lookahead: int, now: float) -> int:
        """Number of frames that take this stream's share of the codec's time until ``dry_at``, but
        enough to last until the next window is decoded, even if other streams begin meanwhile.
        """
        bounds = self._bounds
        if not bounds.decode_frame_s:
            return self._frames
        room_s = bounds.codec_share * (self.dry_at - now) - bounds.decode_s(lookahead)
        smallest = sustainable_frames(self._settings, replace(bounds, queue_s=bounds.wait_s))
        return max(smallest, floor(min(room_s / bounds.decode_frame_s, self._frames)))

    def _is_last_chunk(self, ready: int, target: int) -> bool:
        """Whether all remaining frames should be one chunk.

        As lookahead of a smaller chunk they would be decoded too.
        """
        return ready <= max(_LAST_CHUNK * target, target + self._settings.lookahead_frames)

    def _sizes(self) -> tuple[int, int, int]:
        """The smallest, the wanted and the largest size of a chunk in step 3."""
        settings = self._settings
        cap = settings.max_chunk_frames
        if self._first_fixed is not None:
            return self._first_fixed, self._first_fixed, self._first_fixed
        if self._later_sizes is None:
            bounds = self._bounds
            smallest = sustainable_frames(settings, bounds)
            last = self._last_chunk or start_frames(settings, bounds, left_frames=self._expected)
            wanted = min(cap, max(smallest, ceil(settings.growth * last)))
            self._later_sizes = smallest, wanted, cap
        return self._later_sizes

    @property
    def _narrowest(self) -> int:
        """Number of complete frames that must be in hand after a chunk."""
        return self._settings.first_lookahead_frames - self._settings.incomplete_frames

    @property
    def _lookaheads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The wide and the narrow lookahead, each with the number of frames to be complete."""
        wide, narrow = self._settings.lookahead_frames, self._settings.first_lookahead_frames
        return (wide, wide), (narrow, self._narrowest)

    @property
    def _first_fixed(self) -> int | None:
        """Size of the present chunk if it is fixed. All are first chunks until one is heard."""
        is_first = not self._emitted or self.dry_at == -inf
        return self._settings.first_chunk_frames if is_first else None

    def _emit(self, new_frames: int, lookahead: int) -> ChunkDecision:
        complete = min(lookahead, self._frames - self._emitted - new_frames)
        incomplete = 0 if self._finished else lookahead - complete
        return ChunkDecision(new_frames, complete, inf, incomplete)


def _fitting(room_s: float, decode_frame_s: float, lookahead: int, seen: int) -> int:
    """Number of new frames, out of ``seen``, that fit in ``room_s`` with their lookahead."""
    if room_s < -_EPS:
        return 0
    if room_s + _EPS >= seen * decode_frame_s:
        return seen
    return max(0, floor(room_s / decode_frame_s + _EPS) - lookahead)

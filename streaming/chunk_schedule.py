"""The chunk schedule: the number of frames of each chunk, small but without underruns.

``PaceBounds`` promises: between any two rows i < j at most ``(j - i) * S + B`` seconds pass. A
window of w frames leaves the codec at most ``Q + d(w)`` after it was handed over, with
``d(w) = d0 + d1 * w``, or G later while other streams begin. T is the duration of a frame, L the
left context, r the lookahead. One window of an utterance is in the codec at a time.

1. **The smallest sustainable chunk.** The codec keeps up with playback if a chunk is decoded
   while it lasts: ``Q + d(L + m + r) <= m T``, so ``m0 = ceil((Q + d(L + r)) / (T - d1))``.
2. **The first chunk.** Emitted at time 0, it is heard at ``f d(n1 + r1)`` at the earliest, where f
   is the least share of its bound that a decode takes. The client runs out of audio ``n1 T``
   later. By then the next m0 frames must have come, after ``m0 S + B`` at most, and have been
   decoded, after ``Q + G + d(L + m0 + r)`` more, with ``guard_s`` to spare. The first chunk is the
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

    ``delay_rows`` is K - 1 for a delay pattern. ``first_chunk_frames`` fixes the first chunk's
    size; None computes it. Up to ``incomplete_frames`` frames of the first lookahead may have begun
    but not be complete. If ``first_lookahead_frames`` equals ``lookahead_frames``, no window gets
    less, however late it is: set both to the receptive field to make streamed audio equal to
    one-shot audio. ``guard_s``: audio that should always be left at the client, against network
    jitter. ``max_hold_frames`` limits the frames held back before a start. ``horizon_frames`` is
    assumed as the length of an utterance of unknown length; it matters only if the talker is slower
    than playback.

    Two chunks may exceed ``max_chunk_frames``: a first chunk that has to, and the last one, by
    half.
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

    ``row_s`` is S, ``burst_s`` is B, ``queue_s`` is Q, ``beginners_s`` is G, ``decode_fixed_s`` is
    d0 and ``decode_frame_s`` is d1, per frame of the whole window. ``decode_floor`` is f, from 0 to
    1: a decode takes at least that share of d0 + d1 * w. ``codec_share``: one stream's share of the
    codec's time, in terms of ``decode_s``. ``trimmed_s``: inaudible audio of a context's first
    chunk, which is not sent.
    """

    row_s: float
    burst_s: float
    queue_s: float
    decode_fixed_s: float
    decode_frame_s: float
    decode_floor: float = 0.0
    beginners_s: float = 0.0
    codec_share: float = 1.0
    trimmed_s: float = 0.0

    def __post_init__(self) -> None:
        pace, waits = (self.row_s, self.burst_s), (self.queue_s, self.beginners_s, self.trimmed_s)
        times = (*pace, *waits, self.decode_fixed_s, self.decode_frame_s)
        if not all(0 <= value < inf for value in times) or not 0 <= self.decode_floor <= 1:
            raise ValueError("bounds must be finite, not negative, and decode_floor at most 1")
        if not 0 < self.codec_share < inf:
            raise ValueError("a stream has some share of the codec")

    @property
    def wait_s(self) -> float:
        """The longest that a window may wait for the codec now: Q + G."""
        return self.queue_s + self.beginners_s

    def decode_s(self, window_frames: int) -> float:
        """The longest that a window of ``window_frames`` takes in the codec, without the queue."""
        return self.decode_fixed_s + self.decode_frame_s * window_frames


def sustainable_frames(settings: ScheduleSettings, bounds: PaceBounds) -> int:
    """Return m0, the smallest chunk with which the codec keeps up with playback (step 1), or the
    largest chunk if none does.
    """
    spare_s = settings.frame_s - bounds.decode_frame_s
    if spare_s <= 0:
        return settings.max_chunk_frames
    context = settings.left_context_frames + settings.lookahead_frames
    frames = ceil((bounds.queue_s + bounds.decode_s(context)) / spare_s - _EPS)
    return max(settings.min_chunk_frames, min(settings.max_chunk_frames, frames))


def start_frames(
    settings: ScheduleSettings, bounds: PaceBounds, *, left_frames: int, lead_s: float = 0.0,
    trimmed_s: float = 0.0,
) -> int:  # fmt: skip
    """Return n1, the fewest frames with which playback may start and never underrun (step 2).

    ``left_frames``: number of frames still to be emitted; it matters if S > T (step 5). ``lead_s``:
    audio that the client still has. ``trimmed_s``: audio of the chunk that will not be sent.
    """
    m0 = sustainable_frames(settings, bounds)
    window = settings.left_context_frames + m0 + settings.lookahead_frames
    decoded_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window) + trimmed_s
    need_s = m0 * bounds.row_s + bounds.burst_s + decoded_s
    floor_s = bounds.decode_floor * bounds.decode_s(settings.first_lookahead_frames)
    if bounds.row_s <= settings.frame_s:
        per_frame_s, floor_frame_s = settings.frame_s, bounds.decode_floor * bounds.decode_frame_s
    else:
        # A frame that is held back need not be waited for later. The frames are sent in several
        # chunks. Only one of these is decoded before the first sound, so that decode is not counted
        # per frame.
        need_s += left_frames * (bounds.row_s - settings.frame_s)
        per_frame_s, floor_frame_s = bounds.row_s, 0.0
    heard_first = ceil((need_s - floor_s) / (per_frame_s + floor_frame_s) - _EPS)
    frames = min(heard_first, ceil((need_s - lead_s) / per_frame_s - _EPS))
    # Even if it is sent late, it must last while the next chunk is decoded.
    least = max(m0, ceil(decoded_s / settings.frame_s - _EPS))
    return min(settings.max_hold_frames, max(least, frames))


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
        #: When the client will have played all sent audio; -inf before the first send.
        self.dry_at = dry_at
        self._expected = settings.horizon_frames if expected_frames is None else expected_frames
        self._is_trimmed = is_trimmed
        self._frames = 0
        self._finished = False
        self._emitted = 0
        self._in_flight = 0
        self._last_chunk = 0

    def update_bounds(self, bounds: PaceBounds) -> None:
        """Continue with newer bounds. Call ``decide`` again."""
        self._bounds = bounds

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
        self._in_flight = self._last_chunk = new_frames

    def on_sent(self, new_frames: int, now: float, trimmed_s: float = 0.0) -> None:
        """Record that the samples of ``new_frames`` emitted frames were sent, except for
        ``trimmed_s`` of them.

        Raises ValueError if there are fewer frames in the codec.
        """
        if not 0 < new_frames <= self._in_flight:
            raise ValueError(f"{new_frames} frames cannot have been sent")
        self._in_flight -= new_frames
        heard_s = new_frames * self._settings.frame_s - trimmed_s
        if heard_s > _EPS:  # a chunk without sound does not begin the playback
            self.dry_at = max(self.dry_at, now) + heard_s

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
        if self._finished or in_hand:
            bounds = replace(bounds, row_s=0.0, burst_s=0.0)
        left = max(1, self._expected - self._emitted)
        trimmed_s = bounds.trimmed_s if self._is_trimmed and not self._emitted else 0.0
        return start_frames(
            self._settings, bounds, left_frames=left, lead_s=lead_s, trimmed_s=trimmed_s
        )

    def _start(self, lead_s: float) -> ChunkDecision:
        """Steps 2 and 5: no audio, or too little, is playing."""
        settings, ready = self._settings, self._frames - self._emitted
        narrow, wide = settings.first_lookahead_frames, settings.lookahead_frames
        size = self._start_size(lead_s)
        if self._finished:
            size = ready if self._is_last_chunk(ready, size) else size
        elif ready < size + self._narrowest:
            return _WAIT
        elif self._bounds.row_s > settings.frame_s:
            # Held-back frames are sent in several chunks; the first lasts for the second's decode.
            least = self._start_size(lead_s, in_hand=True)
            size = min(size, max(least, settings.max_chunk_frames))
        # Frames already in hand improve the seam at almost no cost.
        return self._emit(size, wide if ready >= size + wide else narrow)

    def _keep_up(self, now: float) -> ChunkDecision:
        """Steps 3 and 4: grow the chunk until the deadline."""
        settings, bounds, ready = self._settings, self._bounds, self._frames - self._emitted
        smallest, target, most = self._sizes()
        if self._finished and self._is_last_chunk(ready, target):
            smallest, target, most = min(smallest, ready), ready, ready
        left_context = min(settings.left_context_frames, self._emitted)
        start_by = self.dry_at - settings.guard_s - bounds.wait_s - bounds.decode_s(left_context)
        for lookahead, complete in self._lookaheads:
            count = min(most, ready if self._finished else ready - complete)
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
                fit = min(fit, self._fair(left_context + lookahead, now))
                if not self._finished:
                    fit = min(fit, max(target, fit // 2))
                return self._emit(min(count, max(fit, smallest)), lookahead)
            return ChunkDecision(0, 0, due)
        return _WAIT

    def _fair(self, context: int, now: float) -> int:
        """Number of frames that take this stream's share of the codec's time until ``dry_at``, but
        enough to last until the next window is decoded, even if other streams begin meanwhile.
        """
        bounds = self._bounds
        if not bounds.decode_frame_s:
            return self._frames
        room_s = bounds.codec_share * (self.dry_at - now) - bounds.decode_s(context)
        least = sustainable_frames(self._settings, replace(bounds, queue_s=bounds.wait_s))
        return max(least, floor(min(room_s / bounds.decode_frame_s, self._frames)))

    def _is_last_chunk(self, ready: int, target: int) -> bool:
        """Whether all remaining frames should be one chunk.

        As lookahead of a smaller chunk they would be decoded too.
        """
        return ready <= max(_LAST_CHUNK * target, target + self._settings.lookahead_frames)

    def _sizes(self) -> tuple[int, int, int]:
        """The smallest, the wanted and the largest size of a chunk in step 3."""
        settings, cap = self._settings, self._settings.max_chunk_frames
        if self._first_fixed is not None:
            return self._first_fixed, self._first_fixed, self._first_fixed
        smallest = sustainable_frames(settings, self._bounds)
        last = self._last_chunk or start_frames(settings, self._bounds, left_frames=self._expected)
        return smallest, min(cap, max(smallest, ceil(settings.growth * last))), cap

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

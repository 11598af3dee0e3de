"""How many frames the next chunk takes: the smallest chunks that never underrun.

What is promised by the pace (``PaceBounds``): between any two rows i < j at most
``(j - i) * S + B`` seconds pass, and a window of w frames leaves the codec at most
``Q + d(w)`` after it was handed over, ``d(w) = d0 + d1 * w``, and for as long as other streams
begin G more. T is a frame's duration, L the left context, r the lookahead. One window of an
utterance is in the codec at a time.

1. **The smallest sustainable chunk.** The codec keeps up with playback if a chunk is decoded
   while it lasts: ``Q + d(L + m + r) <= m T``, so ``m0 = ceil((Q + d(L + r)) / (T - d1))``.
2. **The first chunk.** Emitted at time 0, it is heard at ``f d(n1 + r1)`` at the earliest,
   where f is the share of its upper bound that a decode takes at least. The client then runs
   dry ``n1 T`` later. By then the next m0 frames must have come, ``m0 S + B`` at the latest,
   and have been decoded, ``Q + G + d(L + m0 + r)``, with ``guard`` to spare. The smallest such n1
   is the first chunk, if it lasts for that decode even when it is itself as late as it may be.
3. **Every later chunk** may be emitted as late as ``U = dry - guard - Q - G - d``. By step 2 and
   ``S <= T`` at least m0 frames are in hand then, and after it the same holds again. So a chunk
   waits for its target, ``growth`` times the one before, but never past U. It takes no more
   than that, or than half of what would be just in time: all that just fits would leave
   nothing to spare, and keep the codec from others for longest. Nor does it take more of the
   codec's time until ``dry`` than is its share, but for m0: streams that begin together want
   their larger chunks together too. If the wide lookahead would be late, the first chunk's
   narrow one is used.
4. **The end.** What is left is sent as one chunk if that is at most 1.5 times the target, or
   if the rest would be decoded anyway as lookahead.
5. **S > T**: the talker is slower than playback, and the deficit of all that is to come,
   ``left * (S - T)``, must be in hand at the start, as far as ``max_hold_frames`` allows.

After an underrun the utterance starts again by step 2. All times are seconds on the caller's
clock. The property tests check the promise against talkers and codecs as bad as their bounds
allow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf

from streaming.bounds import PaceBounds, ScheduleSettings, start_frames, sustainable_frames

__all__ = ["ChunkDecision", "ChunkSchedule", "PaceBounds", "ScheduleSettings"]

_EPS = 1e-9
#: Up to this many targets of frames are sent as one chunk at the end of an utterance.
_LAST_CHUNK = 1.5


@dataclass(frozen=True, slots=True)
class ChunkDecision:
    """Emit ``new_frames`` with ``lookahead`` now, and after it ``incomplete`` frames that are not
    complete; or, if ``new_frames`` is 0, wait.

    Ask again at ``wake_at`` (inf: no timer is needed), or when a row, a send or the end
    comes.
    """

    new_frames: int
    lookahead: int
    wake_at: float
    incomplete: int = 0


_WAIT = ChunkDecision(0, 0, inf)


class ChunkSchedule:
    """The chunks of one utterance.

    ``dry_at`` is when the client runs dry, given what earlier utterances of the context
    have sent; -inf if nothing plays. An utterance that starts while audio still plays has
    until then, so its first chunk may be a larger one.

    ``expected_frames`` is a guess at the utterance's length from above.
    """

    def __init__(
        self,
        settings: ScheduleSettings,
        bounds: PaceBounds,
        *,
        dry_at: float = -inf,
        expected_frames: int | None = None,
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._dry_at = dry_at
        self._expected = settings.horizon_frames if expected_frames is None else expected_frames
        self._frames = 0
        self._finished = False
        self._emitted = 0
        self._in_flight = 0
        self._last_chunk = 0

    @property
    def dry_at(self) -> float:
        """When the client has played everything sent so far; -inf before anything was."""
        return self._dry_at

    def update_bounds(self, bounds: PaceBounds) -> None:
        """Go on with newer bounds. Ask ``decide`` again."""
        self._bounds = bounds

    def on_frames(self, count: int) -> None:
        """``count`` more frames are in hand, complete. Raises ValueError after the end."""
        if count < 0 or (count and self._finished):
            raise ValueError("frames cannot be taken back, nor come after the end")
        self._frames += count

    def on_finished(self) -> None:
        """The talker has ended: what is in hand is all there is."""
        self._finished = True

    def on_emitted(self, new_frames: int, lookahead: int, now: float) -> None:
        """A window with so many frames was handed to the codec.

        Raises ValueError if there are not so many, or one is there already.
        """
        if self._in_flight or not 0 < new_frames <= self._frames - self._emitted - lookahead:
            raise ValueError(f"{new_frames} frames cannot be emitted now")
        self._emitted += new_frames
        self._in_flight = self._last_chunk = new_frames

    def on_sent(self, new_frames: int, now: float) -> None:
        """The samples of ``new_frames`` emitted frames were sent.

        Raises ValueError if there are not so many in the codec.
        """
        if not 0 < new_frames <= self._in_flight:
            raise ValueError(f"{new_frames} frames cannot have been sent")
        self._in_flight -= new_frames
        self._dry_at = max(self._dry_at, now) + new_frames * self._settings.frame_s

    def decide(self, now: float) -> ChunkDecision:
        """What to do at ``now``. While a window is in the codec: wait."""
        if self._in_flight or self._frames == self._emitted:
            return _WAIT
        lead_s = self._dry_at - now
        if lead_s < 0:
            return self._start(0.0)
        if self._emitted == 0 and self._bounds.row_s > self._settings.frame_s:
            # A gap between utterances is heard less than the sure one inside them.
            return self._start(lead_s)
        return self._keep_up(now)

    def missing_frames(self, *, playing: bool) -> int:
        """How many frames the next chunk is still short of, by the bounds of now: while audio
        plays of the chunk that is wanted, else of the fewest that can be started with.
        """
        if playing:
            wanted = self._sizes()[1] + self._settings.lookahead_frames
        else:
            wanted = self._start_size(0.0) + self._narrowest
        return max(0, wanted - (self._frames - self._emitted))

    def _start_size(self, lead_s: float, *, in_hand: bool = False) -> int:
        """The first chunk, or the first after an underrun; ``in_hand``: the next one's frames need
        not be waited for.
        """
        if self._first_fixed is not None:
            return self._first_fixed
        bounds = self._bounds
        if self._finished or in_hand:
            bounds = replace(bounds, row_s=0.0, burst_s=0.0)
        left = max(1, self._expected - self._emitted)
        return start_frames(self._settings, bounds, left_frames=left, lead_s=lead_s)

    def _start(self, lead_s: float) -> ChunkDecision:
        """Steps 2 and 5: nothing, or too little, is playing."""
        settings, ready = self._settings, self._frames - self._emitted
        narrow, wide = settings.first_lookahead_frames, settings.lookahead_frames
        size = self._start_size(lead_s)
        if self._finished:
            size = ready if self._is_last_chunk(ready, size) else size
        elif ready < size + self._narrowest:
            return _WAIT
        elif self._bounds.row_s > settings.frame_s:
            # What is held back goes in several chunks; the first lasts for the second's decode.
            least = self._start_size(lead_s, in_hand=True)
            size = min(size, max(least, settings.max_chunk_frames))
        # Frames that are in hand anyway make the seam better for nearly nothing.
        return self._emit(size, wide if ready >= size + wide else narrow)

    def _keep_up(self, now: float) -> ChunkDecision:
        """Steps 3 and 4: grow up to the deadline."""
        settings, bounds, ready = self._settings, self._bounds, self._frames - self._emitted
        smallest, target, most = self._sizes()
        if self._finished and self._is_last_chunk(ready, target):
            smallest, target, most = min(smallest, ready), ready, ready
        left_context = min(settings.left_context_frames, self._emitted)
        start_by = self._dry_at - settings.guard_s - bounds.wait_s - bounds.decode_s(left_context)
        for lookahead, complete in self._lookaheads:
            count = min(most, ready if self._finished else ready - complete)
            if count < smallest:
                continue
            seen = ready if self._finished else ready + lookahead - complete
            due = start_by - bounds.decode_frame_s * min(count + lookahead, seen)
            fit = _fitting(start_by - now, bounds.decode_frame_s, lookahead, seen)
            if fit < smallest:
                if complete > self._narrowest:
                    continue
                if self._emitted == 0 and not self._finished:
                    return self._start(self._dry_at - now)
            full = complete == settings.lookahead_frames and count >= target
            if self._finished or full or due - now <= _EPS:
                fit = min(fit, self._fair(left_context + lookahead, now))
                if not self._finished:
                    fit = min(fit, max(target, fit // 2))
                return self._emit(min(count, max(fit, smallest)), lookahead)
            return ChunkDecision(0, 0, due)
        return _WAIT

    def _fair(self, context: int, now: float) -> int:
        """How many frames take as much of the codec's time as is this stream's until ``dry``; no
        fewer than last until the next window is decoded, however many streams begin meanwhile.
        """
        bounds = self._bounds
        if not bounds.decode_frame_s:
            return self._frames
        room_s = bounds.codec_share * (self._dry_at - now) - bounds.decode_s(context)
        least = sustainable_frames(self._settings, replace(bounds, queue_s=bounds.wait_s))
        return max(least, floor(min(room_s / bounds.decode_frame_s, self._frames)))

    def _is_last_chunk(self, ready: int, target: int) -> bool:
        """Whether all that is left should be one chunk.

        As lookahead of a smaller one it would be decoded too.
        """
        return ready <= max(_LAST_CHUNK * target, target + self._settings.lookahead_frames)

    def _sizes(self) -> tuple[int, int, int]:
        """The smallest, the wanted and the largest chunk of step 3."""
        settings, cap = self._settings, self._settings.max_chunk_frames
        if self._first_fixed is not None:
            return self._first_fixed, self._first_fixed, self._first_fixed
        smallest = sustainable_frames(settings, self._bounds)
        last = self._last_chunk or start_frames(settings, self._bounds, left_frames=self._expected)
        return smallest, min(cap, max(smallest, ceil(settings.growth * last))), cap

    @property
    def _narrowest(self) -> int:
        """Complete frames that must be in hand after a chunk."""
        return self._settings.first_lookahead_frames - self._settings.incomplete_frames

    @property
    def _lookaheads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The wide and the narrow one: frames, and how many of them must be complete."""
        wide, narrow = self._settings.lookahead_frames, self._settings.first_lookahead_frames
        return (wide, wide), (narrow, self._narrowest)

    @property
    def _first_fixed(self) -> int | None:
        return None if self._emitted else self._settings.first_chunk_frames

    def _emit(self, new_frames: int, lookahead: int) -> ChunkDecision:
        rest = self._frames - self._emitted - new_frames
        complete = min(lookahead, rest)
        missing = 0 if self._finished else lookahead - complete
        return ChunkDecision(
            new_frames, complete, inf, min(missing, self._settings.incomplete_frames)
        )


def _fitting(room_s: float, decode_frame_s: float, lookahead: int, seen: int) -> int:
    """How many new frames can be decoded in ``room_s``, each with its lookahead, of ``seen``."""
    if room_s < -_EPS:
        return 0
    if room_s + _EPS >= seen * decode_frame_s:
        return seen
    return max(0, floor(room_s / decode_frame_s + _EPS) - lookahead)

"""The chunk schedule: how many frames the next chunk takes so that no listener runs dry.

The symbols and the derivation of both formulas are in ``streaming.chunk_schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """Settings of the schedule.

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
    ``trimmed_s`` is audio of a context's first chunk that is not sent, since nothing is heard in
    it.
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
    settings: ScheduleSettings, bounds: PaceBounds, *, left_frames: int, lead_s: float = 0.0,
    trimmed_s: float = 0.0,
) -> int:  # fmt: skip
    """n1: the fewest frames with which playback may start and never run dry (step 2).

    ``left_frames`` is how many frames are still to be emitted; it matters if S > T (step 5).
    ``lead_s`` is audio that the client still has, ``trimmed_s`` audio of the chunk that it will not
    get.
    """
    m0 = sustainable_frames(settings, bounds)
    window = settings.left_context_frames + m0 + settings.lookahead_frames
    decoded_s = settings.guard_s + bounds.wait_s + bounds.decode_s(window) + trimmed_s
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

    ``expected_frames`` is a guess at the utterance's length from above. ``is_trimmed``: of the
    beginning ``bounds.trimmed_s`` will not be sent.
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
        #: When the client has played everything sent so far; -inf before anything was.
        self.dry_at = dry_at
        self._expected = settings.horizon_frames if expected_frames is None else expected_frames
        self._is_trimmed = is_trimmed
        self._frames = 0
        self._finished = False
        self._emitted = 0
        self._in_flight = 0
        self._last_chunk = 0

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

    def on_emitted(self, new_frames: int, lookahead: int) -> None:
        """A window with so many frames was handed to the codec.

        Raises ValueError if there are not so many, or one is there already.
        """
        if self._in_flight or not 0 < new_frames <= self._frames - self._emitted - lookahead:
            raise ValueError(f"{new_frames} frames cannot be emitted now")
        self._emitted += new_frames
        self._in_flight = self._last_chunk = new_frames

    def on_sent(self, new_frames: int, now: float, trimmed_s: float = 0.0) -> None:
        """The samples of ``new_frames`` emitted frames were sent, but for ``trimmed_s`` of them.

        Raises ValueError if there are not so many in the codec.
        """
        if not 0 < new_frames <= self._in_flight:
            raise ValueError(f"{new_frames} frames cannot have been sent")
        self._in_flight -= new_frames
        self.dry_at = max(self.dry_at, now) + new_frames * self._settings.frame_s - trimmed_s

    def decide(self, now: float) -> ChunkDecision:
        """Decide at ``now``. While a window is in the codec: wait."""
        if self._in_flight or self._frames == self._emitted:
            return _WAIT
        lead_s = self.dry_at - now
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
        trimmed_s = bounds.trimmed_s if self._is_trimmed and not self._emitted else 0.0
        return start_frames(
            self._settings, bounds, left_frames=left, lead_s=lead_s, trimmed_s=trimmed_s
        )

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
        start_by = self.dry_at - settings.guard_s - bounds.wait_s - bounds.decode_s(left_context)
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
        """How many frames take as much of the codec's time as is this stream's until ``dry``; no
        fewer than last until the next window is decoded, however many streams begin meanwhile.
        """
        bounds = self._bounds
        if not bounds.decode_frame_s:
            return self._frames
        room_s = bounds.codec_share * (self.dry_at - now) - bounds.decode_s(context)
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

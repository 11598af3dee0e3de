"""Capacity: the number of streams that the service can carry, and when a slot comes free."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, inf

#: Number of slot durations remembered.
_MEMORY = 64
#: Number of hints remembered whose time has not come.
_HINTS = 256
#: Duration assumed before any was observed.
_GUESS_S = 4.0
#: Minimum time left of a slot.
_MIN_S = 0.05


class RetryAfter:
    """Estimates when a slot comes free, from how long slots were held recently.

    The remaining time of a slot is the mean time that was left, at its age, of those held longer.
    The first of several slots comes free sooner than each single one is expected to: their rates
    add up.

    Each caller is given a later time than the callers whose time has not come yet, so that they do
    not all return at once for a single slot. The time is at most one turnover of all slots.
    """

    def __init__(self) -> None:
        self._durations_s: deque[float] = deque(maxlen=_MEMORY)
        self._hinted: deque[float] = deque(maxlen=_HINTS)

    def on_released(self, duration_s: float) -> None:
        """Record that a slot came free that had been held for ``duration_s``."""
        self._durations_s.append(duration_s)

    def remaining_s(self, age_s: float) -> float:
        """Expected remaining time of a slot that has been held for ``age_s``."""
        longer = [duration - age_s for duration in self._durations_s if duration > age_s]
        if longer:
            return max(_MIN_S, sum(longer) / len(longer))
        if self._durations_s:  # older than all others: assume its own age again
            return max(_MIN_S, age_s)
        return _GUESS_S

    def estimate_s(self, ages_s: Sequence[float], too_many: int, now: float) -> float:
        """Return the seconds until a retry may succeed, while slots of these ages are held and
        ``too_many`` of them must come free first.
        """
        while self._hinted and self._hinted[0] <= now:
            self._hinted.popleft()
        rate = sum(1 / self.remaining_s(age) for age in ages_s) or 1 / _GUESS_S
        before = min(sum(at > now for at in self._hinted), len(ages_s))
        wait_s = max(_MIN_S, (max(1, too_many) + before) / rate)
        self._hinted.append(now + wait_s)
        return wait_s


#: Observations are combined over this many seconds.
_BUCKET_S = 0.25
#: Observations are combined over at least this many rows.
_BUCKET_ROWS = 8
#: Time constant of the quick average of the pace.
_QUICK_S = 1.5
#: Time constant of the slow average of the pace.
_SLOW_S = 10.0
#: Time constant with which the shape's data is forgotten.
_DATA_S = 60.0
#: Time constant with which the shape follows its data.
_SHAPE_S = 3.0
#: Factor by which the quick average must exceed the slow one to replace it.
_WORSE = 1.15
#: Least variation in the number of streams, as deviation over mean, that determines the shape.
_SPREAD = 0.15
#: The line is trusted up to this many times the largest number of streams at once.
_TRUST = 4.0
#: Time constant with which an old measurement fades.
_FADE_S = 60.0
#: Time constant with which the largest number of streams at once is forgotten.
_FORGET_S = 600.0
_MIN_SHARE = 1e-3
#: Seconds over which the codec's cost is averaged, also during a pause.
_CODEC_S = 10.0
#: New frames of a window under load, when chunks are large because of waits.
_LOADED_FRAMES = 20.0
#: A window counts at most this many times as much as usual for its size.
_MAX_TIMES = 4.0
#: Number of windows from which on it is known what is usual.
_FEW_WINDOWS = 8
#: Factor of the load to expect while a first chunk is played.
_GROWTH = 2
#: Number of streams to expect in addition.
_FEW = 4
#: The estimate must be this far beyond a number of slots to change it.
_SLACK = 0.25


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """Settings of the capacity. ``frame_s``: seconds of audio of a row. ``ceiling``: the maximum
    number of streams. ``target``: the share of the streams sustained by the talker that are
    admitted. ``codec_target``: the same for the codec, whose windows wait for each other.
    ``row_limit``: the maximum time of a row, as a share of the time for which it is played.
    """

    frame_s: float
    ceiling: int
    target: float = 0.9
    row_limit: float = 0.92
    codec_target: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.frame_s < inf or self.ceiling < 1:
            raise ValueError("frame_s and ceiling must be positive")
        if not all(0 < x <= 1 for x in (self.target, self.row_limit, self.codec_target)):
            raise ValueError("target, row_limit and codec_target are shares")


class _Average:
    """Averages of running streams and seconds per row over ``span_s``, at first over less."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen_s = 0.0
        self.running = 0.0
        self.row_s = 0.0

    def add(self, running: float, row_s: float, passed_s: float) -> None:
        self._seen_s += passed_s
        part = max(1 - exp(-passed_s / self._span_s), passed_s / self._seen_s)
        self.running += part * (running - self.running)
        self.row_s += part * (row_s - self.row_s)

    def forget(self) -> None:
        """Start again with the next observation, since the earlier ones are too old."""
        self._seen_s = 0.0


class TalkerLoad:
    """Seconds per row, as a function of the number of running streams."""

    def __init__(self) -> None:
        #: Rows in the bucket that is being filled.
        self._rows = 0.0
        #: Seconds for which the streams waited for these rows.
        self._seconds = 0.0
        #: Sum over these rows of the number of running streams.
        self._beside = 0.0
        #: When the bucket was begun.
        self._since = -inf
        #: When the last full bucket was learned from.
        self._at = -inf
        #: The pace of late, which decides when it has become worse.
        self._quick = _Average(_QUICK_S)
        #: The pace over a longer time.
        self._slow = _Average(_SLOW_S)
        #: Seconds per row of one stream after the warm-up; 0 before its end.
        self._prior = 0.0
        #: The largest number of streams at once, at the time of the last bucket.
        self._peak = 1.0
        #: How the seconds per row depend on the number of streams.
        self._shape = _Shape()

    @property
    def share(self) -> float:
        """Time that a further stream adds to a row, over one stream's."""
        return self._shape.share

    def observe(self, rows: int, seconds: float, running: int, now: float) -> None:
        """Record that a stream got ``rows`` rows in ``seconds``, while ``running`` streams ran,
        itself included.
        """
        if now - self._since > 4 * _BUCKET_S:  # a pause, not a slow row
            self._rows = 0.0
            self._seconds = 0.0
            self._beside = 0.0
            self._since = now - min(seconds, _BUCKET_S)
        self._rows += rows
        self._seconds += seconds
        self._beside += rows * running
        if self._rows >= _BUCKET_ROWS and now - self._since >= _BUCKET_S:
            self._learn(self._beside / self._rows, self._seconds / self._rows, now)
            self._rows = 0.0
            self._seconds = 0.0
            self._beside = 0.0
            self._since = now

    def settle(self) -> None:
        """Keep the present estimate for an idle service to fall back to."""
        self._prior = self._measured

    def row_s(self, streams: float, now: float) -> float:
        """Seconds that a row will take if ``streams`` streams run; 0 while unknown."""
        return self._scale(now) * self._slope(streams)

    def streams(self, row_s: float, now: float) -> float:
        """Number of streams that get each row in ``row_s`` seconds."""
        scale = self._scale(now)
        if scale <= 0:
            return inf
        room = row_s / scale
        if room < 1:
            return room
        believed = 1 + (room - 1) / self.share
        peak = self._recent_peak(now)
        in_turn = peak * room / self._slope(peak)
        return min(believed, max(_TRUST * peak, in_turn))

    def _slope(self, streams: float) -> float:
        return 1 + self.share * (max(1.0, streams) - 1)

    def _recent_peak(self, now: float) -> float:
        return 1 + (self._peak - 1) * exp(-max(0.0, now - self._at) / _FORGET_S)

    @property
    def _measured(self) -> float:
        quick, slow = (x.row_s / self._slope(x.running) for x in (self._quick, self._slow))
        return slow if quick < _WORSE * slow else quick

    def _scale(self, now: float) -> float:
        if self._at == -inf:
            return 0.0
        if not self._prior:
            return self._measured
        faded = exp(-max(0.0, now - self._at) / _FADE_S)
        return self._prior + (self._measured - self._prior) * faded

    def _learn(self, running: float, row_s: float, now: float) -> None:
        idle_s = now - self._at
        passed_s = min(idle_s, 4 * _BUCKET_S)
        if idle_s > _SLOW_S:
            self._quick.forget()
            self._slow.forget()
        self._shape.learn(running, row_s, passed_s)
        self._quick.add(running, row_s, passed_s)
        self._slow.add(running, row_s, passed_s)
        self._peak = max(self._recent_peak(now), running)
        self._at = now


class _Shape:
    """Least-squares line through the last minute, if the number of streams varied enough."""

    def __init__(self) -> None:
        self.share = 1.0
        #: Decayed sums: weight, n, n * n, row_s, n * row_s.
        self._sums: Sequence[float] = (0.0,) * 5
        self._seen_s = 0.0

    def learn(self, running: float, row_s: float, passed_s: float) -> None:
        kept = exp(-passed_s / _DATA_S)
        new = (1.0, running, running * running, row_s, running * row_s)
        self._sums = [kept * old + more for old, more in zip(self._sums, new, strict=True)]
        n, nn, y, ny = (total / self._sums[0] for total in self._sums[1:])
        spread = nn - n * n
        if spread < (_SPREAD * n) ** 2:
            return
        slope = (ny - n * y) / spread
        alone = y - slope * (n - 1)  # one stream's row
        share = min(1.0, max(_MIN_SHARE, slope / alone)) if alone > 0 else 1.0
        self._seen_s += passed_s
        part = max(1 - exp(-passed_s / _SHAPE_S), passed_s / self._seen_s)
        self.share += part * (share - self.share)


class CodecLoad:
    """Codec time per new frame under load. The windows of a batch share its time.

    A window has a cost of its own, mostly that of its context, and one for each new frame. Few
    streams have small chunks, at which a frame costs more than at those that the codec decodes when
    it is busy. So the cost is that of a chunk of ``_LOADED_FRAMES``, unless chunks are larger than
    that on average, or smaller without exception.
    """

    def __init__(self) -> None:
        #: Decayed sums: weight, n, n * n, busy_s, n * busy_s.
        self._sums: Sequence[float] = (0.0,) * 5
        #: Number of workers that decode side by side.
        self.workers = 1
        self._largest = 0.0
        self._windows = 0
        self._at = -inf

    def observe(self, new_frames: int, busy_s: float, now: float) -> None:
        """Record that a window of ``new_frames`` new frames took ``busy_s`` of the codec's time."""
        if self._windows >= _FEW_WINDOWS:
            fixed_s, frame_s = self._line()
            busy_s = min(busy_s, _MAX_TIMES * (fixed_s + frame_s * new_frames))
        kept = exp(-min(_CODEC_S, max(0.0, now - self._at)) / _CODEC_S)
        new = (1.0, new_frames, new_frames * new_frames, busy_s, new_frames * busy_s)
        self._sums = [kept * old + more for old, more in zip(self._sums, new, strict=True)]
        self._largest = max(kept * self._largest, new_frames)
        self._windows += 1
        self._at = max(self._at, now)

    @property
    def frame_s(self) -> float:
        """Seconds per new frame under load; 0 while unknown."""
        if not self._windows:
            return 0.0
        fixed_s, frame_s = self._line()
        usual = self._sums[1] / self._sums[0]
        return frame_s + fixed_s / max(usual, min(_LOADED_FRAMES, self._largest))

    def weight(self, chunk_frames: int) -> float:
        """Cost of a stream with such chunks, over that of an ordinary stream under load."""
        if not self._windows or not self.frame_s:
            return 1.0
        fixed_s, frame_s = self._line()
        return max(1.0, (frame_s + fixed_s / chunk_frames) / self.frame_s)

    def _line(self) -> tuple[float, float]:
        """Seconds per window and per new frame, neither negative: all per frame if chunks hardly
        differ.
        """
        n, nn, y, ny = (total / self._sums[0] for total in self._sums[1:])
        spread = nn - n * n
        if spread < (_SPREAD * n) ** 2:
            return 0.0, y / n
        frame_s = min(max(0.0, (ny - n * y) / spread), y / n)
        return y - frame_s * n, frame_s


#: Seconds over which the share of late audio and the number of late streams are measured.
_GAP_SPAN_S = 2.0
#: Shorter gaps are inaudible.
_GAP_S = 0.02
#: With fewer late streams, their clients may be the cause.
_GAP_STREAMS = 2
#: A stream's first gap counts if it is at least this long. A shorter one means that its first chunk
#: was too small. The stream starts again with a larger one; only a further gap is a shortage.
_FIRST_GAP_S = 0.2
#: Share of the streams carried in time that is admitted after gaps.
_AFTER_GAPS = 0.9
#: The largest share assumed to be lost.
_MAX_LOST = 0.7
#: Seconds after gaps for which the limit is constant.
_GAP_HOLD_S = 4.0
#: That time doubles, up to this, whenever gaps return within ``_GAP_AGAIN_S``.
_GAP_MAX_HOLD_S = 32.0
#: Seconds for which the limit then grows, before it is lifted.
_GAP_AGAIN_S = 60.0
#: Factor by which the limit grows each second.
_GAP_GROWTH = 1.04
#: Number of streams by which it grows each second in addition.
_GAP_MORE = 0.1


class UnderrunLimit:
    """The number of streams that may be open after underruns.

    The cost of the engines can be measured, and predicts how many streams they carry. A shortage of
    processor time for the whole service shows only in gaps at the listeners. Each second of silence
    there is one in which the service carried less than the open streams: they are too many by that
    share. The limit is lifted gradually once there are no more gaps.
    """

    def __init__(self) -> None:
        #: Decayed sum of the seconds of audio sent.
        self._sent_s = 0.0
        #: Decayed sum of the seconds lost in gaps.
        self._lost_s = 0.0
        #: Decayed sum of the seconds lost, each times the number of streams open then.
        self._lost_open_s = 0.0
        #: Time of the sums.
        self._at = -inf
        #: When each stream was last late.
        self._was_late: dict[int, float] = {}
        #: When each stream was last late enough to count.
        self._late: dict[int, float] = {}
        #: Number of streams that may be open, at the time of the last gaps.
        self._limit = inf
        #: When gaps last reduced the limit.
        self._limited_at = -inf
        #: Seconds for which the limit is constant after that.
        self._hold_s = _GAP_HOLD_S

    def observe(self, stream: int, audio_s: float, gap_s: float, active: int, now: float) -> None:
        """Record that ``audio_s`` of audio was sent after a gap of ``gap_s`` at the listener, while
        ``active`` slots were held.
        """
        kept = exp(-max(0.0, now - self._at) / _GAP_SPAN_S)
        self._at = max(self._at, now)
        self._sent_s = kept * self._sent_s + audio_s
        self._lost_s *= kept
        self._lost_open_s *= kept
        if gap_s < _GAP_S:
            return
        is_first = stream not in self._was_late
        self._was_late[stream] = now
        self._was_late = _since(now - _GAP_AGAIN_S, self._was_late)
        if is_first and gap_s < _FIRST_GAP_S:
            return
        self._lost_s += gap_s
        self._lost_open_s += gap_s * active
        self._late[stream] = now
        self._late = _since(now - _GAP_SPAN_S, self._late)
        if len(self._late) >= _GAP_STREAMS:
            lost = min(_MAX_LOST, self._lost_s / (self._sent_s + self._lost_s))
            self._reduce(_AFTER_GAPS * (1 - lost) * self._lost_open_s / self._lost_s, now)

    def streams(self, now: float) -> float:
        """Number of streams that may be open; inf without recent gaps."""
        grown_s = min(_GAP_AGAIN_S, max(0.0, now - self._limited_at - self._hold_s))
        if grown_s == _GAP_AGAIN_S:
            return inf
        return float(self._limit * _GAP_GROWTH**grown_s + _GAP_MORE * grown_s)

    def _reduce(self, limit: float, now: float) -> None:
        present = self.streams(now)
        if now - self._limited_at > self._hold_s:  # gaps have returned
            again = now - self._limited_at < self._hold_s + _GAP_AGAIN_S
            self._hold_s = min(_GAP_MAX_HOLD_S, 2 * self._hold_s) if again else _GAP_HOLD_S
        self._limit = min(present, limit)
        self._limited_at = now


def _since(earliest: float, times: dict[int, float]) -> dict[int, float]:
    return {key: at for key, at in times.items() if at >= earliest}


class Capacity:
    """Estimates how many streams may be open, and derives the number of slots."""

    def __init__(self, settings: CapacitySettings) -> None:
        self.settings = settings
        self.talker = TalkerLoad()
        self.codec = CodecLoad()
        self.underruns = UnderrunLimit()
        self._slots = settings.ceiling

    def settle(self) -> None:
        """End the warm-up: its measurements become the prior."""
        self.talker.settle()
        self._slots = 0

    def streams(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> float:
        """Number of streams that may be open. One of them plays at ``fastest`` times the speed at
        which it was spoken, and their mean is ``mean`` times that speed.

        Every stream gets rows at the same pace, so the fastest one decides for the talker.
        """
        return min(self.limits(now, fastest, mean).values())

    def limits(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> dict[str, float]:
        """The number of streams by each limit; inf if it is unknown. See ``streams``."""
        settings = self.settings
        row_s = settings.frame_s / fastest
        sustained = settings.target * self.talker.streams(row_s, now)
        busy_s = self.codec.frame_s * mean
        codec = self.codec.workers * settings.codec_target * settings.frame_s
        return {
            "talker": min(sustained, self.talker.streams(settings.row_limit * row_s, now)),
            "codec": codec / busy_s if busy_s else inf,
            "underruns": self.underruns.streams(now),
            "ceiling": float(settings.ceiling),
        }

    def soon_row_s(self, streams: int, now: float) -> float:
        """Seconds that a row may take until a first chunk that is sent now has been played; 0 while
        unknown. More streams may begin at any moment: as many again and a few are assumed, but no
        more than there are slots.
        """
        soon = min(_GROWTH * streams + _FEW, self._slots)
        return min(self.settings.frame_s, self.talker.row_s(max(1, soon), now))

    def slots(self, now: float, fastest: float = 1.0, mean: float = 1.0) -> int:
        """Number of slots: ``streams`` as a whole number, at least 1, since without a stream
        nothing would be learned. At ordinary speed it changes only if the estimate has changed
        clearly.
        """
        estimate = self.streams(now, fastest, mean)
        if fastest != 1 or mean != 1:
            return max(1, floor(estimate))
        if estimate < self._slots - _SLACK or estimate >= self._slots + 1 + _SLACK:
            self._slots = floor(estimate)
        elif estimate >= self.settings.ceiling:
            self._slots = self.settings.ceiling
        return max(1, self._slots)

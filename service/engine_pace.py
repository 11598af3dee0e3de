"""What the engines are seen to take: measured at the start, and while they work."""

from __future__ import annotations

import time

from codec.decodes import DecodeStats
from service.chunking import schedule_settings
from service.engines import RunningCodec, RunningTalker
from service.settings import Settings
from service.warmup import warm_up
from streaming.capacity import Capacity, CapacitySettings
from streaming.pace import PaceEstimator
from streaming.schedule import PaceBounds

#: Bounds are worked out anew after so long, since they rest on streams that last for seconds, or
#: when so large a share of the streams has come or gone.
_BOUNDS_AGE_S, _BOUNDS_SHIFT = 0.2, 0.1
#: Speeds for which they are kept.
_BOUNDS_SPEEDS = 16
#: Streams with which the warm-up looks what several cost.
_TOGETHER = 8
_PRIOR_RHO, _PRIOR_BURST_S, _PRIOR_QUEUE_S = 0.5, 0.1, 0.005


class EnginePace:
    """The pace of talker and codec, and how many streams they carry. Nothing is known before
    ``learn`` or ``begin``: until then ``estimator`` and ``bounds`` raise RuntimeError.
    """

    def __init__(self, settings: Settings, talker: RunningTalker, codec: RunningCodec) -> None:
        self._settings, self._talker, self._codec = settings, talker, codec
        self._estimator: PaceEstimator | None = None
        #: None where admission does not go by what is measured.
        self.capacity: Capacity | None = None
        #: By speed, with the time when they were worked out, and the streams of then.
        self._bounds: dict[float, tuple[PaceBounds, float, int]] = {}

    @property
    def ceiling(self) -> int:
        """Contexts that there may be, however fast the engines are. They must have started."""
        return self._settings.max_contexts or self._talker.capacity

    async def learn(self, voice: str) -> None:
        """Speak to warm up, and learn what the machine carries, unless that is fixed.

        Raises BackendError if no audio comes of it.
        """
        if self._settings.admission == "measured":
            self.capacity = Capacity(CapacitySettings(self._codec.spec.frame_s, self.ceiling))
        self.begin()
        together = 1 if self.capacity is None else min(_TOGETHER, self.ceiling)
        await warm_up(self._talker, self._codec, self.estimator, voice, together)
        if self.capacity is not None:
            self.capacity.settle()

    def begin(self) -> None:
        """Begin from a careful guess: half of real time, some jitter. The codec has started."""
        cost, frame_s = self._codec.cost, self._codec.spec.frame_s
        guess = PaceBounds(
            row_s=_PRIOR_RHO * frame_s,
            burst_s=_PRIOR_BURST_S,
            queue_s=_PRIOR_QUEUE_S,
            decode_fixed_s=cost.fixed_s,
            decode_frame_s=cost.frame_s,
        )
        self._estimator = PaceEstimator(frame_s, guess, self.capacity)

    @property
    def has_begun(self) -> bool:
        """Whether ``estimator`` and ``bounds`` can be asked."""
        return self._estimator is not None

    @property
    def estimator(self) -> PaceEstimator:
        """What every stream tells its rows."""
        if self._estimator is None:
            raise RuntimeError("the engines have not started")
        return self._estimator

    def on_decoded(self, stats: DecodeStats) -> None:
        """The codec answered a window."""
        if self.capacity is not None:
            share_s = stats.decode_s / max(1, stats.batch)
            self.capacity.codec.observe(stats.new_frames, share_s, time.monotonic())
        if self._estimator is not None:
            self._estimator.observe_decode(
                stats.frames, stats.queue_s, stats.decode_s, stats.slack_s
            )

    def bounds(self, speed: float = 1.0) -> PaceBounds:
        """The pace as measured just now, or a moment ago: every chunk of every stream asks."""
        now, live = time.monotonic(), self.estimator.live
        bounds, at, beside = self._bounds.get(speed, (None, 0.0, 0))
        if bounds is None or now - at > _BOUNDS_AGE_S or abs(live - beside) > _BOUNDS_SHIFT * live:
            if len(self._bounds) >= _BOUNDS_SPEEDS:
                self._bounds.clear()
            schedule = schedule_settings(self._settings, self._codec.spec, speed=speed)
            bounds = self.estimator.bounds(schedule, self._codec.outstanding)
            self._bounds[speed] = bounds, now, live
        return bounds

"""Measured pace of the engines: at the warm-up, and while they work."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import numpy as np

from service.contexts.chunking import schedule_settings
from service.engines import RunningCodec, RunningTalker
from service.settings import Settings
from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import PaceBounds
from streaming.errors import BackendError, ErrorCode
from streaming.latency import PaceEstimator
from streaming.ports import DecodeStats, Sampling, SpeechRequest
from streaming.report import QUIET, leading_silence
from streaming.window import SlidingWindowChunker

#: Bounds are worked out anew after so long, since they rest on streams that last for seconds, or
#: when so large a share of the streams has come or gone.
_BOUNDS_AGE_S, _BOUNDS_SHIFT = 0.2, 0.1
#: Speeds for which they are kept.
_BOUNDS_SPEEDS = 16
#: Streams with which the warm-up looks what several cost.
_TOGETHER = 8
#: For so long after the first audio that a restarted worker made, its gaps are not counted.
_RESTART_S = 5.0
_PRIOR_RHO, _PRIOR_BURST_S, _PRIOR_QUEUE_S = 0.5, 0.1, 0.005
_UNHURRIED_S = 60.0
_TEXT = "Hello there, this is a first sentence."
#: How much of it: the cold time is long enough for the codec's windows to have their usual size.
_FRAMES_COLD, _FRAMES, _FRAMES_TOGETHER = 30, 75, 40


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
        self._restarts, self._excused_until = 0, 0.0

    @property
    def ceiling(self) -> int:
        """Contexts that there may be, however fast the engines are. They must have started."""
        return self._settings.max_contexts or self._talker.capacity

    async def learn(self, voice: str) -> None:
        """Warm up, and learn what the machine carries if it is measured. Raises BackendError."""
        if self._settings.admission == "measured":
            self.capacity = Capacity(CapacitySettings(self._codec.spec.frame_s, self.ceiling))
        self.begin()
        await self._speak(voice, "warm-up-1", _FRAMES_COLD, is_cold=True)  # it teaches nothing
        silence_s = await self._speak(voice, "warm-up-2", _FRAMES) / self._codec.spec.sample_rate
        together = 1 if self.capacity is None else min(_TOGETHER, self.ceiling)
        if together > 1:  # what several streams cost cannot be known from one
            async with asyncio.TaskGroup() as tasks:
                for number in range(together):
                    name = f"warm-up-3-{number}"
                    tasks.create_task(self._speak(voice, name, _FRAMES_TOGETHER))
        self.on_trimmed(min(silence_s, self._settings.trim_silence_ms / 1000))
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
        """The estimator that every stream tells its rows."""
        if self._estimator is None:
            raise RuntimeError("the engines have not started")
        return self._estimator

    def on_decoded(self, stats: DecodeStats) -> None:
        """The codec answered a window."""
        if self.capacity is not None:
            share_s = stats.decode_s / max(1, stats.batch)
            self.capacity.codec.observe(stats.new_frames, share_s, time.monotonic())
        if self._estimator is not None:
            self._estimator.decode.observe(
                stats.frames, stats.queue_s, stats.decode_s, stats.slack_s, max(1, stats.batch)
            )

    def on_sent(self, stream: int, audio_s: float, gap_s: float, active: int) -> None:
        """Audio of ``audio_s`` went out to a listener who had been without for ``gap_s``, while
        ``active`` contexts were open. Gaps of a worker's restart say nothing of the load.
        """
        if self.capacity is None:
            return
        now, restarts = time.monotonic(), self._talker.restarts + self._codec.restarts
        if restarts != self._restarts:
            self._restarts, self._excused_until = restarts, now + _RESTART_S
        if now < self._excused_until:
            gap_s = 0.0
        self.capacity.underruns.observe(stream, audio_s, gap_s, active, now)

    def on_trimmed(self, seconds: float) -> None:
        """So much silence was left out at the beginning of a context."""
        if self._estimator is not None:
            self._estimator.observe_trimmed(seconds)

    def bounds(self, speed: float = 1.0) -> PaceBounds:
        """The pace as measured just now, or a moment ago: every chunk of every stream asks."""
        now, live = time.monotonic(), self.estimator.live
        bounds, at, beside = self._bounds.get(speed, (None, 0.0, 0))
        if bounds is None or now - at > _BOUNDS_AGE_S or abs(live - beside) > _BOUNDS_SHIFT * live:
            if len(self._bounds) >= _BOUNDS_SPEEDS:
                self._bounds.clear()
            layout, spec = self._talker.row_layout, self._codec.spec
            schedule = schedule_settings(self._settings, spec, speed=speed, layout=layout)
            bounds = self.estimator.bounds(schedule, self._codec.outstanding)
            self._bounds[speed] = bounds, now, live
        return bounds

    async def _speak(
        self, voice: str, request_id: str, frames: int, *, is_cold: bool = False
    ) -> int:
        """Returns the samples of silence at the beginning. Raises BackendError without audio."""
        codec, spec = self._codec, self._codec.spec
        reader = self._talker.row_layout.reader(spec)
        chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
        observer = None if is_cold else self.estimator.open()
        request = SpeechRequest(
            request_id, _TEXT, voice, sampling=Sampling(temperature=0.0), max_frames=frames
        )
        async with aclosing(self._talker.generate(request)) as batches:
            async for batch in batches:
                if observer is not None:
                    observer.observe(len(batch.rows), time.monotonic())
                chunker.push(reader.push_rows(batch.rows))
        if observer is not None:
            observer.close()
        chunker.finish()
        samples = silence = 0
        while chunker.pending:
            window = chunker.take(min(10, chunker.pending), 4)
            # nobody listens: what these windows wait for each other harms nobody
            pcm, stats = await codec.decode(window, time.monotonic() + _UNHURRIED_S)
            self.on_decoded(stats)
            if not np.isfinite(pcm).all():
                message = "The codec made something else than audio."
                raise BackendError(ErrorCode.CODEC_FAILED, message)
            if silence == samples:
                silence += leading_silence(pcm, QUIET)
            samples += len(pcm)
        if not samples:
            raise BackendError(ErrorCode.ENGINE_FAILED, "The talker did not speak.")
        return silence

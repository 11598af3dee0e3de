"""Measured pace of the engines, from the warm-up and from all later work."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import numpy as np

from service.engines.chunking import schedule_settings
from service.engines.contracts import RunningCodec, RunningTalker
from service.settings import Settings
from streaming.capacity import Capacity, CapacitySettings
from streaming.chunk_schedule import PaceBounds
from streaming.errors import BackendError, ErrorCode
from streaming.gpu_limits import outstanding_for
from streaming.latency import PaceEstimator
from streaming.lru_cache import LruCache
from streaming.ports import Arrival, DecodeStats, Reference, Sampling, SpeechRequest
from streaming.report import QUIET, leading_silence
from streaming.window import SlidingWindowChunker

#: Bounds are computed again after this many seconds, since they depend on streams that last for
#: seconds, or when this share of the streams has begun or ended.
_BOUNDS_AGE_S, _BOUNDS_SHIFT = 0.2, 0.1
#: Maximum number of speeds for which bounds are cached.
_BOUNDS_SPEEDS = 16
#: Number of simultaneous streams in the warm-up that measures the cost of several.
_TOGETHER = 8
#: Gaps are not counted for this many seconds after the first audio that follows a restart.
_RESTART_S = 5.0
_PRIOR_RHO, _PRIOR_BURST_S, _PRIOR_QUEUE_S = 0.5, 0.1, 0.005
_UNHURRIED_S = 60.0
_TEXT, _INSTRUCTIONS = "Hello there, this is a first sentence.", "A calm voice."
#: New frames of a warm-up's first window; each later one has twice as many.
_FIRST_WINDOW = 2
#: Frames per warm-up; the cold one is long enough for the codec's windows to reach full size.
_FRAMES_COLD, _FRAMES, _FRAMES_TOGETHER = 30, 75, 40


class EnginePace:
    """The pace of talker and codec, and the number of streams that they can serve. Before ``learn``
    or ``begin``, ``estimator`` and ``bounds`` raise RuntimeError.
    """

    def __init__(self, settings: Settings, talker: RunningTalker, codec: RunningCodec) -> None:
        self._settings, self._talker, self._codec = settings, talker, codec
        self._estimator: PaceEstimator | None = None
        #: None if admission is not measured.
        self.capacity: Capacity | None = None
        #: By speed: the bounds, the time when they were computed, and the streams at that time.
        self._bounds: LruCache[float, tuple[PaceBounds, float, int]] = LruCache(_BOUNDS_SPEEDS)
        self._restarts, self._excused_until = 0, 0.0
        #: What the warm-up speaks with instead of a voice.
        self._reference: Reference | None = None

    @property
    def ceiling(self) -> int:
        """Maximum number of contexts, however fast the engines are. They must have started."""
        most = self._settings.max_contexts or self._talker.capacity
        outstanding = self._settings.talker_max_outstanding
        return min(most, outstanding or outstanding_for(self._talker.capacity))

    async def learn(self, voice: str, reference: Reference | None = None) -> None:
        """Warm up with a voice, or with a ``reference`` instead, and measure the capacity if
        admission is measured. Raises BackendError, or an ExceptionGroup of several.
        """
        self._reference = reference
        if self._settings.admission == "measured":
            self.capacity = Capacity(CapacitySettings(self._codec.spec.frame_s, self.ceiling))
        self.begin()
        async with asyncio.TaskGroup() as tasks:  # for each worker's windows; not measured
            for number in range(self._codec.workers):
                name = f"warm-up-1-{number}"
                tasks.create_task(self._speak(voice, name, _FRAMES_COLD, is_cold=True))
        silence_s = await self._speak(voice, "warm-up-2", _FRAMES) / self._codec.spec.sample_rate
        together = 1 if self.capacity is None else min(_TOGETHER, self.ceiling)
        if together > 1:  # the cost of several does not follow from that of one
            async with asyncio.TaskGroup() as tasks:
                for number in range(together):
                    name = f"warm-up-3-{number}"
                    tasks.create_task(self._speak(voice, name, _FRAMES_TOGETHER, alone=False))
        self.on_trimmed(min(silence_s, self._settings.trim_silence_ms / 1000))
        if self.capacity is not None:
            self.capacity.settle()

    def begin(self) -> None:
        """Begin with a cautious guess: RTF 0.5 and some jitter. The codec must have started."""
        cost, spec = self._codec.cost, self._codec.spec
        guess = PaceBounds(
            row_s=_PRIOR_RHO * spec.frame_s,
            burst_s=_PRIOR_BURST_S,
            queue_s=_PRIOR_QUEUE_S,
            decode_fixed_s=cost.fixed_s + cost.frame_s * spec.left_frames,
            decode_frame_s=cost.frame_s,
        )
        self._estimator = PaceEstimator(spec.frame_s, guess, self.capacity)
        self._note_workers()

    @property
    def has_begun(self) -> bool:
        """Whether ``estimator`` and ``bounds`` are available."""
        return self._estimator is not None

    @property
    def estimator(self) -> PaceEstimator:
        """The estimator that observes the rows of all streams."""
        if self._estimator is None:
            raise RuntimeError("the engines have not started")
        return self._estimator

    def on_decoded(self, stats: DecodeStats) -> None:
        """Record a window that the codec has decoded."""
        self._on_work(stats)
        if self._estimator is not None:
            self._estimator.decode.observe(
                stats.new_frames + stats.lookahead,
                stats.queue_s,
                stats.decode_s,
                stats.slack_s,
                max(1, stats.batch),
                busy_s=stats.busy_s,
                now=time.monotonic(),
            )

    def _on_work(self, stats: DecodeStats) -> None:
        """Record how much of the codec's time a window took."""
        self._note_workers()
        if self.capacity is not None:
            share_s = stats.decode_s / max(1, stats.batch)
            self.capacity.codec.observe(stats.new_frames, share_s, time.monotonic())

    def _note_workers(self) -> None:
        workers = self._codec.workers
        if self.capacity is not None:
            self.capacity.codec.workers = workers
        if self._estimator is not None:
            self._estimator.decode.workers = workers

    def weight(self, chunk_frames: int) -> float:
        """Number of ordinary streams that cost the codec as much as one with such chunks."""
        return 1.0 if self.capacity is None else self.capacity.codec.weight(chunk_frames)

    def on_sent(self, stream: int, audio_s: float, gap_s: float, active: int) -> None:
        """Record that ``audio_s`` of audio was sent to a listener after an underrun of ``gap_s``,
        while ``active`` contexts were open. Underruns due to a worker's restart are not counted.
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
        """Record the silence that was trimmed at the beginning of a context."""
        if self._estimator is not None:
            self._estimator.observe_trimmed(seconds)

    def bounds(self, speed: float = 1.0) -> PaceBounds:
        """Return the measured bounds. They are cached briefly, since every chunk asks for them."""
        now, live = time.monotonic(), self.estimator.live
        bounds, at, beside = self._bounds.get(speed, (None, 0.0, 0))
        if bounds is None or now - at > _BOUNDS_AGE_S or abs(live - beside) > _BOUNDS_SHIFT * live:
            layout, spec = self._talker.spec.layout, self._codec.spec
            schedule = schedule_settings(self._settings, spec, speed=speed, layout=layout)
            bounds = self.estimator.bounds(schedule, self._codec.outstanding, now)
            self._bounds[speed] = bounds, now, live
        return bounds

    async def _speak(
        self, voice: str, request_id: str, frames: int, *, is_cold: bool = False, alone: bool = True
    ) -> int:
        """Speak, and return the samples of leading silence. Raises BackendError without audio.

        The windows begin small and are decoded while rows come, as in a real utterance: bounds from
        other sizes, or from an idle talker, would be too tight for the first listeners. Windows of
        several speakers, of which none speaks ``alone``, do not wait for their turn here: they tell
        how much the codec can carry, but not what one window costs.
        """
        codec, spec = self._codec, self._codec.spec
        layout = self._talker.spec.layout
        lookahead = schedule_settings(self._settings, spec, layout=layout).lookahead_frames
        reader = layout.reader(spec)
        chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
        observer = None if is_cold else self.estimator.open()
        learn = self.on_decoded if alone else self._on_work
        size = _FIRST_WINDOW
        samples = silence = 0

        async def decode(new_frames: int) -> None:
            nonlocal samples, silence
            window = chunker.take(new_frames, lookahead)
            # there is no listener, so these windows may wait for each other
            pcm, stats = await codec.decode(window, time.monotonic() + _UNHURRIED_S)
            learn(stats)
            if not np.isfinite(pcm).all():
                message = "The codec made something else than audio."
                raise BackendError(ErrorCode.CODEC_FAILED, message)
            if silence == samples:
                silence += leading_silence(pcm, QUIET)
            samples += len(pcm)

        request = SpeechRequest(
            request_id,
            _TEXT,
            voice,
            sampling=Sampling(temperature=0.0),
            max_frames=frames,
            reference=self._reference,
            instructions=_INSTRUCTIONS if self._talker.spec.needs_instructions else None,
        )
        decodes = list[asyncio.Task[None]]()
        try:
            async with aclosing(self._talker.generate(request)) as batches:
                async for batch in batches:
                    if observer is not None:
                        now = time.monotonic()
                        observer.observe_all(batch.came or (Arrival(len(batch.rows), now),))
                    chunker.push(reader.push_rows(batch.rows))
                    is_idle = all(one.done() for one in decodes)
                    if is_idle and chunker.pending >= size + lookahead:
                        decodes.append(asyncio.create_task(decode(size)))
                        size *= 2
            if observer is not None:
                observer.close()
            await asyncio.gather(*decodes)
        finally:
            for one in decodes:
                one.cancel()
        chunker.finish()
        while chunker.pending:
            await decode(min(size, chunker.pending))
            size *= 2
        if not samples:
            raise BackendError(ErrorCode.ENGINE_FAILED, "The talker did not speak.")
        return silence

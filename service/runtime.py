"""Everything the sockets share: talker, codec, pace, admission, metrics, readiness."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from service.admission import Admission
from service.chunking import schedule_settings
from service.engines import RunningCodec, RunningTalker
from service.heartbeat import beat
from service.metrics import Metrics
from service.settings import Settings
from service.snapshot import Snapshot, Worker
from service.warmup import warm_up
from streaming import wire
from streaming.errors import CapacityError, ErrorCode, RequestError
from streaming.line import LineSettings
from streaming.pace import PaceEstimator
from streaming.ports import Sampling, SpeechRequest
from streaming.schedule import PaceBounds, ScheduleSettings
from streaming.segment import SegmentSettings
from streaming.session import SessionSettings

log = logging.getLogger(__name__)
#: Bounds are worked out anew after so long: they rest on streams that last for seconds.
_BOUNDS_AGE_S = 0.1
_PRIOR_RHO, _PRIOR_BURST_S, _PRIOR_QUEUE_S = 0.5, 0.1, 0.005


class Phase(StrEnum):
    """Where the whole service is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Runtime:
    """The service's state, apart from its sockets."""

    def __init__(
        self,
        settings: Settings,
        talker: RunningTalker,
        codec: RunningCodec,
        metrics: Metrics,
    ) -> None:
        self.settings, self.talker, self.codec = settings, talker, codec
        self.metrics = metrics
        self._pace: PaceEstimator | None = None
        self._bounds: PaceBounds | None = None
        self._bounds_at = 0.0
        self.admission = Admission(settings.max_contexts or 1)
        self.phase = Phase.STARTING
        #: Set once, when the service has first become ready.
        self.ready = asyncio.Event()
        #: Set once, when no new work is taken any more.
        self.draining = asyncio.Event()
        self.connections = 0
        self._alone = asyncio.Event()
        self._alone.set()
        self._heart: asyncio.Task[None] | None = None
        metrics.watch(self.snapshot)

    async def start(self) -> None:
        """Start both engines side by side, speak once to warm up and to learn the pace."""
        began = time.monotonic()
        self._heart = asyncio.create_task(beat(self.metrics.loop_lag.observe))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.talker.start())
            tasks.create_task(self.codec.start())
        self.admission.capacity = self.settings.max_contexts or self.talker.capacity
        self._pace = PaceEstimator(self.codec.spec.frame_s, self._prior())
        await warm_up(self.talker, self.codec, self._pace, self.voices[0])
        self.phase = Phase.READY
        self.ready.set()
        log.info(
            "ready",
            extra={"seconds": time.monotonic() - began, "capacity": self.admission.capacity},
        )

    @contextmanager
    def connection(self) -> Iterator[None]:
        """A client is connected while the block runs."""
        self.connections += 1
        self._alone.clear()
        self.metrics.opened.inc()
        try:
            yield
        finally:
            self.connections -= 1
            if not self.connections:
                self._alone.set()

    async def drain(self) -> None:
        """Take no new work, let what is under way finish, and return when all have gone.

        Sockets tell their clients, and close when their contexts are done, or after
        ``drain_s`` at the latest.
        """
        self.phase = Phase.DRAINING
        self.draining.set()
        log.info("draining", extra={"connections": self.connections})
        await self._alone.wait()

    async def stop(self) -> None:
        """End both engines."""
        self.phase = Phase.DRAINING
        if self._heart is not None:
            self._heart.cancel()
        await asyncio.gather(self.talker.stop(), self.codec.stop())

    def _prior(self) -> PaceBounds:
        """A careful guess, until streams have been seen: half of real time, some jitter."""
        return PaceBounds(
            row_s=_PRIOR_RHO * self.codec.spec.frame_s,
            burst_s=_PRIOR_BURST_S,
            queue_s=_PRIOR_QUEUE_S,
            decode_fixed_s=self.codec.cost.fixed_s,
            decode_frame_s=self.codec.cost.frame_s,
        )

    @property
    def pace(self) -> PaceEstimator:
        """What is known of the engines' pace. RuntimeError before ``start`` has come to it."""
        if self._pace is None:
            raise RuntimeError("the engines have not started")
        return self._pace

    def on_decoded(self, frames: int, queue_s: float, decode_s: float, batch: int) -> None:
        """The codec answered a window of so many frames, context included."""
        if self._pace is not None:
            self._pace.observe_decode(frames, queue_s, decode_s)
        self.metrics.codec_queue.observe(queue_s)
        self.metrics.codec_decode.observe(decode_s)
        self.metrics.codec_batch.observe(batch)

    def snapshot(self) -> Snapshot:
        """What the metrics show of the service as it is now."""
        talker, codec, started = self.talker, self.codec, self._pace is not None
        working = min(talker.live, talker.outstanding)
        return Snapshot(
            ready=self.is_ready,
            draining=self.phase is Phase.DRAINING,
            connections=self.connections,
            contexts=self.admission.active,
            capacity=self.admission.capacity,
            workers={
                "talker": Worker(talker.is_ready, talker.restarts),
                "codec": Worker(codec.is_ready, codec.restarts),
            },
            talker_working=working,
            talker_waiting=talker.outstanding - working,
            codec_windows=codec.outstanding,
            pace=self.bounds() if started else None,
            frame_s=codec.spec.frame_s if started else None,
        )

    @property
    def is_ready(self) -> bool:
        """Whether new contexts can be served now."""
        return self.phase is Phase.READY and self.talker.is_ready and self.codec.is_ready

    @property
    def voices(self) -> Sequence[str]:
        """See RunningTalker."""
        return self.talker.voices

    def require_ready(self) -> None:
        """Raise CapacityError unless new contexts can be served."""
        if self.phase is Phase.DRAINING:
            raise CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        if not self.is_ready:
            raise CapacityError(
                ErrorCode.NOT_READY, "The server is not ready yet.", retry_after_ms=1000
            )

    def schedule_settings(self, chunking: wire.ChunkingOptions | None = None) -> ScheduleSettings:
        """See service.chunking."""
        return schedule_settings(self.settings, self.codec.spec, chunking)

    def bounds(self) -> PaceBounds:
        """The pace as measured just now, or a moment ago: every chunk of every stream asks."""
        now = time.monotonic()
        if self._bounds is None or now - self._bounds_at > _BOUNDS_AGE_S:
            self._bounds, self._bounds_at = self.pace.bounds(self.schedule_settings()), now
        return self._bounds

    def session_settings(self, create: wire.ContextCreate) -> SessionSettings:
        """What a new context's Session is made with. Raises RequestError."""
        mine = self.settings
        lead_ms = create.max_lead_ms or mine.default_lead_ms
        if lead_ms > mine.max_lead_ms:
            raise RequestError(
                ErrorCode.INVALID_PARAMETER,
                f"max_lead_ms may be {mine.max_lead_ms} at most.",
                param="max_lead_ms",
            )
        line = LineSettings(
            codec=self.codec.spec,
            schedule=self.schedule_settings(create.chunking),
            bounds=self.bounds,
            mode=create.mode,
            max_lead_s=lead_ms / 1000,
        )
        segments = SegmentSettings(max_chars=mine.segment_chars)
        return SessionSettings(line, segments, mine.max_text_chars)

    def speech_request(self, create: wire.ContextCreate, request_id: str) -> SpeechRequest:
        """The template of a context's talker requests. Raises RequestError."""
        if create.model is not None and create.model != self.settings.model_name:
            raise RequestError(
                ErrorCode.UNKNOWN_MODEL, "This server does not serve that model.", param="model"
            )
        sampling = create.sampling
        return SpeechRequest(
            request_id=request_id,
            text="",
            voice=create.voice or self.voices[0],
            language=create.language,
            sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed),
            max_frames=sampling.max_frames,
        )

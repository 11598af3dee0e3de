"""Everything the sockets share: talker, codec, pace, admission, metrics, readiness."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial

from codec.engine import DecodeStats
from service.admission import Admission
from service.auth.accounts import Accounts
from service.auth.authority import Authority
from service.auth.caller import current_caller
from service.auth.places import TenantAdmission
from service.chunking import schedule_settings
from service.engines import RunningCodec, RunningTalker
from service.heartbeat import beat
from service.metrics import Metrics
from service.settings import Settings
from service.snapshot import Snapshot, Worker
from service.tracing import Tracing
from service.voices.clip import ClipReader
from service.voices.cloning import Cloner, Transcriber
from service.voices.library import VoiceLibrary
from service.warmup import warm_up
from streaming import wire
from streaming.capacity import Capacity, CapacitySettings
from streaming.errors import CapacityError, ErrorCode, RequestError
from streaming.line import LineSettings
from streaming.pace import PaceEstimator
from streaming.ports import Sampling, SpeechRequest
from streaming.schedule import PaceBounds, ScheduleSettings
from streaming.segment import SegmentSettings
from streaming.session import SessionSettings

log = logging.getLogger(__name__)
#: Bounds are worked out anew after so long, since they rest on streams that last for seconds, or
#: when so large a share of the streams has come or gone.
_BOUNDS_AGE_S, _BOUNDS_SHIFT = 0.1, 0.1
#: Speeds for which they are kept.
_BOUNDS_SPEEDS = 16
_MAX_UPLOADS = 8
#: Streams with which the warm-up looks what several cost.
_TOGETHER = 8
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
        library: VoiceLibrary | None = None,
        transcriber: Transcriber | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings, self.talker, self.codec = settings, talker, codec
        self.metrics, self.tracing = metrics, tracing
        #: Where the talker takes its voices from.
        self.library = library or VoiceLibrary(settings.voices_dir, settings.max_voices)
        #: Who may come in, and what each may use. Raises KeyFileError.
        self.authority = Authority(settings.api_keys_file, settings.max_failed_keys_per_minute)
        self._transcriber = transcriber
        self._cloner: Cloner | None = None
        #: Requests with a clip in their body, which may be large.
        self.uploads = Admission(_MAX_UPLOADS)
        self._pace: PaceEstimator | None = None
        self._capacity: Capacity | None = None
        #: By speed, with the time when they were worked out, and the streams of then.
        self._bounds: dict[float, tuple[PaceBounds, float, int]] = {}
        self.admission: Admission = TenantAdmission(settings.max_contexts or 1, self.accounts)
        self.phase = Phase.STARTING
        #: Set once, when the service has first become ready.
        self.ready = asyncio.Event()
        #: Set while no new work is taken.
        self.draining = asyncio.Event()
        self._is_ending = False
        self.connections = 0
        self._alone = asyncio.Event()
        self._alone.set()
        self._beside: list[asyncio.Task[None]] = []
        metrics.watch(self.snapshot)
        metrics.watch_tenants(self.authority)

    async def start(self) -> None:
        """Start both engines side by side, speak once to warm up and to learn the pace."""
        began = time.monotonic()
        if self._transcriber is not None:
            self._transcriber.check()
        self._beside = [
            asyncio.create_task(beat(self.metrics.loop_lag.observe)),
            asyncio.create_task(self.authority.watch()),
        ]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.talker.start())
            tasks.create_task(self.codec.start())
        await self.library.open(self.codec.spec, self.codec.fingerprint, self.talker.model_folder)
        self._cloner = Cloner(
            self.library,
            ClipReader(self.codec.spec.sample_rate),
            self.codec,
            self.talker,
            self.settings.segment_chars,
            self._transcriber,
        )
        await self._measure()
        self.phase = Phase.DRAINING if self.draining.is_set() else Phase.READY
        self.ready.set()
        log.info(
            "ready",
            extra={"seconds": time.monotonic() - began, "capacity": self.admission.capacity},
        )

    async def _measure(self) -> None:
        """Speak to warm up, and learn what the machine carries, unless that is fixed."""
        ceiling = self.settings.max_contexts or self.talker.capacity
        frame_s, measured = self.codec.spec.frame_s, None
        if self.settings.admission == "measured":
            measured = self._capacity = Capacity(CapacitySettings(frame_s, ceiling))
        self._pace = PaceEstimator(frame_s, self._prior(), measured)
        together = 1 if measured is None else min(_TOGETHER, ceiling)
        await warm_up(self.talker, self.codec, self._pace, self.voices[0], together)
        if measured is not None:
            measured.settle()
        self.admission.ceiling, self.admission.measured = ceiling, measured

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
        self._is_ending = True
        self.begin_drain()
        await self._alone.wait()

    def begin_drain(self) -> None:
        """Take no new work from here on; ``end_drain`` undoes it."""
        if not self.draining.is_set():
            self.phase = Phase.DRAINING
            self.draining.set()
            log.info("draining", extra={"connections": self.connections})

    def end_drain(self) -> bool:
        """Take new work again, and return True, unless the server is about to end. Sockets that
        have been told to go still go, when their contexts are done.
        """
        if self._is_ending:
            return False
        if self.draining.is_set():
            self.phase = Phase.READY if self.ready.is_set() else Phase.STARTING
            self.draining.clear()
            log.info("draining no more")
        return True

    async def stop(self) -> None:
        """End both engines."""
        self.phase = Phase.DRAINING
        for task in self._beside:
            task.cancel()
        await self.library.close()
        if self._transcriber is not None:
            await self._transcriber.stop()
        await asyncio.gather(self.talker.stop(), self.codec.stop())
        if self.tracing is not None:
            await self.tracing.stop()

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
    def accounts(self) -> Accounts:
        """What tenants and keys use."""
        return self.authority.accounts

    @property
    def cloner(self) -> Cloner:
        """What makes voices of clips. Raises CapacityError before ``start`` has come to it."""
        if self._cloner is None:
            raise CapacityError(ErrorCode.NOT_READY, "The server is not ready yet.")
        return self._cloner

    @property
    def pace(self) -> PaceEstimator:
        """What is known of the engines' pace. RuntimeError before ``start`` has come to it."""
        if self._pace is None:
            raise RuntimeError("the engines have not started")
        return self._pace

    def on_decoded(self, stats: DecodeStats) -> None:
        """The codec answered a window."""
        queue_s, decode_s, batch = stats.queue_s, stats.decode_s, stats.batch
        if self._capacity is not None:
            share_s = decode_s / max(1, batch)
            self._capacity.codec.observe(stats.new_frames, share_s, time.monotonic())
        if self._pace is not None:
            self._pace.observe_decode(stats.frames, queue_s, decode_s, stats.slack_s)
        if self.tracing is not None:
            self.tracing.on_decoded(stats.window, queue_s, decode_s, batch)
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
        """The names that the caller may ask for; the first is the default."""
        own = self.library.own_names(current_caller().tenant)
        return tuple(dict.fromkeys((*self.talker.voices, *own)))

    def require_ready(self) -> None:
        """Raise CapacityError unless new contexts can be served."""
        if self.phase is Phase.DRAINING:
            raise CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        if not self.is_ready:
            raise CapacityError(
                ErrorCode.NOT_READY, "The server is not ready yet.", retry_after_ms=1000
            )

    def schedule_settings(
        self, chunking: wire.ChunkingOptions | None = None, speed: float = 1.0
    ) -> ScheduleSettings:
        """See service.chunking."""
        return schedule_settings(self.settings, self.codec.spec, chunking, speed)

    def bounds(self, speed: float = 1.0) -> PaceBounds:
        """The pace as measured just now, or a moment ago: every chunk of every stream asks."""
        now, live = time.monotonic(), self.pace.live
        bounds, at, beside = self._bounds.get(speed, (None, 0.0, 0))
        if bounds is None or now - at > _BOUNDS_AGE_S or abs(live - beside) > _BOUNDS_SHIFT * live:
            if len(self._bounds) >= _BOUNDS_SPEEDS:
                self._bounds.clear()
            bounds = self.pace.bounds(self.schedule_settings(speed=speed))
            self._bounds[speed] = bounds, now, live
        return bounds

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
        speed = create.audio.speed
        line = LineSettings(
            codec=self.codec.spec,
            schedule=self.schedule_settings(create.chunking, speed),
            bounds=partial(self.bounds, speed),
            mode=create.mode,
            max_lead_s=lead_ms / 1000,
            speed=speed,
        )
        segments = SegmentSettings(mine.segment_chars, spoken_lengths=self.talker.spoken_lengths)
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
            voice=self.library.resolve(create.voice or self.voices[0], current_caller().tenant),
            language=create.language,
            sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed),
            max_frames=sampling.max_frames,
            word_timings=create.timestamps,
            conversation=self._conversation(create),
        )

    @property
    def continuity(self) -> list[str]:
        """What ``continuity`` a context may ask for; the first is the default."""
        return ["context", "none"] if self.talker.has_continuity else ["none"]

    def _conversation(self, create: wire.ContextCreate) -> str | None:
        asked = create.continuity or self.continuity[0]
        if asked not in self.continuity:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                "This model cannot go on from what it said before.",
                param="continuity",
            )
        return uuid.uuid4().hex if asked == "context" else None

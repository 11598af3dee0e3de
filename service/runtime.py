"""Everything the sockets share: talker, codec, pace, admission, metrics, readiness."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from codec.decodes import DecodeStats
from service.admission import Admission
from service.auth.accounts import Accounts
from service.auth.authority import Authority
from service.auth.caller import current_caller
from service.auth.places import TenantAdmission
from service.engine_pace import EnginePace
from service.engines import RunningCodec, RunningTalker
from service.heartbeat import beat
from service.metrics import Metrics
from service.rounds import Rounds
from service.settings import Settings
from service.snapshot import Snapshot, Worker
from service.tracing import Tracing
from service.voices.clip import ClipReader
from service.voices.cloning import Cloner, Transcriber
from service.voices.library import VoiceLibrary
from streaming.errors import CapacityError, ErrorCode
from streaming.pace import PaceEstimator

log = logging.getLogger(__name__)
_MAX_UPLOADS = 8


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
        self.engine_pace = EnginePace(settings, talker, codec)
        self.admission: Admission = TenantAdmission(settings.max_contexts or 1, self.accounts)
        self.phase = Phase.STARTING
        #: Set once, when the service has first become ready.
        self.ready = asyncio.Event()
        #: Set while no new work is taken.
        self.draining = asyncio.Event()
        self._is_ending = False
        self._draining_since = 0.0
        self.connections = 0
        #: Looks after the sockets.
        self.rounds = Rounds()
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
        await self.engine_pace.learn(self.voices[0])
        self.admission.ceiling = self.engine_pace.ceiling
        self.admission.measured = self.engine_pace.capacity
        self.phase = Phase.DRAINING if self.draining.is_set() else Phase.READY
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
            self._draining_since = time.monotonic()
            self.draining.set()
            self.rounds.soon()
            log.info("draining", extra={"connections": self.connections})

    async def drained(self) -> None:
        """Until the server has been draining for ``drain_s`` without a break."""
        while True:
            await self.draining.wait()
            since = self._draining_since
            await asyncio.sleep(max(0.0, since + self.settings.drain_s - time.monotonic()))
            if self.draining.is_set() and self._draining_since == since:
                return

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
        return self.engine_pace.estimator

    def on_decoded(self, stats: DecodeStats) -> None:
        """The codec answered a window."""
        queue_s, decode_s, batch = stats.queue_s, stats.decode_s, stats.batch
        self.engine_pace.on_decoded(stats)
        if self.tracing is not None:
            self.tracing.on_decoded(stats.window, queue_s, decode_s, batch)
        self.metrics.codec_queue.observe(queue_s)
        self.metrics.codec_decode.observe(decode_s)
        self.metrics.codec_batch.observe(batch)

    def on_error(self, code: ErrorCode) -> None:
        """The caller is told of an error."""
        self.metrics.on_error(code)
        if code is ErrorCode.RATE_LIMITED:
            self.accounts.on_refusal(current_caller())

    def snapshot(self) -> Snapshot:
        """What the metrics show of the service as it is now."""
        talker, codec, pace = self.talker, self.codec, self.engine_pace
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
            pace=pace.bounds() if pace.has_begun else None,
            frame_s=codec.spec.frame_s if pace.has_begun else None,
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

    def require_text(self, text: str) -> None:
        """Raise CapacityError if the caller may not have so much text spoken now."""
        self.accounts.require_text(current_caller(), len(text), time.monotonic())

    def require_ready(self) -> None:
        """Raise CapacityError unless new contexts can be served."""
        if self.phase is Phase.DRAINING:
            raise CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        if not self.is_ready:
            raise CapacityError(
                ErrorCode.NOT_READY, "The server is not ready yet.", retry_after_ms=1000
            )

"""State shared by all connections: engines, pace, admission, metrics, readiness."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from service.admission import Admission
from service.auth.authenticator import Authority, TokenSigner
from service.auth.caller import current_caller, serving
from service.engine_stats import EnginePace
from service.engines import RunningCodec, RunningTalker
from service.metrics import Metrics, RuntimeCollector
from service.settings import Settings
from service.timers import LoopTurns, TimerWheel, beat, watch_files
from service.tracing import Tracing
from service.voices.clip_reader import ClipReader
from service.voices.cloning import Cloner, Transcriber
from service.voices.registry import VoiceLibrary
from service.voices.shipped import ShippedVoicesError, encode_shipped
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.events import Event, Failed, LeadLifted
from streaming.ports import DecodeStats

if TYPE_CHECKING:
    from service.contexts.driver import ContextDriver

log = logging.getLogger(__name__)
#: Concurrent uploads on the whole server, and one client's share of them.
_MAX_UPLOADS, _UPLOADS_SHARE = 8, 0.5
_SEGMENT_CHARS = 300
#: Interval at which held clients check whether the service is ready.
_HOLD_LOOK_S = 0.05
#: Seconds that a context waits for restarting engines.
_RESTART_S = 60.0


class Phase(StrEnum):
    """Phase of the service's lifecycle."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Runtime:
    """The service's state, except for its sockets."""

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
        #: The source of the talker's voices.
        self.library = library or VoiceLibrary(settings.voices_dir, settings.max_voices)
        #: Keys and their limits. Raises KeyFileError.
        self.authority = Authority(
            settings.api_keys_file,
            settings.max_failed_keys_per_minute,
            tokens=TokenSigner.of_file(settings.token_secret_file),
        )
        self._transcriber = transcriber
        self._cloner: Cloner | None = None
        #: Slots for requests with a clip in their body, which may be large.
        self.uploads = Admission(_MAX_UPLOADS, max_share=_UPLOADS_SHARE)
        self.engine_pace = EnginePace(settings, talker, codec)
        self.accounts = self.authority.accounts
        self.admission = Admission(
            settings.max_contexts or 1,
            self.accounts,
            max_share=settings.max_client_share,
            rest_s=settings.slot_rest_s,
        )
        #: Set when the service first becomes ready, and never cleared.
        self.ready = asyncio.Event()
        #: Set while no new work is accepted.
        self.draining = asyncio.Event()
        self._is_ending = False
        self.connections = 0
        #: Contexts whose session has not ended.
        self.open_contexts: set[ContextDriver] = set()
        self._ending: asyncio.Task[None] | None = None
        #: Housekeeping of the sockets.
        self.timers = TimerWheel()
        #: Contexts are set up one per turn of the loop, so that refusals are sent first.
        self.setup_turns = LoopTurns()
        self._held = 0
        self._unconnected = asyncio.Event()
        self._unconnected.set()
        self._background: list[asyncio.Task[None]] = []
        metrics.registry.register(RuntimeCollector(self))

    @property
    def segment_chars(self) -> int:
        """Maximum length of a piece of incomplete text: the operator's setting, or the talker's."""
        return self.settings.max_segment_chars or self.talker.segment_chars or _SEGMENT_CHARS

    async def start(self) -> None:
        """Start both engines concurrently, warm up and measure the pace."""
        began, settings = time.monotonic(), self.settings
        log.info(
            "clients are held until the engines are ready", extra={"at_most_s": settings.hold_s}
        )
        self._background = [
            asyncio.create_task(beat(self.metrics.loop_lag.observe)),
            asyncio.create_task(watch_files()),
            asyncio.create_task(self.authority.watch()),
        ]
        await self.library.require_folder()  # else refused only when the engines are loaded
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.talker.start())
            tasks.create_task(self.codec.start())
            if self._transcriber is not None:
                tasks.create_task(self._transcriber.prepare())
        await self.library.open(self.codec.spec, self.codec.fingerprint, self.talker.model_folder)
        reader, chars = ClipReader(self.codec.spec.sample_rate), self.segment_chars
        self._cloner = Cloner(
            self.library, reader, self.codec, self.talker, chars, self._transcriber
        )
        await self._add_shipped_voices(reader, self._cloner)
        await self.engine_pace.learn(self.voices[0])
        self.admission.ceiling = self.engine_pace.ceiling
        self.admission.measured = self.engine_pace.capacity
        self.ready.set()
        told = {
            "seconds": time.monotonic() - began,
            "capacity": self.admission.capacity,
            "unknown_voices": "default" if settings.accepts_unknown_voices else "refused",
        }
        log.info("ready", extra=told)

    async def _add_shipped_voices(self, reader: ClipReader, cloner: Cloner) -> None:
        """Add the project's own voices if the checkpoint has none."""
        is_bare = self.talker.model_folder is not None and not self.library.has_built_in
        if self.settings.shipped_voices == "off" or not is_bare:
            return
        try:
            voices = await encode_shipped(self.codec, reader, check=cloner.check)
        except ShippedVoicesError as error:
            raise BackendError(ErrorCode.STORAGE_FAILED, str(error)) from error
        self.library.add_built_in(voices)
        log.info("shipped voices", extra={"voices": [voice.name for voice in voices]})

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Count one connection during the block."""
        self.connections += 1
        self._unconnected.clear()
        try:
            yield
        finally:
            self.connections -= 1
            if not self.connections:
                self._unconnected.set()

    async def drain(self) -> None:
        """Accept no new work, finish open contexts, and return when all clients have disconnected.
        Sockets inform their clients, and close when their contexts are done or after ``drain_s``.
        """
        self._is_ending = True
        self.begin_drain()
        await self._unconnected.wait()

    def begin_drain(self) -> None:
        """Accept no new work until ``end_drain``."""
        if not self.draining.is_set():
            self.draining.set()
            self.timers.soon()
            self._tell_contexts(LeadLifted())
            self._ending = asyncio.create_task(self._cut_at_deadline())
            log.info("draining", extra={"connections": self.connections})

    async def _cut_at_deadline(self) -> None:
        """Fail contexts that are still open after ``drain_s``, so that their clients know why."""
        await asyncio.sleep(self.settings.drain_s)
        self.metrics.cut_by_drain.inc(len(self.open_contexts))
        shutting_down = CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        self._tell_contexts(Failed(shutting_down))

    def _tell_contexts(self, event: Event) -> None:
        """Post an event to all open contexts, on behalf of their callers, not of who drains."""
        for context in list(self.open_contexts):
            with serving(context.caller):
                context.post(event)

    def end_drain(self) -> bool:
        """Accept new work again and return True, unless the server is about to end. Sockets that
        have announced the drain still close when their contexts are done, without a deadline.
        """
        if self._is_ending:
            return False
        if self.draining.is_set():
            self.draining.clear()
            if self._ending is not None:
                self._ending.cancel()
            log.info("draining no more")
        return True

    async def stop(self) -> None:
        """Stop the engines and all background tasks."""
        self._is_ending = True
        for task in (*self._background, self._ending):
            if task is not None:
                task.cancel()
        await self.library.close()
        if self._transcriber is not None:
            await self._transcriber.stop()
        await asyncio.gather(self.talker.stop(), self.codec.stop())
        if self.tracing is not None:
            await self.tracing.stop()

    @property
    def cloner(self) -> Cloner:
        """Makes voices from clips. Raises CapacityError during the start."""
        if self._cloner is None:
            raise CapacityError(ErrorCode.NOT_READY, "The server is not ready yet.")
        return self._cloner

    def on_decoded(self, stats: DecodeStats) -> None:
        """Record a window that the codec has decoded."""
        self.engine_pace.on_decoded(stats)
        self.metrics.codec_queue.observe(stats.queue_s)
        self.metrics.codec_decode.observe(stats.decode_s)
        self.metrics.codec_batch.observe(stats.batch)

    def on_error(self, code: ErrorCode) -> None:
        """Count an error that is sent to the current caller."""
        self.metrics.errors.labels(code.value).inc()
        if code is ErrorCode.RATE_LIMITED:
            self.accounts.on_refusal(current_caller())

    @property
    def is_ready(self) -> bool:
        """Whether new contexts can be served now."""
        return self.phase is Phase.READY and self._are_engines_ready

    @property
    def _are_engines_ready(self) -> bool:
        return self.talker.is_ready and self.codec.is_ready

    @property
    def is_draining(self) -> bool:
        """Whether the server accepts no new work: an operator drains it, or it is about to end."""
        return self.draining.is_set() or self._is_ending

    @property
    def phase(self) -> Phase:
        """The service's current phase."""
        if self.is_draining:
            return Phase.DRAINING
        return Phase.READY if self.ready.is_set() else Phase.STARTING

    @property
    def voices(self) -> Sequence[str]:
        """Names of the voices that the caller may use; the first is the default."""
        own = self.library.own_names(current_caller().tenant)
        return tuple(dict.fromkeys((*self.talker.voices, *own)))

    def require_text(self, text: str) -> None:
        """Raise CapacityError if the caller may not have a text of this length spoken now."""
        self.accounts.require_text(current_caller(), len(text), time.monotonic())

    async def hold_until_ready(self) -> None:
        """Hold a client for at most ``hold_s`` while the engines start, so that it does not give up
        after a few refusals. At most ``max_connections`` are held.
        """
        if self.is_ready or self.draining.is_set() or self._held >= self.settings.max_connections:
            return
        self._held += 1
        try:
            await _wait_until(lambda: self.is_ready or self.draining.is_set(), self.settings.hold_s)
        finally:
            self._held -= 1
            self.metrics.held.labels("served" if self.is_ready else "refused").inc()

    async def wait_for_restart(self) -> bool:
        """Wait for restarting engines, also while draining, and return whether they are ready. This
        may take longer than ``hold_s``, since the client of an open context does not give up within
        seconds.
        """
        if self.settings.hold_s:
            most_s = max(_RESTART_S, self.settings.hold_s)
            await _wait_until(lambda: self._are_engines_ready, most_s)
        return self._are_engines_ready

    def require_slot(self) -> None:
        """Raise CapacityError unless a context of the caller can be served; a cheap check."""
        self.require_ready(or_restarting=True)
        self.admission.require(current_caller())

    def require_ready(self, *, or_restarting: bool = False) -> None:
        """Raise CapacityError unless new contexts can be served, now or after a restart."""
        if self.is_draining:
            raise CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        may_wait = or_restarting and self.phase is Phase.READY and self.settings.hold_s > 0
        if not (self.is_ready or may_wait):
            message = "The server is not ready yet."
            raise CapacityError(ErrorCode.NOT_READY, message, retry_after_ms=1000)


async def _wait_until(is_over: Callable[[], bool], most_s: float) -> None:
    for _ in range(math.ceil(most_s / _HOLD_LOOK_S)):
        if is_over():
            break
        await asyncio.sleep(_HOLD_LOOK_S)

"""The parts of the service that all connections share, and their start and end."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from service.admission import Admission
from service.auth.authenticator import Authority
from service.auth.caller import current_caller
from service.auth.limits import Accounts
from service.engines.contracts import Engines
from service.engines.leading_silence import LeadingSilence
from service.engines.pace import EnginePace
from service.errors import ErrorLog
from service.launch import Launch
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pronunciations.library import PronunciationLibrary
from service.settings import Settings
from service.timers import LoopTurns, TimerWheel, beat, watch_files
from service.tracing import Tracing
from service.voices.names import Voices

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of one service. Functions that need one or two of them take these instead."""

    settings: Settings
    #: Talker, codec and recogniser.
    engines: Engines
    #: The engines' measured pace, and the number of streams that they can serve.
    pace: EnginePace
    #: Phase, drains, connections and open contexts.
    lifecycle: Lifecycle
    #: The voices, and what makes them from clips.
    voices: Voices
    #: The dictionaries of pronunciations.
    pronunciations: PronunciationLibrary
    #: Slots for contexts.
    admission: Admission
    #: Slots for requests with a clip in their body, which may be large.
    uploads: Admission
    #: Keys and tokens of callers.
    authority: Authority
    #: Limits and figures of tenants and keys.
    accounts: Accounts
    #: Counts and logs the errors that clients get.
    errors: ErrorLog
    metrics: Metrics
    #: Traces of utterances, if the operator wants them.
    tracing: Tracing | None
    #: Housekeeping of the sockets.
    timers: TimerWheel
    #: Contexts are set up one per turn of the loop, so that refusals are sent first.
    setup_turns: LoopTurns
    #: The engines' start, if it began before this.
    launch: Launch | None
    #: The codes of silence that utterances do not begin with, if the operator wants so.
    leading_silence: LeadingSilence = field(default_factory=LeadingSilence)
    #: Tasks from ``start`` to ``stop``.
    housekeeping: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Start the engines, open the voices, warm up and measure the pace."""
        settings, launch = self.settings, self.launch
        began = time.monotonic() if launch is None else launch.since
        log.info(
            "clients are held until the engines are ready", extra={"at_most_s": settings.hold_s}
        )
        await self.pronunciations.open()
        for work in (
            beat(self.metrics.loop_lag.observe),
            watch_files(),
            self.authority.watch(),
            self.pronunciations.watch(),
        ):
            self.housekeeping.append(asyncio.create_task(work))
        await self.voices.library.require_folder()  # else refused only when the engines are loaded
        await (self.engines.start() if launch is None else launch.starting)
        if settings.mask_silence_frames:
            await self.leading_silence.learn(self.engines)
        await self.voices.open()
        await self.pace.learn(self.voices.names[0], self.voices.stand_in())
        self.admission.ceiling = self.pace.ceiling
        self.lifecycle.max_connections = settings.connections(self.pace.ceiling)
        self.admission.measured = self.pace.capacity
        self.lifecycle.ready.set()
        fields = {
            "seconds": time.monotonic() - began,
            "capacity": self.admission.capacity,
            "max_contexts": self.admission.ceiling,
            "max_connections": self.lifecycle.max_connections,
            "unknown_voices": "default" if settings.accepts_unknown_voices else "refused",
            "unknown_models": "default" if settings.accepts_unknown_models else "refused",
        }
        log.info("ready", extra=fields)

    async def stop(self) -> None:
        """Stop the engines and all background tasks."""
        self.lifecycle.end()
        for task in self.housekeeping:
            task.cancel()
        await self.voices.library.close()
        await self.engines.stop()
        if self.tracing is not None:
            await self.tracing.stop()

    @property
    def has_room(self) -> bool:
        """Whether a new client's socket and context would be served now. Slots that could be taken
        back count as held, and slots that are kept for certain clients as free.
        """
        has_connection = self.lifecycle.connections < self.lifecycle.max_connections
        has_slot = self.admission.active < self.admission.capacity
        return self.lifecycle.is_ready and has_connection and has_slot

    def require_slot(self) -> None:
        """Raise CapacityError unless a context of the caller can be served; a cheap check."""
        self.lifecycle.require_ready(or_restarting=True)
        self.admission.require(current_caller())

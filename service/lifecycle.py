"""The service's lifecycle: its phase, drains, held clients, connections and open contexts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from service.auth.caller import Caller, serving
from service.engines.contracts import Engines
from service.metrics import Metrics
from service.settings import Settings
from service.timers import TimerWheel
from streaming.errors import CapacityError, ErrorCode
from streaming.events import Event, Failed, LeadLifted

log = logging.getLogger(__name__)
#: Interval at which held clients check whether the service is ready.
_HOLD_CHECK_S = 0.05
#: Seconds that a context waits for restarting engines.
_RESTART_S = 60.0


class Phase(StrEnum):
    """Phase of the service's lifecycle."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class OpenContext(Protocol):
    """A context whose session has not ended."""

    @property
    def caller(self) -> Caller:
        """On whose behalf it speaks."""

    def post(self, event: Event) -> None:
        """Handle an event."""


class Lifecycle:
    """Decides whether the service accepts work, and ends it. ``timers`` are called at once when a
    drain begins.
    """

    def __init__(
        self, settings: Settings, engines: Engines, metrics: Metrics, timers: TimerWheel
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._metrics = metrics
        self._timers = timers
        #: Set when the service first becomes ready, and never cleared.
        self.ready = asyncio.Event()
        #: Set while no new work is accepted.
        self.draining = asyncio.Event()
        #: Open WebSockets, HTTP speech responses, and voices being added.
        self.connections = 0
        #: Maximum number of WebSockets; it may grow with the engines' capacity.
        self.max_connections = settings.connections()
        #: Contexts whose session has not ended.
        self.open_contexts: set[OpenContext] = set()
        #: Clients that wait until the engines are ready.
        self.held = 0
        self._is_ending = False
        self._cut: asyncio.Task[None] | None = None
        self._unconnected = asyncio.Event()
        self._unconnected.set()

    @property
    def phase(self) -> Phase:
        """The service's current phase."""
        if self.is_draining:
            return Phase.DRAINING
        return Phase.READY if self.ready.is_set() else Phase.STARTING

    @property
    def is_ready(self) -> bool:
        """Whether new contexts can be served now."""
        return self.phase is Phase.READY and self._engines.are_ready

    @property
    def is_draining(self) -> bool:
        """Whether the server accepts no new work: an operator drains it, or it is about to end."""
        return self.draining.is_set() or self._is_ending

    def require_ready(self, *, or_restarting: bool = False) -> None:
        """Raise CapacityError unless new contexts can be served, now or after a restart."""
        if self.is_draining:
            raise CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        may_wait = or_restarting and self.phase is Phase.READY and self._settings.hold_s > 0
        if not (self.is_ready or may_wait):
            message = "The server is not ready yet."
            raise CapacityError(ErrorCode.NOT_READY, message, retry_after_ms=1000)

    async def hold_until_ready(self) -> None:
        """Hold a client for at most ``hold_s`` while the engines start, so that it does not give up
        after a few refusals. At most ``max_connections`` are held.
        """
        is_full = self.held >= self.max_connections
        if self.is_ready or self.draining.is_set() or is_full:
            return
        self.held += 1
        try:
            await _wait_until(
                lambda: self.is_ready or self.draining.is_set(), self._settings.hold_s
            )
        finally:
            self.held -= 1
            self._metrics.held.labels("served" if self.is_ready else "refused").inc()

    async def wait_for_restart(self) -> bool:
        """Wait for restarting engines, also while draining, and return whether they are ready. This
        may take longer than ``hold_s``, since the client of an open context does not give up within
        seconds.
        """
        if self._settings.hold_s:
            max_s = max(_RESTART_S, self._settings.hold_s)
            await _wait_until(lambda: self._engines.are_ready, max_s)
        return self._engines.are_ready

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
            self._timers.soon()
            self._post_to_contexts(LeadLifted())
            self._cut = asyncio.create_task(self._cut_at_deadline())
            log.info("draining", extra={"connections": self.connections})

    def end_drain(self) -> bool:
        """Accept new work again and return True, unless the server is about to end. Sockets that
        have announced the drain still close when their contexts are done, without a deadline.
        """
        if self._is_ending:
            return False
        if self.draining.is_set():
            self.draining.clear()
            if self._cut is not None:
                self._cut.cancel()
            log.info("draining no more")
        return True

    def end(self) -> None:
        """Accept no new work, without waiting for open contexts."""
        self._is_ending = True
        if self._cut is not None:
            self._cut.cancel()

    async def _cut_at_deadline(self) -> None:
        """Fail contexts that are still open after ``drain_s``, so that their clients know why."""
        await asyncio.sleep(self._settings.drain_s)
        self._metrics.cut_by_drain.inc(len(self.open_contexts))
        shutting_down = CapacityError(ErrorCode.DRAINING, "The server is shutting down.")
        self._post_to_contexts(Failed(shutting_down))

    def _post_to_contexts(self, event: Event) -> None:
        """Post an event to all open contexts, on behalf of their callers, not of who drains."""
        for context in list(self.open_contexts):
            with serving(context.caller):
                context.post(event)


async def _wait_until(is_over: Callable[[], bool], max_s: float) -> None:
    for _ in range(math.ceil(max_s / _HOLD_CHECK_S)):
        if is_over():
            break
        await asyncio.sleep(_HOLD_CHECK_S)

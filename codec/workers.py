"""The active codec workers and, if wanted, a warm spare.

Each is kept running by a supervisor of its own. All work goes to the active workers. When one dies,
a spare that is up becomes active at once, and the dead one is restarted as the spare.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from codec.messages import FromWorker, Ready
from ipc.supervisor import ChildDown, Program, Supervisor, Watch

log = logging.getLogger(__name__)
#: Seconds until a spare that could not start is tried again, since no work waits for it.
_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkerEvents:
    """Called for active workers only, each with its number: with a message, when it becomes active,
    and when it has died. A spare that replaces it is active by then.
    """

    on_message: Callable[[int, FromWorker], None]
    on_ready: Callable[[int, Ready], None]
    on_down: Callable[[int], None]


class CodecWorkers:
    """``count`` active workers, and one more with ``spare``. They have numbers from 0 on. The
    program's ``on_progress`` is called for the first worker; its other callbacks are not used.
    """

    def __init__(
        self,
        program: Program[FromWorker],
        watch: Watch,
        events: WorkerEvents,
        *,
        count: int = 1,
        spare: bool = False,
    ) -> None:
        self._events = events
        self._count = count

        def supervisor(number: int) -> Supervisor[FromWorker]:
            own = replace(
                program,
                on_message=lambda message: self._receive(number, message),
                on_ready=lambda ready: self._came_up(number, ready),
                on_down=lambda: self._went_down(number),
            )
            if number:
                own = replace(own, on_progress=lambda phase, seconds: None)
            return Supervisor(own, watch)

        self._supervisors = [supervisor(number) for number in range(count + spare)]
        #: The last ready message of each.
        self._ready: dict[int, Ready] = {}
        #: Numbers of the active workers, in order.
        self._active: list[int] = []
        self._starting_spare: asyncio.Task[None] | None = None
        self._is_stopping = False
        #: Number of times that the spare has taken over from an active worker.
        self.takeovers = 0

    async def start(self) -> None:
        """Return once ``count`` workers are ready; the spare starts after them. Raises ChildFailed
        if one of them cannot start. The others run until ``stop``.
        """
        await asyncio.gather(*(one.start() for one in self._supervisors[: self._count]))
        if self._is_stopping:  # they came up just before they were stopped
            return
        for spare in self._supervisors[self._count :]:
            self._starting_spare = asyncio.create_task(_start_until_ready(spare))

    async def stop(self) -> None:
        """Stop the workers."""
        self._is_stopping = True
        if self._starting_spare is not None:
            self._starting_spare.cancel()
            await asyncio.wait([self._starting_spare])
        await asyncio.gather(*(one.stop() for one in self._supervisors))

    def send(self, number: int, message: msgspec.Struct) -> None:
        """Queue a message for an active worker. Raises ChildDown."""
        if number not in self._active:
            raise ChildDown
        self._supervisors[number].send(message)

    @property
    def active(self) -> Sequence[int]:
        """Numbers of the active workers, in order."""
        return self._active

    @property
    def is_up(self) -> bool:
        """Whether an active worker accepts work now."""
        return any(self._supervisors[number].is_up for number in self._active)

    @property
    def has_spare_up(self) -> bool:
        """Whether another worker could take over now."""
        return sum(one.is_up for one in self._supervisors) > self._count

    @property
    def restarts(self) -> int:
        """Number of times that any worker has been restarted."""
        return sum(one.restarts for one in self._supervisors)

    @property
    def pids(self) -> list[int | None]:
        """The active workers' process ids; before there is one, the first worker's."""
        return [self._supervisors[number].pid for number in self._active or [0]]

    @property
    def spare_pid(self) -> int | None:
        """The process id of a worker that is not active, while there is one."""
        active = self._active or [0]
        others = (one.pid for n, one in enumerate(self._supervisors) if n not in active)
        return next(others, None)

    def _receive(self, number: int, message: FromWorker) -> None:
        if number in self._active:
            self._events.on_message(number, message)

    def _came_up(self, number: int, ready: Ready) -> None:
        self._ready[number] = ready
        if len(self._active) < self._count:
            self._activate(number)
            self._events.on_ready(number, ready)
        else:
            log.info("a spare codec worker is ready")

    def _went_down(self, number: int) -> None:
        if number not in self._active:
            return
        self._active.remove(number)
        spare = None if self._is_stopping else self._find_spare(number)
        if spare is not None:
            self._activate(spare)
            self.takeovers += 1
            log.warning("the spare codec worker takes over")
        self._events.on_down(number)
        if spare is not None:
            self._events.on_ready(spare, self._ready[spare])

    def _find_spare(self, dead: int) -> int | None:
        """Return the number of a worker that is up and not active; None without one."""
        for number, supervisor in enumerate(self._supervisors):
            if number != dead and number not in self._active and supervisor.is_up:
                return number
        return None

    def _activate(self, number: int) -> None:
        self._active = sorted([*self._active, number])


async def _start_until_ready(spare: Supervisor[FromWorker]) -> None:
    while True:
        try:
            return await spare.start()
        except Exception as error:
            log.error("no spare codec worker: %s", error, extra={"try_again_in_s": _RETRY_S})
        await asyncio.sleep(_RETRY_S)

"""The active codec worker and, if wanted, a warm spare.

Each is kept running by a supervisor of its own. All work goes to the active worker. When it dies, a
spare that is up becomes the active one at once, and the dead one is restarted as the spare.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import msgspec

from codec.messages import FromWorker, Ready
from ipc.supervisor import ChildDown, Program, Supervisor, Watch

log = logging.getLogger(__name__)
#: Seconds until a spare that could not start is tried again, since no work waits for it.
_RETRY_S = 60.0


class CodecWorkers:
    """One worker, or two with ``spare``. The program's callbacks are called for the active worker
    only, except for ``on_progress``, which is called for the first worker.
    """

    def __init__(self, program: Program[FromWorker], watch: Watch, *, spare: bool) -> None:
        self._program = program

        def supervisor(number: int) -> Supervisor[FromWorker]:
            mine = replace(
                program,
                on_message=lambda message: self._hear(number, message),
                on_ready=lambda ready: self._came_up(number, ready),
                on_down=lambda: self._went_down(number),
            )
            if number:
                mine = replace(mine, on_progress=lambda phase, seconds: None)
            return Supervisor(mine, watch)

        self._supervisors = [supervisor(number) for number in range(1 + spare)]
        #: The last ready message of each.
        self._ready: dict[int, Ready] = {}
        self._active: int | None = None
        self._starting_spare: asyncio.Task[None] | None = None
        self._is_stopping = False
        #: Number of times that the spare has taken over from the active worker.
        self.takeovers = 0

    async def start(self) -> None:
        """Return once a worker is ready; the spare starts after it. Raises ChildFailed."""
        await self._supervisors[0].start()
        if self._is_stopping:  # it came up just before it was stopped
            return
        for spare in self._supervisors[1:]:
            self._starting_spare = asyncio.create_task(_start_until_ready(spare))

    async def stop(self) -> None:
        """Stop the workers."""
        self._is_stopping = True
        if self._starting_spare is not None:
            self._starting_spare.cancel()
            await asyncio.wait([self._starting_spare])
        await asyncio.gather(*(one.stop() for one in self._supervisors))

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message for the active worker. Raises ChildDown."""
        if self._active is None:
            raise ChildDown
        self._supervisors[self._active].send(message)

    @property
    def is_up(self) -> bool:
        """Whether the active worker accepts work now."""
        return self._active is not None and self._supervisors[self._active].is_up

    @property
    def has_spare_up(self) -> bool:
        """Whether another worker could take over now."""
        return sum(one.is_up for one in self._supervisors) > 1

    @property
    def restarts(self) -> int:
        """Number of times that either worker has been restarted."""
        return sum(one.restarts for one in self._supervisors)

    @property
    def pid(self) -> int | None:
        """The active worker's process id; before there is one, the first worker's."""
        return self._supervisors[self._active or 0].pid

    @property
    def spare_pid(self) -> int | None:
        """The other worker's process id, while there is one."""
        others = (one.pid for n, one in enumerate(self._supervisors) if n != (self._active or 0))
        return next(others, None)

    def _hear(self, number: int, message: FromWorker) -> None:
        if number == self._active:
            self._program.on_message(message)

    def _came_up(self, number: int, ready: Ready) -> None:
        self._ready[number] = ready
        if self._active is None:
            self._active = number
            self._program.on_ready(ready)
        else:
            log.info("a spare codec worker is ready")

    def _went_down(self, number: int) -> None:
        if number != self._active:
            return
        self._active = None
        self._program.on_down()
        if self._is_stopping:
            return
        for other, supervisor in enumerate(self._supervisors):
            if other != number and supervisor.is_up:
                self._active = other
                self.takeovers += 1
                log.warning("the spare codec worker takes over")
                self._program.on_ready(self._ready[other])


async def _start_until_ready(spare: Supervisor[FromWorker]) -> None:
    while True:
        try:
            return await spare.start()
        except Exception as error:
            log.error("no spare codec worker: %s", error, extra={"try_again_in_s": _RETRY_S})
        await asyncio.sleep(_RETRY_S)

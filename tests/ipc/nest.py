"""A supervisor of echoing children, for the tests of the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ipc.framing import Alive, Fatal, Progress
from ipc.supervisor import Program, Supervisor, Watch
from tests.ipc.echo_child import Hello, Said, Say

HERE = Path(__file__).parent
PATIENT = Watch(start_timeout_s=60.0, hang_timeout_s=20.0, stop_timeout_s=2.0)
#: For hangs; on a busy machine a child may be silent for a second.
QUICK = replace(PATIENT, hang_timeout_s=1.0)


class Nest:
    """A supervisor of echoing children, and a record of its callbacks."""

    def __init__(self, start: str = "well", watch: Watch = PATIENT) -> None:
        self.say = Say
        self.said: list[str] = []
        self.pids: list[int] = []
        self.downs = 0
        self.phases: list[str] = []
        self.stopping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        #: Callbacks that a test may replace.
        self.on_ready: Callable[[Hello], None] = lambda hello: self._note(self.pids, hello.pid)
        self.on_down: Callable[[], None] = self._down
        program: Program[Said] = Program(
            module="echo_child",
            args=["--start", start],
            inbound=Hello | Said | Alive | Progress | Fatal,
            ready=Hello,
            on_message=lambda message: self._note(self.said, message.text),
            on_ready=lambda hello: self.on_ready(hello),
            on_down=lambda: self.on_down(),
            on_progress=lambda phase, seconds: self._note(self.phases, phase),
            env={"PYTHONPATH": str(HERE)},
        )
        self.supervisor = Supervisor(program, watch)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _note(self, where: list, what: object) -> None:
        where.append(what)
        self._changed.set()

    def _stop_at_once(self) -> None:
        self.stopping = asyncio.create_task(self.supervisor.stop())
        self.stopping.add_done_callback(lambda task: self._changed.set())

    def _down(self) -> None:
        self.downs += 1
        self._changed.set()


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

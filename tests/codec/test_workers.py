"""The active codec worker and its spare, whose supervisors are replaced by scripted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import workers as module
from codec.batching import DecodeCost
from codec.messages import Cancel, Encoding, FromWorker, Ready
from codec.workers import CodecWorkers, WorkerEvents
from ipc.supervisor import ChildDown, Program, Watch
from streaming.spec import CodecSpec

SPEC = CodecSpec(24_000, 6, (1000,) * 2, 3, 3)


class Scripted:
    """A supervisor whose worker comes up, speaks and dies when the test says so."""

    made: ClassVar[list[Scripted]] = []

    def __init__(self, program: Program[FromWorker], watch: Watch) -> None:
        self.program, self.is_up, self.restarts = program, False, 0
        self.sent: list[msgspec.Struct] = []
        self.pid = 100 + len(self.made)
        self.made.append(self)

    def send(self, message: msgspec.Struct) -> None:
        if not self.is_up:
            raise ChildDown
        self.sent.append(message)

    async def start(self) -> None:
        self.toggle(READY[self.pid - 100])

    async def stop(self) -> None:
        if self.is_up:
            self.toggle(READY[self.pid - 100])

    def toggle(self, ready: Ready) -> None:
        """Come up, or die and be restarted."""
        self.is_up = not self.is_up
        if self.is_up:
            self.program.on_ready(ready)
        else:
            self.program.on_down()
            self.restarts += 1


READY = [Ready(SPEC, DecodeCost(0.0, 1e-4), fingerprint=f"worker {n}") for n in range(4)]


@pytest.fixture(autouse=True, scope="module")
def _scripted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Supervisor", Scripted)
        yield


def workers_of(told: list[object], count: int = 1, *, spare: bool) -> CodecWorkers:
    """Workers whose events are noted, a worker's number before each."""
    program: Program[FromWorker] = Program(
        module="codec.worker",
        args=[],
        inbound=FromWorker,
        ready=Ready,
        on_message=lambda message: None,
        on_ready=lambda ready: None,
        on_down=lambda: None,
        on_progress=lambda phase, seconds: told.append(phase),
    )
    events = WorkerEvents(
        on_message=lambda number, message: told.append((number, message)),
        on_ready=lambda number, ready: told.append((number, ready)),
        on_down=lambda number: told.append((number, "down")),
    )
    return CodecWorkers(program, Watch(), events, count=count, spare=spare)


STEPS = st.lists(st.tuples(st.sampled_from(["toggle", "speak", "send"]), st.integers(0, 3)))


@given(count=st.integers(1, 3), spare=st.booleans(), steps=STEPS)
def test_as_many_workers_are_active_as_wanted_while_so_many_are_up(
    count: int, spare: bool, steps: list[tuple[str, int]]
) -> None:
    """They alone are given work and heard, and each change is told, in order."""
    told: list[object] = []
    made: list[Scripted] = []
    Scripted.made = made
    workers = workers_of(told, count, spare=spare)
    active: list[int] = []
    expected: list[object] = []
    sent: list[list[object]] = [[] for _ in made]
    takeovers = 0
    for number, (step, which) in enumerate(steps):
        one = which % len(made)
        if step == "toggle":
            made[one].toggle(READY[one])
            if made[one].is_up and len(active) < count:
                active.append(one)
                expected.append((one, READY[one]))
            elif one in active:
                active.remove(one)
                expected.append((one, "down"))
                spares = [n for n, other in enumerate(made) if other.is_up and n not in active]
                if spares:
                    takeovers += 1
                    active.append(spares[0])
                    expected.append((spares[0], READY[spares[0]]))
        elif step == "speak" and made[one].is_up:
            message = Encoding(number)
            made[one].program.on_message(message)
            expected += [(one, message)] if one in active else []
        elif step == "send" and one not in active:
            with pytest.raises(ChildDown):
                workers.send(one, Cancel(number))
        elif step == "send":
            workers.send(one, Cancel(number))
            sent[one].append(Cancel(number))
        assert (told, workers.takeovers) == (expected, takeovers)
        assert [other.sent for other in made] == sent
        assert list(workers.active) == sorted(active)
        assert workers.is_up == any(other.is_up for other in made)
        assert workers.has_spare_up == (sum(other.is_up for other in made) > count)
        assert workers.restarts == sum(other.restarts for other in made)
        assert workers.pids == [made[n].pid for n in sorted(active) or [0]]
        idle = [other.pid for n, other in enumerate(made) if n not in (active or [0])]
        assert workers.spare_pid == (idle[0] if idle else None)


async def test_start_waits_for_all_workers_but_the_spare() -> None:
    Scripted.made = made = list[Scripted]()
    workers = workers_of([], 2, spare=True)
    await workers.start()
    assert [one.is_up for one in made] == [True, True, False]
    while not workers.has_spare_up:
        await asyncio.sleep(0)
    assert list(workers.active) == [0, 1]
    await workers.stop()


async def test_spare_does_not_take_over_at_shutdown() -> None:
    """Operators count takeovers as deaths. The spare's progress is no news while it loads."""
    told: list[object] = []
    Scripted.made = made = list[Scripted]()
    workers = workers_of(told, spare=True)
    await workers.start()
    while not workers.has_spare_up:
        await asyncio.sleep(0)
    for number, one in enumerate(made):
        one.program.on_progress(f"load {number}", 1.0)
    await workers.stop()
    assert told == [(0, READY[0]), "load 0", (0, "down")]
    assert (workers.takeovers, workers.is_up, workers.has_spare_up) == (0, False, False)


async def test_spare_is_not_started_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker may come up just as the workers are stopped; nothing would stop a spare."""
    Scripted.made = made = list[Scripted]()
    workers = workers_of([], spare=True)

    async def come_up() -> None:
        made[0].toggle(READY[0])
        await workers.stop()

    monkeypatch.setattr(made[0], "start", come_up)
    await workers.start()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(one.is_up for one in made)

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
from codec.workers import CodecWorkers
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


READY = [Ready(SPEC, DecodeCost(0.0, 1e-4), fingerprint=name) for name in ("first", "spare")]


@pytest.fixture(autouse=True, scope="module")
def _scripted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Supervisor", Scripted)
        yield


def program_of(told: list[object]) -> Program[FromWorker]:
    """A program that notes its callbacks."""
    return Program(
        module="codec.worker",
        args=[],
        inbound=FromWorker,
        ready=Ready,
        on_message=told.append,
        on_ready=told.append,
        on_down=lambda: told.append("down"),
        on_progress=lambda phase, seconds: told.append(phase),
    )


STEPS = st.lists(st.tuples(st.sampled_from(["toggle", "speak", "send"]), st.booleans()))


@given(spare=st.booleans(), steps=STEPS)
def test_one_worker_is_active_while_any_is_up(spare: bool, steps: list[tuple[str, bool]]) -> None:
    """It alone is given work and heard, and the program is told of each change, in order."""
    told: list[object] = []
    made: list[Scripted] = []
    Scripted.made = made
    workers = CodecWorkers(program_of(told), Watch(), spare=spare)
    active: int | None = None
    expected: list[object] = []
    sent: tuple[list[object], ...] = ([], [])
    takeovers = 0
    for number, (step, second) in enumerate(steps):
        one = int(second and spare)
        if step == "toggle":
            made[one].toggle(READY[one])
            if active is None:
                active = one
                expected.append(READY[one])
            elif active == one:
                expected.append("down")
                active = next((n for n, other in enumerate(made) if other.is_up), None)
                if active is not None:
                    takeovers += 1
                    expected.append(READY[active])
        elif step == "speak" and made[one].is_up:
            message = Encoding(number)
            made[one].program.on_message(message)
            expected += [message] if one == active else []
        elif step == "send" and active is None:
            with pytest.raises(ChildDown):
                workers.send(Cancel(number))
        elif step == "send":
            workers.send(Cancel(number))
            sent[active or 0].append(Cancel(number))
        assert (told, workers.takeovers) == (expected, takeovers)
        assert [other.sent for other in made] == list(sent[: len(made)])
        assert workers.is_up == any(other.is_up for other in made)
        assert workers.has_spare_up == (spare and all(other.is_up for other in made))
        assert workers.restarts == sum(other.restarts for other in made)
        assert workers.pid == made[active or 0].pid
        assert workers.spare_pid == (made[1 - (active or 0)].pid if spare else None)


async def test_spare_does_not_take_over_at_shutdown() -> None:
    """Operators count takeovers as deaths. The spare's progress is no news while it loads."""
    told: list[object] = []
    Scripted.made = made = list[Scripted]()
    workers = CodecWorkers(program_of(told), Watch(), spare=True)
    await workers.start()
    while not workers.has_spare_up:
        await asyncio.sleep(0)
    for number, one in enumerate(made):
        one.program.on_progress(f"load {number}", 1.0)
    await workers.stop()
    assert told == [READY[0], "load 0", "down"]
    assert (workers.takeovers, workers.is_up, workers.has_spare_up) == (0, False, False)


async def test_spare_is_not_started_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker may come up just as the workers are stopped; nothing would stop a spare."""
    Scripted.made = made = list[Scripted]()
    workers = CodecWorkers(program_of([]), Watch(), spare=True)

    async def come_up() -> None:
        made[0].toggle(READY[0])
        await workers.stop()

    monkeypatch.setattr(made[0], "start", come_up)
    await workers.start()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(one.is_up for one in made)

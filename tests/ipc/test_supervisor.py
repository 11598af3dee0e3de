"""The supervisor against a real child process that lives, dies and hangs as told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from ipc import life
from ipc.framing import Alive, Fatal, Progress
from ipc.supervisor import START_TRIES, ChildDown, ChildFailed, Supervisor, Watch

HERE = Path(__file__).parent
QUICK = Watch(start_timeout_s=20.0, hang_timeout_s=1.0, stop_timeout_s=2.0)


class Nest:
    """A supervisor of echoing children, and what it told us."""

    def __init__(self, start: str = "well", watch: Watch = QUICK) -> None:
        sys.path.insert(0, str(HERE))
        try:
            from echo_child import Hello, Said, Say
        finally:
            sys.path.remove(str(HERE))
        self.say = Say
        self.said: list[str] = []
        self.pids: list[int] = []
        self.downs = 0
        self.phases: list[str] = []
        self.stopping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        #: What a test may put something else in place of.
        self.on_ready: Callable[[Hello], None] = lambda hello: self._note(self.pids, hello.pid)
        self.on_down: Callable[[], object] = self._down
        self.supervisor: Supervisor[Said] = Supervisor(
            "echo_child",
            ["--start", start],
            inbound=Hello | Said | Alive | Progress | Fatal,
            ready=Hello,
            on_message=lambda message: self._note(self.said, message.text),
            on_ready=lambda hello: self.on_ready(hello),
            on_down=lambda: self.on_down(),
            on_progress=lambda phase, seconds: self._note(self.phases, phase),
            env={"PYTHONPATH": str(HERE)},
            watch=watch,
        )

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


@pytest_asyncio.fixture
async def nest() -> AsyncIterator[Nest]:
    nest = Nest()
    await nest.supervisor.start()
    yield nest
    await nest.supervisor.stop()


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_ready_then_messages_both_ways(nest: Nest) -> None:
    assert nest.supervisor.is_up
    assert nest.phases == ["think"]
    assert nest.pids == [nest.supervisor.pid]
    for text in ("one", "two", "three" * 100_000):
        nest.supervisor.send(nest.say(text))
    await nest.until(lambda: len(nest.said) == 3)
    assert nest.said == ["one", "two", "three" * 100_000]


async def test_a_killed_child_is_started_again(nest: Nest) -> None:
    first = nest.supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.downs == 1
    assert nest.supervisor.restarts == 1
    assert nest.supervisor.pid != first
    nest.supervisor.send(nest.say("still here"))
    await nest.until(lambda: nest.said == ["still here"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_group_is_the_parents_affair(nest: Nest, number: int) -> None:
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, number)
    nest.supervisor.send(nest.say("here"))
    await nest.until(lambda: nest.said == ["here"])
    assert nest.downs == 0


async def test_what_a_child_said_before_its_death_arrives(nest: Nest) -> None:
    nest.supervisor.send(nest.say("last words", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert nest.said == ["last words"]


async def test_what_a_child_said_arrives_though_its_death_is_known_sooner(
    nest: Nest, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = asyncio.StreamReader.read

    async def read_late(stream: asyncio.StreamReader, most: int = -1) -> bytes:
        await asyncio.sleep(0.5)
        return await read(stream, most)

    monkeypatch.setattr(life, "_LAST_WORDS_S", 30.0)
    monkeypatch.setattr(asyncio.StreamReader, "read", read_late)
    nest.supervisor.send(nest.say("first"))  # for the read that waits already
    await nest.until(lambda: nest.said == ["first"])
    nest.supervisor.send(nest.say("last words", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert nest.said == ["first", "last words"]


async def test_sending_to_a_dead_child_is_an_error(nest: Nest) -> None:
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert not nest.supervisor.is_up
    with pytest.raises(ChildDown):
        nest.supervisor.send(nest.say("lost"))


@pytest.mark.parametrize("how", ["freeze", "SIGSTOP"])
async def test_a_hanging_child_is_killed(nest: Nest, how: str) -> None:
    first = nest.supervisor.pid
    assert first is not None
    if how == "freeze":
        nest.supervisor.send(nest.say("good night", then="freeze"))
    else:
        os.kill(first, signal.SIGSTOP)
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.downs == 1
    assert not is_running(first)


async def test_an_idle_child_is_not_taken_for_hanging(nest: Nest) -> None:
    await asyncio.sleep(2 * QUICK.hang_timeout_s)
    assert (nest.downs, len(nest.pids)) == (0, 1)


async def test_fatal_fails_the_start_with_its_text() -> None:
    nest = Nest("fatal")
    with pytest.raises(ChildFailed, match="nothing to echo with"):
        await nest.supervisor.start()
    assert nest.supervisor.restarts == 0
    await nest.supervisor.stop()


async def test_a_child_that_always_dies_fails_the_start() -> None:
    nest = Nest("crash")
    with pytest.raises(ChildFailed, match="died before"):
        await nest.supervisor.start()
    assert nest.supervisor.restarts == START_TRIES - 1
    await nest.supervisor.stop()


async def test_a_child_that_hangs_while_starting_is_killed() -> None:
    nest = Nest("hang", Watch(start_timeout_s=1.5))
    with pytest.raises(ChildFailed):
        await nest.supervisor.start()
    # on a busy machine a child may be given up before it has said a word
    assert nest.supervisor.restarts == START_TRIES - 1
    assert len(nest.phases) <= START_TRIES
    assert set(nest.phases) <= {"think"}
    await nest.supervisor.stop()


async def test_a_long_way_to_an_early_death_is_no_health() -> None:
    """A large model loads for longer than a child that works must live to be thought well."""
    nest = Nest("hang", Watch(start_timeout_s=1.5, healthy_s=0.5))
    with pytest.raises(ChildFailed):
        async with asyncio.timeout(60):
            await nest.supervisor.start()
    assert nest.supervisor.restarts == START_TRIES - 1
    await nest.supervisor.stop()


async def test_stop_ends_the_child_and_starts_no_other(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    await nest.supervisor.stop()
    assert not is_running(pid)
    assert nest.supervisor.pid is None
    assert nest.supervisor.restarts == 0
    await nest.supervisor.stop()


async def test_stop_kills_a_child_that_does_not_listen(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await nest.supervisor.stop()
    assert not is_running(pid)


async def test_stop_while_a_child_is_buried_still_reaps_it(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    nest.on_down = nest._stop_at_once
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: nest.stopping is not None and nest.stopping.done())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # a zombie would still take it


@pytest.mark.parametrize("end", ["stop", "death"])
async def test_what_a_child_has_started_does_not_outlive_it(nest: Nest, end: str) -> None:
    nest.supervisor.send(nest.say("", then="beget"))
    await nest.until(lambda: bool(nest.said))
    grandchild = int(nest.said[-1])
    assert is_running(grandchild)
    if end == "stop":
        await nest.supervisor.stop()
    else:
        nest.supervisor.send(nest.say("", then="die"))
    async with asyncio.timeout(30):
        while is_running(grandchild):
            await asyncio.sleep(0.01)


async def test_stop_during_the_start_ends_the_waiting() -> None:
    nest = Nest("hang")
    start = asyncio.create_task(nest.supervisor.start())
    await nest.until(lambda: nest.phases == ["think"])
    await nest.supervisor.stop()
    with pytest.raises(ChildFailed, match="stopped"):
        await start


async def test_a_start_that_is_given_up_leaves_nothing_behind() -> None:
    nest = Nest("hang")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nest.supervisor.start(), 0.5)
    pid = nest.supervisor.pid
    await nest.supervisor.stop()
    assert pid is None or not is_running(pid)
    assert nest.supervisor.pid is None


async def test_a_mistake_in_a_callback_is_no_endless_wait() -> None:
    """A callback that raises ends the child's life; the start fails in the end."""
    nest = Nest()

    def broken(hello: object) -> None:
        raise KeyError("mistake")

    nest.on_ready = broken
    with pytest.raises(ChildFailed, match="before it was ready"):
        await nest.supervisor.start()
    await nest.supervisor.stop()


async def test_a_child_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / "lonely_parent.py",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), 30))
    assert is_running(child)
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(60):
        while is_running(child):
            await asyncio.sleep(0.02)

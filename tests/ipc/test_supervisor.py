"""The supervisor, with a real child process that works, dies and hangs on request."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
import pytest_asyncio
import uvloop

from ipc import child_process, supervisor
from ipc.output import OutputLogger
from ipc.supervisor import START_TRIES, ChildDown, ChildFailed, Watch
from tests.ipc.nest import HERE, PATIENT, QUICK, Nest, is_running
from tests.waiting import until


@pytest_asyncio.fixture
async def nest() -> AsyncIterator[Nest]:
    nest = Nest()
    await nest.supervisor.start()
    yield nest
    await nest.supervisor.stop()


async def test_supervisor_exchanges_messages_once_child_is_ready(nest: Nest) -> None:
    assert nest.supervisor.is_up
    assert nest.phases == ["think"]
    assert nest.pids == [nest.supervisor.pid]
    for text in ("one", "two", "three" * 100_000):
        nest.supervisor.send(nest.say(text))
    await nest.until(lambda: len(nest.said) == 3)
    assert nest.said == ["one", "two", "three" * 100_000]


async def test_killed_child_is_restarted(nest: Nest) -> None:
    first = nest.supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.downs == 1
    assert nest.supervisor.restarts == 1
    assert nest.supervisor.pid != first
    nest.supervisor.send(nest.say("still here"))
    await nest.until(lambda: nest.said == ["still here"])


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_messages_to_a_dying_child_are_taken_or_refused_with_child_down(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def send_while_it_dies() -> None:
        nest = Nest()
        await nest.supervisor.start()
        assert nest.supervisor.pid is not None
        os.kill(nest.supervisor.pid, signal.SIGKILL)
        refused = 0
        while not nest.downs:
            is_up = nest.supervisor.is_up
            try:
                nest.supervisor.send(nest.say("are you there?"))
            except ChildDown:
                assert not is_up
                refused += 1
            else:
                assert is_up
            await asyncio.sleep(0)
        await nest.supervisor.stop()
        assert refused

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(send_while_it_dies())


async def test_log_tells_how_child_ended(nest: Nest, caplog: pytest.LogCaptureFixture) -> None:
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, signal.SIGKILL)
    await nest.until(lambda: len(nest.pids) == 2)
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: len(nest.pids) == 3)
    nest.supervisor.send(nest.say("", then="leave"))
    await nest.until(lambda: len(nest.pids) == 4)
    ends = [record for record in caplog.records if record.message == "child ended"]
    assert [vars(end)["exit_status"] for end in ends] == [-signal.SIGKILL, 1, 0]
    endings = ["killed by SIGKILL", "exit status 1", "exit status 0"]
    assert [vars(end)["ending"].partition(":")[0] for end in ends] == endings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
async def test_child_ignores_signals_to_its_group(nest: Nest, number: int) -> None:
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, number)
    nest.supervisor.send(nest.say("here"))
    await nest.until(lambda: nest.said == ["here"])
    assert nest.downs == 0


async def test_child_logs_its_stacks_at_sigusr1_and_works_on(
    nest: Nest, caplog: pytest.LogCaptureFixture
) -> None:
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, signal.SIGUSR1)
    nest.supervisor.send(nest.say("here"))
    nest.supervisor.send(nest.say("", then="die"))  # all of its output is logged before its end
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.said == ["here", ""]
    stacks = "".join(record.getMessage() for record in caplog.records)
    assert "in main" in stacks
    assert 'child.py", line' in stacks


async def test_last_message_of_dying_child_arrives(nest: Nest) -> None:
    nest.supervisor.send(nest.say("last words", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert nest.said == ["last words"]


async def test_last_message_arrives_even_if_exit_is_seen_first(
    nest: Nest, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, loop = child_process._Receiver.data_received, asyncio.get_running_loop()

    def receive_late(receiver: child_process._Receiver, data: bytes) -> None:
        loop.call_later(0.5, receive, receiver, data)

    lose = child_process._Receiver.connection_lost
    monkeypatch.setattr(child_process, "_DRAIN_S", 30.0)
    monkeypatch.setattr(child_process._Receiver, "data_received", receive_late)
    monkeypatch.setattr(
        child_process._Receiver,
        "connection_lost",
        lambda receiver, error: loop.call_later(1.0, lose, receiver, error),
    )
    nest.supervisor.send(nest.say("last words", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert nest.said == ["last words"]


async def test_last_message_arrives_even_if_a_write_fails_first(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    nest.supervisor.send(nest.say("last words", then="die"))
    while is_running(pid):
        pass  # the event loop reads nothing meanwhile
    nest.supervisor.send(nest.say("lost"))
    await nest.until(lambda: nest.downs == 1)
    assert nest.said == ["last words"]


async def test_send_to_dead_child_raises(nest: Nest) -> None:
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: nest.downs == 1)
    assert not nest.supervisor.is_up
    with pytest.raises(ChildDown):
        nest.supervisor.send(nest.say("lost"))


@pytest.mark.parametrize("how", ["freeze", "SIGSTOP"])
async def test_hung_child_is_killed_and_restarted(how: str) -> None:
    nest = Nest(watch=QUICK)
    await nest.supervisor.start()
    first = nest.supervisor.pid
    assert first is not None
    if how == "freeze":
        nest.supervisor.send(nest.say("good night", then="freeze"))
    else:
        os.kill(first, signal.SIGSTOP)
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.downs == 1
    assert not is_running(first)
    await nest.supervisor.stop()


async def test_child_that_closes_its_link_and_stays_is_killed(nest: Nest) -> None:
    first = nest.supervisor.pid
    assert first is not None
    nest.supervisor.send(nest.say("", then="linger"))
    await nest.until(lambda: len(nest.pids) == 2)
    assert not is_running(first)
    assert nest.downs == 1


async def test_idle_child_is_not_considered_hung() -> None:
    nest = Nest(watch=replace(QUICK, hang_timeout_s=6.0))
    await nest.supervisor.start()
    await asyncio.sleep(9.0)
    assert (nest.downs, len(nest.pids)) == (0, 1)
    await nest.supervisor.stop()


async def test_fatal_message_fails_start_with_its_text() -> None:
    nest = Nest("fatal")
    with pytest.raises(ChildFailed, match="nothing to echo with"):
        await nest.supervisor.start()
    assert nest.supervisor.restarts == 0
    await nest.supervisor.stop()


async def test_start_fails_if_child_always_dies() -> None:
    nest = Nest("crash")
    with pytest.raises(ChildFailed, match="echo_child died before"):
        await nest.supervisor.start()
    assert nest.supervisor.restarts == START_TRIES - 1
    assert nest.downs == 0, "none was ready"
    await nest.supervisor.stop()


@pytest.mark.parametrize(
    ("where", "name", "reason"),
    [
        (asyncio, "create_subprocess_exec", "cannot be launched"),
        (socket, "socketpair", "cannot be launched"),
        (None, "create_unix_connection", "cannot be launched"),  # of the running loop
        (tempfile, "mkdtemp", "has no folder for temporary files"),
    ],
)
async def test_start_failure_names_child_that_cannot_be_launched(
    where: object, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*argv: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(where or asyncio.get_running_loop(), name, fail)
    nest = Nest()
    with pytest.raises(ChildFailed, match=rf"echo_child {reason}: .* allocate memory"):
        await nest.supervisor.start()
    await nest.supervisor.stop()


@pytest.mark.parametrize(
    ("where", "name"), [(child_process.ChildProcess, "run"), (asyncio, "create_subprocess_exec")]
)
async def test_start_raises_supervisors_own_bug(
    where: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object, **options: object) -> None:
        raise KeyError("mistake")

    monkeypatch.setattr(where, name, fail)
    nest = Nest()
    with pytest.raises(KeyError, match="mistake"):
        await asyncio.wait_for(nest.supervisor.start(), 30)
    await nest.supervisor.stop()


@pytest.mark.parametrize("error", [PermissionError("not ours"), KeyError("mistake")])
async def test_child_is_restarted_after_supervisors_own_bug(
    nest: Nest, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, failures = child_process.ChildProcess.run, iter([error, error])

    async def fail_twice(child: child_process.ChildProcess) -> None:
        if failure := next(failures, None):
            raise failure
        await run(child)

    monkeypatch.setattr(supervisor, "_BACKOFF_S", (0.0,))
    monkeypatch.setattr(child_process.ChildProcess, "run", fail_twice)
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, signal.SIGKILL)
    await nest.until(lambda: len(nest.pids) == 2)
    assert nest.supervisor.is_up
    failed = [one for one in caplog.records if one.msg == "supervision failed"]
    logged = [one.exc_info and one.exc_info[1] for one in failed]
    assert logged == [error, error]


async def test_start_fails_if_child_always_hangs() -> None:
    nest = Nest("hang", Watch(start_timeout_s=0.75))
    with pytest.raises(ChildFailed):
        await nest.supervisor.start()
    # On a busy machine a child may be killed before its first message.
    assert nest.supervisor.restarts == START_TRIES - 1
    assert len(nest.phases) <= START_TRIES
    assert set(nest.phases) <= {"think"}
    await nest.supervisor.stop()


async def test_time_before_ready_does_not_count_as_healthy() -> None:
    """Loading a large model takes longer than the time after which a child counts as healthy."""
    nest = Nest("hang", Watch(start_timeout_s=0.75, healthy_s=0.25))
    with pytest.raises(ChildFailed):
        async with asyncio.timeout(60):
            await nest.supervisor.start()
    assert nest.supervisor.restarts == START_TRIES - 1
    await nest.supervisor.stop()


async def test_stop_ends_child_without_restart(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    await nest.supervisor.stop()
    assert not is_running(pid)
    assert nest.supervisor.pid is None
    assert nest.supervisor.restarts == 0
    await nest.supervisor.stop()


async def test_stop_kills_unresponsive_child(nest: Nest) -> None:
    pid = nest.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await nest.supervisor.stop()
    assert not is_running(pid)


async def test_stop_lets_child_end_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    nest = Nest(watch=replace(PATIENT, stop_timeout_s=60.0))
    await nest.supervisor.start()
    await nest.supervisor.stop()
    assert "goodbye" in [record.getMessage() for record in caplog.records]


async def test_stop_kills_child_that_does_not_end_within_stop_timeout() -> None:
    """Here it would not be considered hung for an hour."""
    hours = {"hang_timeout_s": 3600.0, "still_timeout_s": 3600.0}
    nest = Nest(watch=replace(PATIENT, **hours, stop_timeout_s=0.1))
    await nest.supervisor.start()
    pid = nest.supervisor.pid
    assert pid is not None
    nest.supervisor.send(nest.say("good night", then="freeze"))
    await nest.until(lambda: nest.said == ["good night"])
    async with asyncio.timeout(60):
        await nest.supervisor.stop()
    assert not is_running(pid)


async def test_stop_during_cleanup_of_child_leaves_nothing_behind(
    nest: Nest, outputs: list[OutputLogger]
) -> None:
    await nest.supervisor.stop()
    await nest.supervisor.start()
    pid = nest.supervisor.pid
    assert pid is not None
    nest.supervisor.send(nest.say("", then="beget"))
    await nest.until(lambda: bool(nest.said))
    grandchild = int(nest.said[-1])
    nest.on_down = nest._stop_at_once
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: nest.stopping is not None and nest.stopping.done())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # would succeed for a zombie
    await until_gone(grandchild)
    assert [output.is_closed for output in outputs] == [True]


async def test_stop_during_launch_leaves_no_open_pipe(
    outputs: list[OutputLogger], monkeypatch: pytest.MonkeyPatch
) -> None:
    launching = asyncio.Event()
    inherited: list[int] = []

    async def launch(*argv: object, stdout: IO[bytes], **options: object) -> None:
        inherited.append(os.dup(stdout.fileno()))  # keeps the write end of the pipe open
        launching.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", launch)
    nest = Nest()
    start = asyncio.create_task(nest.supervisor.start())
    await launching.wait()
    await nest.supervisor.stop()
    with pytest.raises(ChildFailed, match="stopped"):
        await start
    os.close(inherited.pop())
    assert [output.is_closed for output in outputs] == [True]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_cancelled_opening_of_output_leaves_no_file_to_close(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancel_at_every_step() -> int:
        steps, is_open = 0, False
        while not is_open:
            output = OutputLogger("child")
            opening = asyncio.create_task(output.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            if is_open := not opening.cancel():
                opening.result().close()
                await output.close(60)
            await asyncio.wait([opening])
            steps += 1
        return steps

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(cancel_at_every_step()) > 1
    gc.collect()  # an open file would be reported


async def test_stop_before_connection_leaves_nothing_open(
    outputs: list[OutputLogger], monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, links = asyncio.Event(), []

    async def connect(*args: object, sock: socket.socket) -> None:
        links.append(sock)
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", connect)
    nest = Nest("hang")
    start = asyncio.create_task(nest.supervisor.start())
    await connecting.wait()
    pid = nest.supervisor.pid
    assert pid is not None
    await nest.supervisor.stop()
    with pytest.raises(ChildFailed, match="stopped"):
        await start
    assert not is_running(pid)
    assert [link.fileno() for link in links] == [-1]
    assert [output.is_closed for output in outputs] == [True]


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[OutputLogger]:
    """The readers of the output of all children launched from now on."""
    made: list[OutputLogger] = []

    def make(name: str) -> OutputLogger:
        made.append(OutputLogger(name))
        return made[-1]

    monkeypatch.setattr(child_process, "OutputLogger", make)
    return made


async def until_gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    await until(lambda: not is_running(pid))


@pytest.mark.parametrize("end", ["stop", "death"])
async def test_grandchild_does_not_outlive_child(nest: Nest, end: str) -> None:
    nest.supervisor.send(nest.say("", then="beget"))
    await nest.until(lambda: bool(nest.said))
    grandchild = int(nest.said[-1])
    assert is_running(grandchild)
    if end == "stop":
        await nest.supervisor.stop()
    else:
        nest.supervisor.send(nest.say("", then="die"))
    await until_gone(grandchild)


async def test_stop_during_start_fails_start() -> None:
    nest = Nest("hang")
    start = asyncio.create_task(nest.supervisor.start())
    await nest.until(lambda: nest.phases == ["think"])
    await nest.supervisor.stop()
    with pytest.raises(ChildFailed, match="stopped"):
        await start


async def test_stop_during_start_lets_child_end_by_itself_and_fails_start() -> None:
    nest = Nest("until stopped", replace(PATIENT, stop_timeout_s=60.0))
    start = asyncio.create_task(nest.supervisor.start())
    await nest.until(lambda: nest.phases == ["think"])
    await nest.supervisor.stop()
    assert len(nest.pids) == 1, "it got the message, and became ready even so"
    with pytest.raises(ChildFailed, match="stopped"):
        await start


async def test_send_to_starting_child_raises() -> None:
    nest = Nest("hang")
    start = asyncio.create_task(nest.supervisor.start())
    await nest.until(lambda: nest.phases == ["think"])
    assert not nest.supervisor.is_up
    with pytest.raises(ChildDown):
        nest.supervisor.send(nest.say("too early"))
    await nest.supervisor.stop()
    await asyncio.gather(start, return_exceptions=True)


async def test_cancelled_start_leaves_nothing_behind() -> None:
    nest = Nest("hang")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nest.supervisor.start(), 0.5)
    pid = nest.supervisor.pid
    await nest.supervisor.stop()
    assert pid is None or not is_running(pid)
    assert nest.supervisor.pid is None


async def test_start_fails_if_on_ready_raises() -> None:
    """The exception ends each child, until the start fails."""
    nest = Nest()

    def broken(hello: object) -> None:
        raise KeyError("mistake")

    nest.on_ready = broken
    with pytest.raises(ChildFailed, match="before it was ready"):
        await nest.supervisor.start()
    await nest.supervisor.stop()


@pytest.mark.parametrize("callback", ["on_progress", "on_down"])
@pytest.mark.parametrize("error", [OSError("no space"), KeyError("mistake")], ids=["os", "own"])
async def test_exception_in_report_callback_does_not_stop_supervisor(
    nest: Nest, callback: str, error: Exception
) -> None:
    def broken(*args: object) -> None:
        nest._note(nest.said, callback)
        raise error

    nest.on_down = broken
    if callback == "on_progress":
        nest.supervisor._program = replace(nest.supervisor._program, on_progress=broken)
    assert nest.supervisor.pid is not None
    os.kill(nest.supervisor.pid, signal.SIGKILL)
    task = nest.supervisor._task
    assert task is not None
    await nest.until(lambda: len(nest.pids) == 2 or task.done())
    assert nest.supervisor.is_up


async def test_child_output_is_logged_by_line(nest: Nest, caplog: pytest.LogCaptureFixture) -> None:
    nest.supervisor.send(nest.say("one line\nand another, then " + "x" * 100_000, then="print"))
    nest.supervisor.send(nest.say("", then="die"))
    await nest.until(lambda: len(nest.pids) == 2)
    records = [record for record in caplog.records if record.name == "ipc.output"]
    assert records[0].getMessage() == "one line"
    text = "".join(record.getMessage() for record in records[1:])
    assert text == "and another, then " + "x" * 100_000
    assert {vars(record)["child"] for record in records} == {"echo_child"}
    logged = [record.name for record in caplog.records]
    assert logged.index("ipc.supervisor") > logged.index("ipc.output")


async def test_output_without_line_break_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    output = OutputLogger("child")
    output.data_received(b"x" * 10_000)  # too long to wait for the end of the line
    assert "".join(record.getMessage() for record in caplog.records) == "x" * 10_000
    caplog.clear()
    output.data_received(b"one line\r\n10 %\r50 % \xff\nlast ")
    output.data_received(b"words")
    output.connection_lost(None)
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["one line", "10 %", "50 % \\xff", "last words"]


def is_there(path: str) -> bool:
    return os.path.exists(path)


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_temporary_files_of_child_are_removed_at_its_end(nest: Nest, end: str) -> None:
    nest.supervisor.send(nest.say("", then="litter"))
    await nest.until(lambda: len(nest.said) == 1)
    litter = nest.said[0]
    assert is_there(litter)
    if end == "killed":
        assert nest.supervisor.pid is not None
        os.kill(nest.supervisor.pid, signal.SIGKILL)
        await nest.until(lambda: len(nest.pids) == 2)
    else:
        await nest.supervisor.stop()
    assert not is_there(os.path.dirname(litter))


async def test_temporary_files_of_child_are_removed_whatever_its_program_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nest, own = Nest(), str(tmp_path)
    program = nest.supervisor._program
    monkeypatch.setenv("PYTHONPATH", own)  # the program's takes precedence
    nest.supervisor._program = replace(program, env={**program.env, "TMPDIR": own})
    await nest.supervisor.start()
    nest.supervisor.send(nest.say("", then="litter"))
    await nest.until(lambda: len(nest.said) == 1)
    await nest.supervisor.stop()
    assert not is_there(nest.said[0])


async def test_child_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / "lonely_parent.py",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[1])))},
    )
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), 30))
    assert is_running(child)
    parent.kill()
    await parent.wait()
    await until_gone(child)

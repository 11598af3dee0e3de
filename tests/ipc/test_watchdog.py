"""Hang detection: verdicts on scripted vitals, and vitals of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ipc import watchdog
from ipc.watchdog import Vitals, Watchdog, read_vitals

IDLE, BUSY = "time.sleep(600)", "while True: pass"


def verdict(looks: Sequence[tuple[float, float, Vitals | None]], timeout_s: float = 2.0) -> list:
    """Return the verdict on each ``(now, heard, vitals)``. Idle silence may last 0.75 s."""
    dog = Watchdog(0.25)
    return [dog.check(now, heard, timeout_s, 0.75, vitals) for now, heard, vitals in looks]


def every(step_s: float, until_s: float) -> list[float]:
    return [step_s * n for n in range(1, round(until_s / step_s) + 1)]


def test_watchdog_accepts_child_that_sends_messages() -> None:
    looks = [(now, now - 0.2, Vitals("S", 5)) for now in every(0.25, 60)]
    assert set(verdict(looks)) == {None}


def test_watchdog_reports_idle_silent_child_within_one_second() -> None:
    found = verdict([(now, 0.0, Vitals("S", 5)) for now in every(0.2, 1.0)])
    assert found[:3] == [None] * 3
    assert found[-1] == "idle"


@pytest.mark.parametrize("state", ["R", "D", "t"])
def test_watchdog_gives_child_that_is_not_sleeping_full_timeout(state: str) -> None:
    found = verdict([(now, 0.0, Vitals(state, 5)) for now in every(0.2, 2.4)])
    assert set(found[:9]) == {None}
    assert found[-1] == "silent"


def test_watchdog_does_not_report_computing_child_as_idle() -> None:
    looks = [(now, 0.0, Vitals("S", int(100 * now))) for now in every(0.2, 1.8)]
    assert set(verdict(looks)) == {None}


def test_watchdog_reports_stopped_child_despite_recent_message() -> None:
    looks = [(now, now, Vitals("S", 5, is_stopped=True)) for now in every(0.2, 0.8)]
    assert verdict(looks) == [None, None, "stopped", "stopped"]
    once = [(0.2, 0.0, Vitals("T", 5, True)), (0.4, 0.4, Vitals("S", 5))] * 3
    assert set(verdict(once)) == {None}


@pytest.mark.parametrize("vitals", [None, Vitals("S", 5)], ids=["no vitals", "idle"])
@pytest.mark.parametrize("paused_at", [0.2, 0.3, 0.6])
def test_watchdog_ignores_pause_of_its_own_process(vitals: Vitals | None, paused_at: float) -> None:
    """The child sends a message every 0.25 s, and those sent during the pause are read late."""
    dog = Watchdog(0.2)
    heard = 0.0
    for step in range(1, 40):
        paused_s = 20.0 if 0.2 * step > paused_at else 0.0
        is_first = paused_at < 0.2 * step <= paused_at + 0.2
        now = 0.2 * step + paused_s
        heard = heard if is_first else now - now % 0.25
        assert dog.check(now, heard, 0.75, 0.5, vitals) is None


def test_watchdog_ignores_pause_of_whole_container() -> None:
    """It begins just after a message, and neither process has run since."""
    looks = [(0.2, 0.1, Vitals("S", 5)), (20.4, 0.3, Vitals("S", 5)), (20.45, 0.3, Vitals("S", 5))]
    assert verdict(looks) == [None] * 3


def test_watchdog_reports_child_that_hangs_after_computing() -> None:
    """It has used processor time since its last message."""
    looks = [(now, 0.0, Vitals("S", min(int(100 * now), 60))) for now in every(0.2, 1.4)]
    assert verdict(looks)[-1] == "idle"


def test_watchdog_that_is_always_late_reports_hung_child() -> None:
    found = verdict([(1.0 * step, 0.0, Vitals("S", 5)) for step in range(10)])
    assert "idle" in found


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(processes: list[subprocess.Popen[bytes]], code: str) -> int:
    command = [sys.executable, "-c", f"import time, subprocess, sys; {code}"]
    processes.append(subprocess.Popen(command, start_new_session=True))
    return processes[-1].pid


def until(pid: int, state: str) -> Vitals:
    deadline = time.monotonic() + 60
    while (vitals := read_vitals(pid)) is None or vitals.state != state:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return vitals


def test_vitals_distinguish_idle_busy_and_stopped(processes: list[subprocess.Popen[bytes]]) -> None:
    pid = start(processes, IDLE)
    assert not until(pid, "S").is_stopped
    os.kill(pid, signal.SIGSTOP)
    assert until(pid, "T").is_stopped
    os.kill(pid, signal.SIGCONT)
    assert not until(pid, "S").is_stopped
    busy = start(processes, f"\n{BUSY}")
    before = until(busy, "R").ticks
    deadline = time.monotonic() + 60
    while (now := read_vitals(busy)) is not None and now.ticks <= before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("depth", [1, 2])
def test_vitals_report_stopped_grandchild(
    processes: list[subprocess.Popen[bytes]], depth: int
) -> None:
    code = IDLE
    for _ in range(depth):
        inner = f"import subprocess, sys, time; {code}"
        code = f"print(subprocess.run([sys.executable, '-c', {inner!r}]))"
    pid = found = start(processes, code)
    for _ in range(depth):
        deadline = time.monotonic() + 60
        while not (below := children(found)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (found,) = below
    until(found, "S")
    os.kill(found, signal.SIGSTOP)
    until(found, "T")
    assert until(pid, "S").is_stopped


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as listing:
        return [int(child) for child in listing.read().split()]


def test_vitals_are_read_for_any_name_and_without_list_of_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may end while its parent's are listed. Time in the kernel counts too."""
    monkeypatch.setattr(watchdog, "_PROC", tmp_path)
    rest = " ".join(map(str, range(4, 14)))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) R (b) S {rest} 30 4 0 0\n")
    assert read_vitals(7) == Vitals("S", 34)
    (tmp_path / "7" / "task" / "7" / "children").mkdir(parents=True)  # cannot be read
    assert read_vitals(7) == Vitals("S", 34)
    (tmp_path / "7" / "stat").write_text("")
    assert read_vitals(7) is None


def test_vitals_of_ended_process_are_none(processes: list[subprocess.Popen[bytes]]) -> None:
    pid = start(processes, "pass")
    processes.pop().wait()
    assert read_vitals(pid) is None

"""TimerWheel calls its members in time and in few wake-ups; LoopTurns calls one per turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from service.auth.caller import ANYBODY, current_caller, serving
from service.timers import LoopTurns, TimerWheel


class Member:
    """Records the times of its calls."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.at: list[float] = []
        self.told: list[float] = []
        self.leave: Callable[[], None] = lambda: None

    def join(self, rounds: TimerWheel, wait_s: float | None = None) -> None:
        self.leave = rounds.join(self.look, self.wait_s if wait_s is None else wait_s)

    def look(self, now: float) -> float:
        self.at.append(time.monotonic())
        self.told.append(now)
        return self.wait_s


def moments(members: list[Member]) -> int:
    """Count the distinct moments at which members were called."""
    return len({now for member in members for now in member.told})


async def test_timer_wheel_calls_members_repeatedly_at_few_moments() -> None:
    rounds, members = TimerWheel(), [Member(0.1) for _ in range(200)]
    began = time.monotonic()
    for number, member in enumerate(members):
        if number % 5 == 0:
            await asyncio.sleep(0.001)  # so they do not all join in the same millisecond
        member.join(rounds)
    while min(len(member.at) for member in members) < 3:
        await asyncio.sleep(0.01)
    for member in members:
        member.leave()
    elapsed_s = time.monotonic() - began
    calls = sum(len(member.at) for member in members)
    # Waits end at multiples of 25 ms, so six hundred calls and more have no more moments than that.
    assert calls >= 600
    assert moments(members) <= elapsed_s / 0.025 + 1
    for member in members:
        # At most 25 ms sooner than asked for, and 2 ms because loops count in milliseconds.
        assert all(b - a >= 0.1 - 0.025 - 0.002 for a, b in pairwise(member.told))


async def test_timer_wheel_calls_members_at_most_25_ms_early() -> None:
    rounds, members = TimerWheel(), [Member(0.1 + 0.01 * number) for number in range(30)]
    joined = time.monotonic()
    for member in members:
        member.join(rounds)
    while not members[-1].at:
        await asyncio.sleep(0.01)
    for member in members:
        member.leave()
        assert member.told[0] - joined >= member.wait_s - 0.025 - 0.002


async def test_member_removed_at_same_moment_is_not_called() -> None:
    rounds, other, stays = TimerWheel(), Member(0.06), Member(0.06)

    def first(now: float) -> float:
        other.leave()
        return 60.0

    rounds.join(first, 0.0)
    other.join(rounds, 0.0)
    stays.join(rounds, 0.0)
    while len(stays.at) < 2:
        await asyncio.sleep(0.01)
    stays.leave()
    calls = len(stays.at)
    await asyncio.sleep(0.1)
    assert not other.at
    assert len(stays.at) == calls


async def test_member_that_leaves_during_call_is_not_called_again() -> None:
    rounds, calls = TimerWheel(), 0

    def look(now: float) -> float:
        nonlocal calls
        calls += 1
        leave()
        return 0.0

    leave = rounds.join(look, 0.0)
    await asyncio.sleep(0.05)
    assert calls == 1


async def test_soon_calls_all_members_once_and_restarts_their_waits() -> None:
    rounds, members = TimerWheel(), [Member(60.0) for _ in range(3)]
    members[2].wait_s = 0.06
    for member in members:
        member.join(rounds, 60.0)
    rounds.soon()
    while len(members[2].at) < 3:
        await asyncio.sleep(0.01)
    assert [len(member.at) for member in members[:2]] == [1, 1]
    assert len({member.told[0] for member in members}) == 1
    for member in members:
        member.leave()


async def test_soon_cancels_earlier_waits() -> None:
    rounds, member, faults = TimerWheel(), Member(0.06), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    member.join(rounds)
    while len(member.at) < 5:
        await asyncio.sleep(0.01)
    before, member.wait_s = len(member.at), 60.0
    rounds.soon()
    await asyncio.sleep(0.1)  # past the end of the wait that was cut short
    assert len(member.at) == before + 1
    assert not faults
    member.leave()


async def test_loop_turns_call_one_per_turn_after_woken_tasks() -> None:
    turns, seen, turn = LoopTurns(), list[tuple[str, int]](), 0
    woken = asyncio.Event()

    def note(name: str) -> None:
        seen.append((name, turn))

    async def answer() -> None:
        await woken.wait()
        note("answer")

    answering = asyncio.create_task(answer())
    await asyncio.sleep(0)
    for name in "abc":
        turns.put(partial(note, name))
    woken.set()
    assert not seen
    while len(seen) < 4:
        turn += 1
        await asyncio.sleep(0)
    await answering
    assert [name for name, _ in seen] == ["answer", "a", "b", "c"]
    assert all(one < other for (_, one), (_, other) in pairwise(seen[1:]))


async def test_loop_turns_survive_exception_and_keep_caller() -> None:
    turns, served, faults = LoopTurns(), list[object](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    turns.put(partial(served.index, "missing"))
    for network in "ab":
        with serving(replace(ANYBODY, network=network)):
            turns.put(lambda: served.append(current_caller().network))
    while len(served) < 2:
        await asyncio.sleep(0)
    assert served == ["a", "b"]
    assert len(faults) == 1


async def test_withdrawn_callback_is_not_called_and_keeps_no_memory() -> None:
    turns, seen = LoopTurns(), list[int]()
    withdraw = [turns.put(partial(seen.append, number)) for number in range(1000)]
    for each in withdraw[:-1]:
        each()
    for _ in range(4):  # the others' turns are not spent
        await asyncio.sleep(0)
    assert seen == [999]
    withdraw[-1]()
    turns.put(partial(seen.append, 1000))
    for _ in range(4):
        await asyncio.sleep(0)
    assert seen == [999, 1000]

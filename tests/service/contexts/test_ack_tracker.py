"""What a client has read, from its pongs: on a socket that records pings."""

from __future__ import annotations

from service.contexts.ack_tracker import AckTracker
from tests.service.contexts.fake_pinging import FakePinging


class Rig:
    def __init__(self) -> None:
        self.pinging = FakePinging()
        self.acks = AckTracker(self.pinging)
        self.read: dict[int, list[int]] = {}

    def follow(self, handle: int) -> None:
        self.read[handle] = []
        self.acks.follow(handle, self.read[handle].append)

    def write(self, handle: int, samples: int, size: int = 100, *, more: bool = False) -> None:
        self.acks.on_written(handle, samples, size, 0.0, more=more)


def test_a_pong_tells_all_that_was_written_before_its_ping() -> None:
    rig = Rig()
    rig.follow(1)
    rig.follow(2)
    rig.write(1, 10, more=True)
    rig.write(2, 5, more=True)
    rig.write(1, 20)
    assert len(rig.pinging.pings) == 1
    rig.write(2, 7)
    rig.pinging.answer(0)
    assert rig.read == {1: [0, 30], 2: [0, 5]}
    rig.pinging.answer(1)
    assert rig.read == {1: [0, 30], 2: [0, 5, 12]}


def test_much_audio_is_not_left_without_a_ping() -> None:
    rig = Rig()
    rig.follow(1)
    for _ in range(10):
        rig.write(1, 10, 10_000, more=True)
    assert len(rig.pinging.pings) == 2


def test_a_pong_may_stand_for_earlier_pings_too() -> None:
    rig = Rig()
    rig.follow(1)
    for _ in range(3):
        rig.write(1, 10)
    rig.pinging.answer(2)
    assert rig.read[1] == [0, 30]
    rig.pinging.answer(0)
    rig.pinging.answer(2)
    assert rig.read[1] == [0, 30]


def test_pongs_that_nobody_asked_for_say_nothing() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    assert rig.pinging.on_pong is not None
    rig.pinging.on_pong((77).to_bytes(8, "big"))
    assert rig.read[1] == [0]


def test_a_context_that_is_over_is_told_nothing_more() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    rig.acks.forget(1)
    rig.write(1, 10)
    rig.pinging.answer()
    assert rig.read[1] == [0]
    rig.follow(1)  # the handle is taken again
    rig.write(1, 3)
    rig.pinging.answer()
    assert rig.read[1] == [0, 3]


def test_who_reads_nothing_is_stuck_and_who_reads_on_is_not() -> None:
    rig = Rig()
    rig.follow(1)
    assert rig.acks.stuck_s(100.0) == 0.0
    rig.acks.on_written(1, 10, 100, 1.0, more=False)
    rig.acks.on_written(1, 10, 100, 2.0, more=False)
    assert rig.acks.stuck_s(5.0) == 4.0
    rig.pinging.answer(0)
    assert rig.acks.stuck_s(6.0) == 0.0
    assert rig.acks.stuck_s(9.0) == 3.0
    rig.pinging.answer(1)
    assert rig.acks.stuck_s(10.0) == 0.0
    assert rig.acks.stuck_s(99.0) == 0.0


def test_where_nothing_can_be_known_nobody_is_told_or_stuck() -> None:
    told: list[int] = []
    reading = AckTracker()
    reading.follow(1, told.append)
    reading.on_written(1, 10, 100, 0.0, more=False)
    reading.give_up_in(1.0)
    assert (told, reading.stuck_s(99.0)) == ([], 0.0)


def test_giving_up_drops_the_connection() -> None:
    rig = Rig()
    rig.acks.give_up_in(3.0)
    assert rig.pinging.aborts_in == 3.0


def test_ack_tracker_counts_anew_after_a_pardon() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    assert rig.acks.stuck_s(20.0) == 20.0
    rig.acks.pardon(20.0)
    assert rig.acks.stuck_s(20.5) == 0.5
    rig.pinging.answer()
    rig.acks.pardon(21.0)
    assert rig.acks.stuck_s(22.0) == 0.0

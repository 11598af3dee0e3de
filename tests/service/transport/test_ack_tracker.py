"""AckTracker: the audio that a client has read, derived from its pongs."""

from __future__ import annotations

from service.transport.ack_tracker import AckTracker
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


def test_pong_acknowledges_audio_written_before_ping() -> None:
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


def test_ping_follows_much_audio_despite_waiting_messages() -> None:
    rig = Rig()
    rig.follow(1)
    for _ in range(10):
        rig.write(1, 10, 10_000, more=True)
    assert len(rig.pinging.pings) == 2


def test_text_is_followed_by_ping_only_if_audio_was_before_it() -> None:
    rig = Rig()
    rig.follow(1)

    def write_text(size: int, *, more: bool) -> None:
        rig.acks.on_written(None, 0, size, 0.0, more=more)

    write_text(100, more=False)
    assert not rig.pinging.pings
    rig.write(1, 10, more=True)
    write_text(1_000_000, more=True)
    assert len(rig.pinging.pings) == 1
    write_text(100, more=False)
    assert len(rig.pinging.pings) == 1
    assert rig.acks.is_waiting
    rig.pinging.answer()
    assert not rig.acks.is_waiting
    assert rig.acks.played_at(1.0) < 0.0, "nothing that could be played"


def test_pong_acknowledges_earlier_pings_too() -> None:
    rig = Rig()
    rig.follow(1)
    for _ in range(3):
        rig.write(1, 10)
    rig.pinging.answer(2)
    assert rig.read[1] == [0, 30]
    rig.pinging.answer(0)
    rig.pinging.answer(2)
    assert rig.read[1] == [0, 30]


def test_unsolicited_pong_is_ignored() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    assert rig.pinging.on_pong is not None
    for unknown in (2, 77):
        assert not rig.pinging.on_pong(unknown.to_bytes(8, "big"))
    assert rig.read[1] == [0]


def test_forgotten_context_gets_no_acknowledgements() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    rig.acks.forget(1)
    rig.write(1, 10)
    rig.pinging.answer()
    assert rig.read[1] == [0]
    rig.follow(1)  # the handle is reused
    rig.write(1, 3)
    rig.pinging.answer()
    assert rig.read[1] == [0, 3]


def test_stuck_s_grows_until_client_reads() -> None:
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


def test_tracker_without_protocol_reports_nothing() -> None:
    told: list[int] = []
    reading = AckTracker()
    reading.follow(1, told.append)
    reading.on_written(1, 10, 100, 0.0, more=False)
    assert (told, reading.stuck_s(99.0)) == ([], 0.0)


def test_restart_wait_restarts_stuck_s() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    assert rig.acks.stuck_s(20.0) == 20.0
    rig.acks.restart_wait(20.0)
    assert rig.acks.stuck_s(20.5) == 0.5
    rig.pinging.answer()
    rig.acks.restart_wait(21.0)
    assert rig.acks.stuck_s(22.0) == 0.0
    rig.acks.restart_wait(23.0)
    assert rig.acks.stuck_s(24.0) == 0.0


def test_read_at_follows_pongs_that_acknowledge_something() -> None:
    rig = Rig()
    rig.follow(1)
    rig.write(1, 10)
    rig.write(1, 10)
    assert rig.pinging.on_pong is not None
    assert not rig.pinging.on_pong((77).to_bytes(8, "big"))
    assert rig.acks.stuck_s(5.0) == 5.0
    assert rig.acks.read_at < 0.0
    assert rig.pinging.on_pong(rig.pinging.pings[0])
    assert not rig.pinging.on_pong(rig.pinging.pings[0])
    rig.acks.stuck_s(6.0)
    rig.acks.stuck_s(8.0)
    assert rig.acks.read_at == 6.0


def test_read_audio_is_played_without_pause_in_each_context() -> None:
    acks = (rig := Rig()).acks
    for handle, audio_s in ((1, 2.0), (2, 9.0), (1, 4.0)):  # 1 and 2 are over already
        acks.on_written(handle, 10, 100, 5.0, more=False, audio_s=audio_s)
    assert acks.played_at(6.0) < 0.0
    rig.pinging.answer(0)
    assert acks.played_at(6.0) == 8.0
    rig.pinging.answer(1)
    assert acks.played_at(7.0) == 16.0
    rig.pinging.answer(2)
    assert acks.played_at(7.0) == 16.0
    assert acks.played_at(16.5) == 16.0
    acks.on_written(1, 10, 100, 17.0, more=False, audio_s=2.0)
    rig.pinging.answer()
    assert acks.played_at(18.0) == 20.0

"""The child's end of the link."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from ipc import child
from ipc.child import ChildLink, LinkClosed
from ipc.framing import Alive, MessageReader, Stop, encode


class Note(msgspec.Struct, tag="note"):
    data: bytes


@pytest.fixture(autouse=True)
def _own_process_is_unaffected(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in ("die_with_parent", "leave_signals_to_parent"):
        monkeypatch.setattr(child, own, lambda: None)


def test_send_raises_link_closed_when_parent_has_gone() -> None:
    parent, mine = socket.socketpair()
    with ChildLink[Note](mine.detach(), Note) as link:
        parent.close()
        with pytest.raises(LinkClosed):
            link.send(Note(b"late"))


def test_stop_ends_child_link_before_parent_closes() -> None:
    parent, mine = socket.socketpair()
    with parent, ChildLink[Note | Stop](mine.detach(), Note | Stop) as link:
        parent.sendall(encode(Stop()))
        with pytest.raises(LinkClosed):
            link.receive(wait=True)


def test_idle_child_reports_that_it_is_alive_until_a_message_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "BEAT_S", 0.01)
    parent, mine = socket.socketpair()
    parent.settimeout(60)
    beats: list[Alive] = []

    def watch() -> None:
        reader = MessageReader[Alive](Alive)
        while len(beats) < 3:
            beats.extend(reader.feed(parent.recv(1 << 18)))
        parent.sendall(encode(Note(b"at last")))

    with parent, ChildLink[Note](mine.detach(), Note) as link:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        assert link.receive(wait=True) == [Note(b"at last")]
        assert link.receive(wait=False) == []
        watcher.join()
    assert len(beats) >= 3


def test_received_message_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window would be decoded later by up to the interval of the reports."""
    monkeypatch.setattr(child, "BEAT_S", 3600.0)
    parent, mine = socket.socketpair()
    with parent, ChildLink[Note](mine.detach(), Note) as link:
        parent.sendall(encode(Note(b"first")))
        assert link.receive(wait=True) == [Note(b"first")]


@pytest.mark.parametrize("last", [b"", encode(Stop()), b"\xff\xff\xff\xff"])
def test_child_link_ends_when_parent_has_gone_or_asks(last: bytes) -> None:
    parent, mine = socket.socketpair()
    with parent, ChildLink[Note | Stop](mine.detach(), Note | Stop) as link:
        parent.sendall(encode(Note(b"first")))
        assert link.receive(wait=True) == [Note(b"first")]
        parent.sendall(last)
        parent.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkClosed):
            link.receive(wait=True)


def test_child_link_keeps_messages_of_threads_apart() -> None:
    parent, mine = socket.socketpair()
    with parent, ChildLink[Stop](mine.detach(), Stop) as link:
        parent.settimeout(60)

        def talk(number: int) -> None:
            for _ in range(20):
                link.send(Note(bytes([number]) * 1_000_000))

        for number in range(3):
            threading.Thread(target=talk, args=(number,), daemon=True).start()
        reader, heard = MessageReader[Note](Note), list[Note]()
        while len(heard) < 60:
            heard += reader.feed(parent.recv(1 << 18))
        assert all(note.data == note.data[:1] * 1_000_000 for note in heard)

"""The child's end of the link."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from ipc import child
from ipc.child import ChildLink, LinkClosed
from ipc.framing import MessageReader, Stop, encode


class Note(msgspec.Struct, tag="note"):
    data: bytes


@pytest.mark.parametrize("last", [b"", encode(Stop()), b"\xff\xff\xff\xff"])
def test_child_link_ends_when_parent_has_gone_or_asks(
    last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own in ("die_with_parent", "leave_signals_to_parent"):
        monkeypatch.setattr(child, own, lambda: None)
    parent, mine = socket.socketpair()
    with parent, ChildLink[Note | Stop](mine.detach(), Note | Stop) as link:
        parent.sendall(encode(Note(b"first")))
        assert link.receive(wait=True) == [Note(b"first")]
        parent.sendall(last)
        parent.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkClosed):
            link.receive(wait=True)


def test_child_link_keeps_messages_of_threads_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in ("die_with_parent", "leave_signals_to_parent"):  # they would affect this process
        monkeypatch.setattr(child, own, lambda: None)
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

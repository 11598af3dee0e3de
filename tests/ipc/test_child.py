"""The child's end of the link."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from ipc import child
from ipc.child import ChildLink
from ipc.framing import MessageReader, Stop


class Note(msgspec.Struct, tag="note"):
    data: bytes


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

"""The child's end of the link."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest

from ipc import child
from ipc.child import ChildLink
from ipc.framing import MessageReader, Stop


class Note(msgspec.Struct, tag="note"):
    data: bytes


def test_threads_do_not_mix_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for own in ("die_with_parent", "leave_signals_to_parent"):  # this process is no child
        monkeypatch.setattr(child, own, lambda: None)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "link"))
        server.listen()
        with ChildLink[Stop](str(tmp_path / "link"), Stop) as link, server.accept()[0] as parent:
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

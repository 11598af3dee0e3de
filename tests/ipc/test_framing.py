from __future__ import annotations

import msgspec
import pytest

from ipc.framing import Alive, FramingError, MessageReader, Progress, encode

MESSAGES = [Progress("loading", 1.5), Alive(), Progress("é" * 300, 0.0)]


@pytest.mark.parametrize("step", [1, 3, 7, 10_000])
def test_messages_survive_any_split(step: int) -> None:
    data = b"".join(encode(message) for message in MESSAGES)
    reader: MessageReader[Progress | Alive] = MessageReader(Progress | Alive)
    got = [m for at in range(0, len(data), step) for m in reader.feed(data[at : at + step])]
    assert got == MESSAGES


def test_a_message_over_the_limit_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(FramingError):
        MessageReader(Alive).feed(b"\xff\xff\xff\xff")


#: ``{"type": ...}`` whose value is no UTF-8; msgspec raises another error for it.
_NOT_UTF8 = b"\x81\xa4type\xa5\xa1aliv"


@pytest.mark.parametrize(
    "body", [b"\xc1", _NOT_UTF8, msgspec.msgpack.encode({"type": "other"}), b""]
)
def test_bytes_outside_the_schema_are_an_error(body: bytes) -> None:
    with pytest.raises(FramingError):
        MessageReader(Progress | Alive).feed(len(body).to_bytes(4, "little") + body)

"""Framing of messages: encoding, splits, and data that is refused."""

from __future__ import annotations

import msgspec
import pytest

from ipc.framing import Alive, FramingError, MessageReader, Progress, encode


class Data(msgspec.Struct, tag="data", frozen=True):
    """A message of which a part is not copied."""

    data: memoryview


MESSAGES = [
    Progress("loading", 1.5),
    Data(memoryview(bytes(range(256)) * 4)),
    Alive(),
    Data(memoryview(b"")),
    Progress("é" * 300, 0.0),
]


@pytest.mark.parametrize("step", [1, 3, 7, 600, 10_000])
def test_message_reader_accepts_any_split(step: int) -> None:
    data = b"".join(encode(message) for message in MESSAGES)
    reader: MessageReader[Progress | Alive | Data] = MessageReader(Progress | Alive | Data)
    got = [m for at in range(0, len(data), step) for m in reader.feed(data[at : at + step])]
    assert got == MESSAGES


def test_message_reader_refuses_length_over_limit_before_body() -> None:
    with pytest.raises(FramingError):
        MessageReader(Alive).feed(b"\xff\xff\xff\xff")


#: ``{"type": ...}`` with a value that is not UTF-8, for which msgspec raises another error.
_NOT_UTF8 = b"\x81\xa4type\xa5\xa1aliv"


@pytest.mark.parametrize(
    "body", [b"\xc1", _NOT_UTF8, msgspec.msgpack.encode({"type": "other"}), b""]
)
def test_message_reader_refuses_body_outside_schema(body: bytes) -> None:
    with pytest.raises(FramingError):
        MessageReader(Progress | Alive).feed(len(body).to_bytes(4, "little") + body)

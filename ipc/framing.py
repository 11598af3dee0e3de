"""Messages as length-prefixed msgpack: u32 little-endian length, then the body. No I/O."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

#: Larger than any window or its samples (2,048 frames of 960 float32 samples are 7.5 MiB).
MAX_MESSAGE_BYTES = 32 << 20

_LENGTH = struct.Struct("<I")
M = TypeVar("M")


class FramingError(Exception):
    """The bytes are not messages of the agreed schema; the connection can no longer be used."""


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """A child begins a phase of its start."""

    phase: str
    seconds: float


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """A child's main loop is running."""


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """A child cannot start, and a restart will not help. ``message`` is for operators."""

    message: str


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """The parent asks a child to end."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message for the socket."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class MessageReader(Generic[M]):
    """Decodes received bytes, split at any point, to messages of one union type. Fields that are a
    memoryview have no copy: they keep what was received alive.
    """

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        #: The received part of an incomplete message.
        self._pieces: list[bytes] = []
        #: Bytes that are missing until more is known of it.
        self._missing = 0

    def feed(self, data: bytes) -> list[M]:
        """Add bytes; return the messages that are now complete. Raises FramingError."""
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)  # once, however many pieces a message has
        messages: list[M] = []
        view = memoryview(data)
        start = 0
        while True:
            body = start + _LENGTH.size
            end = body
            if body <= len(data):
                (size,) = _LENGTH.unpack_from(data, start)
                if size > MAX_MESSAGE_BYTES:
                    raise FramingError(f"a message of {size} bytes is over the limit")
                end += size
            if end > len(data):
                break
            try:
                messages.append(self._decoder.decode(view[body:end]))
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise FramingError("a message does not fit the schema") from error
            start = end
        self._pieces = [data[start:]] if start < len(data) else []
        self._missing = end - len(data)
        return messages

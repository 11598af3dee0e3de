"""Encoding of messages: JSON text, and the binary header before the samples."""

from __future__ import annotations

import json
import struct
import sys
from enum import IntFlag
from typing import Any, NamedTuple

import msgspec

from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import msgspec_error, unknown_choice
from streaming.protocol.messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    ClientMessage,
    Id,
    ServerMessage,
)
from text.surrogates import has_surrogates

PROTOCOL_VERSION = 1
AUDIO_TYPE = 1
_LAYOUT = struct.Struct("<BBHII")
HEADER_BYTES = _LAYOUT.size
_WRAP = 0xFFFFFFFF


class _Envelope(msgspec.Struct, frozen=True):
    type: str


class _Address(msgspec.Struct, frozen=True):
    context_id: Id


_envelope = msgspec.json.Decoder(_Envelope)
_address = msgspec.json.Decoder(_Address)


#: Class and decoder of each client message, by type.
_client_messages = {
    str(kind.__struct_config__.tag): (kind, msgspec.json.Decoder(kind)) for kind in CLIENT_MESSAGES
}


#: Fields that are sent back, so a client must be able to read them.
_IDS = ("context_id", "flush_id", "id")


def parse_client_message(text: str | bytes) -> ClientMessage:
    """Parse one client message.

    Raises RequestError: ``invalid_json`` (not JSON at all), ``unknown_message`` (a type that this
    version does not know; nothing else has happened) or ``invalid_message`` (``param`` names the
    field).
    """
    try:
        kind = _envelope.decode(text).type
    except msgspec.ValidationError as error:
        raise RequestError(
            ErrorCode.INVALID_MESSAGE, "A message is an object with a string as type.", param="type"
        ) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, "The message is not valid JSON.") from error
    if kind not in _client_messages:
        raise unknown_choice("type", kind, _client_messages, ErrorCode.UNKNOWN_MESSAGE, "message")
    message, decoder = _client_messages[kind]
    try:
        parsed: ClientMessage = decoder.decode(text)
    except msgspec.ValidationError as error:
        raise msgspec_error(error, text, message) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, "The message is not valid JSON.") from error
    for name in _IDS:
        if has_surrogates(getattr(parsed, name, None) or ""):
            wrong = f"{name} has half of a surrogate pair, which only text may have."
            raise RequestError(ErrorCode.INVALID_MESSAGE, wrong, param=name)
    return parsed


def parse_context_id(text: str | bytes) -> str | None:
    """Return the id of the context that a refused message is about, if it has a valid one."""
    try:
        context_id = _address.decode(text).context_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # ValidationError is a DecodeError
        return None
    return None if has_surrogates(context_id or "") else context_id


def encode_message(message: ClientMessage | ServerMessage) -> str:
    """Encode one message as JSON text."""
    return msgspec.json.encode(message).decode()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of both directions, for docs/ and for client authors."""
    schemas, components = msgspec.json.schema_components(
        (*CLIENT_MESSAGES, *SERVER_MESSAGES), ref_template="#/$defs/{name}"
    )
    split = len(CLIENT_MESSAGES)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "talkwire.tts.v1",
        "client": {"oneOf": list(schemas[:split])},
        "server": {"oneOf": list(schemas[split:])},
        "$defs": components,
    }


class AudioFlags(IntFlag):
    """Bits of a binary header's second byte."""

    NONE = 0
    FIRST = 1
    LAST = 2
    DISCONTINUITY = 4


class AudioHeader(NamedTuple):
    """The 12-byte header before the samples, little-endian.

    ::

        u8 version << 4 | type    u8 flags    u16 handle    u32 sequence    u32 sample offset

    ``sequence`` counts this context's binary messages, and ``sample_offset`` the samples that they
    decode to, at the audio's own rate. Both start at 0 and wrap at 2**32. A message with LAST may
    hold no samples.
    """

    handle: int
    sequence: int
    sample_offset: int
    flags: AudioFlags = AudioFlags.NONE

    def pack(self) -> bytes:
        """Return the header as bytes."""
        kind = PROTOCOL_VERSION << 4 | AUDIO_TYPE
        return _LAYOUT.pack(
            kind, self.flags, self.handle, self.sequence & _WRAP, self.sample_offset & _WRAP
        )

    @classmethod
    def unpack(cls, message: bytes) -> AudioHeader:
        """Parse the header of a binary message. Raises ValueError if it has no valid header."""
        if len(message) < HEADER_BYTES:
            raise ValueError("a binary message is shorter than its header")
        kind, flags, handle, sequence, offset = _LAYOUT.unpack_from(message)
        if kind != PROTOCOL_VERSION << 4 | AUDIO_TYPE:
            raise ValueError("a binary message of another version or type")
        return cls(handle, sequence, offset, AudioFlags(flags))


if __name__ == "__main__":
    # python -m streaming.protocol.binary > docs/reference/protocol.schema.json
    # python -m streaming.protocol.binary --asyncapi > docs/reference/protocol.asyncapi.json
    from streaming.protocol.asyncapi import asyncapi

    print(json.dumps(asyncapi() if "--asyncapi" in sys.argv else json_schema(), indent=1))

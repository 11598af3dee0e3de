"""The part of ``talkwire.tts.v1`` that this service uses; no I/O.

docs/reference/protocol.md in Talkwire's repository describes the protocol. Unknown messages and
fields are ignored, since later servers may send more.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

SUBPROTOCOL = "talkwire.tts.v1"
#: Codes of errors that will recur however often the request is repeated.
INVALID_REQUEST = frozenset(
    {
        "invalid_json",
        "invalid_message",
        "forbidden",
        "invalid_parameter",
        "unauthorized",
        "unknown_message",
        "unknown_model",
        "unknown_voice",
        "unsupported",
    }
)
#: Codes of errors after which the request can be repeated later.
BUSY = frozenset({"overloaded", "rate_limited", "too_many_contexts"})
#: Codes of failures of the server.
SERVER_FAILURE = frozenset(
    {"not_ready", "draining", "engine_restarting", "engine_failed", "codec_failed", "internal"}
)
#: Codes of errors in the text; the service itself works.
TEXT = frozenset({"invalid_text", "text_too_long"})
#: Codes of answers to messages that crossed the end of their context. These are no errors.
CROSSED = frozenset({"unknown_context", "context_closed"})

#: Limits of a connection's open contexts; missing or None: no limit.
_CONTEXT_LIMITS = ("max_contexts", "key_contexts")
_HEADER = struct.Struct("<BBHII")
_VERSION_AND_TYPE = 0x11
#: The longest form of a character in JSON (``\\u0000``).
_CHAR_BYTES = 6
#: Room for the rest of a message.
_ENVELOPE_BYTES = 1024


class ProtocolError(Exception):
    """The server sent something that is not ``talkwire.tts.v1``."""


@dataclass(frozen=True)
class Server:
    """A server's description of itself, from ``session.created``."""

    session_id: str
    has_word_timings: bool
    max_message_bytes: int
    session_idle_s: float
    max_contexts: float

    @property
    def piece_chars(self) -> int:
        """Number of characters that always fit into one ``text.append``."""
        return max(1, (self.max_message_bytes - _ENVELOPE_BYTES) // _CHAR_BYTES)


@dataclass(frozen=True)
class Audio:
    """A binary message: s16le samples, and the number of the context's samples before them."""

    handle: int
    sample_offset: int
    pcm: bytes


def read_greeting(data: str | bytes) -> Server:
    """Parse the server's first message. Raises ProtocolError if it is not ``session.created``."""
    message = read(data) if isinstance(data, str) else {}
    try:
        if message["type"] != "session.created":
            raise ProtocolError(f"the server began with {message['type']}: {message}")
        limits = message["limits"]
        return Server(
            session_id=message["session_id"],
            has_word_timings=message.get("word_timings", False),
            max_message_bytes=limits["max_message_bytes"],
            session_idle_s=limits["session_idle_s"],
            max_contexts=min(limits.get(name) or math.inf for name in _CONTEXT_LIMITS),
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError("the server did not begin with session.created") from error


def read(data: str) -> dict[str, Any]:
    """Parse a JSON message. Raises ProtocolError."""
    try:
        message = json.loads(data)
    except ValueError as error:
        raise ProtocolError("a message is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("a message is not an object with a type")
    return message


def read_audio(data: bytes) -> Audio:
    """Parse a binary message. Raises ProtocolError."""
    if len(data) < _HEADER.size or data[0] != _VERSION_AND_TYPE:
        raise ProtocolError("a binary message of another version or type")
    _, _, handle, _, sample_offset = _HEADER.unpack_from(data)
    return Audio(handle, sample_offset, data[_HEADER.size :])


def write(kind: str, **fields: Any) -> str:
    """Format a JSON message. Raises ValueError for a number that JSON does not have, such as NaN:
    the server could not tell which context the message is for.
    """
    message = {"type": kind, **fields}
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def pieces(text: str, chars: int) -> list[str]:
    """Split ``text`` into parts of at most ``chars`` characters."""
    return [text[at : at + chars] for at in range(0, len(text), chars)]

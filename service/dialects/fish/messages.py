"""Fish Audio's errors and the events of its socket, which are MessagePack.

Shapes are those of its published clients (fish-audio-sdk 1.3, ``types/tts.py`` and
``resources/realtime.py``).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from pydantic import BaseModel

from service.dialects.fish.request import TtsRequest, decode
from service.errors import ErrorTable
from streaming.errors import ErrorCode, TalkwireError
from streaming.protocol.field_errors import unknown_choice

NAME = "fish"


def _body(error: TalkwireError, _: str) -> dict[str, Any]:
    return {
        "status": TABLE.status(error),
        "message": TABLE.message(error),
        "code": error.code.value,
    }


TABLE = ErrorTable(
    NAME,
    _body,
    fields={
        "voice": "reference_id",
        "encoding": "format",
        "bitrate": "mp3_bitrate",
        "speed": "prosody.speed",
        "volume": "prosody.volume",
    },
)


class FishErrorBody(BaseModel):
    """The body of a refusal."""

    status: int
    message: str
    code: str


class Start(Struct):
    """Begins a text, whose options ``request`` has."""

    request: TtsRequest[bytes]


class Text(Struct):
    """A part of the text."""

    text: str


class Flush(Struct):
    """Speaks all text so far."""


class Stop(Struct):
    """Ends the text."""


Event = Start | Text | Flush | Stop


class _Envelope(Struct):
    event: str


_EVENTS: dict[str, type[Event]] = {"start": Start, "text": Text, "flush": Flush, "stop": Stop}
_DECODERS = {name: msgspec.msgpack.Decoder(kind) for name, kind in _EVENTS.items()}
_ENVELOPE = msgspec.msgpack.Decoder(_Envelope)


def parse_event(data: bytes) -> Event:
    """Parse a client's event. Raises RequestError (``invalid_message``, ``unknown_message``)."""
    name = decode(_ENVELOPE, data, _Envelope).event
    if name not in _EVENTS:
        raise unknown_choice("event", name, _EVENTS, ErrorCode.UNKNOWN_MESSAGE)
    event: Event = decode(_DECODERS[name], data, _EVENTS[name])
    return event


def audio_event(audio: bytes, warning: str) -> bytes:
    """Return an ``audio`` event, with the ``warning`` of its text unless that is empty."""
    fields: dict[str, Any] = {"event": "audio", "audio": audio}
    return msgspec.msgpack.encode(fields | ({"warning": warning} if warning else {}))


def finish_event(error: TalkwireError | None = None) -> bytes:
    """Return a ``finish`` event: all audio was sent, or ``error`` has the reason."""
    fields: dict[str, Any] = {"event": "finish", "reason": "stop"}
    if error is not None:
        fields = {"event": "finish", "reason": "error"} | _body(error, "")
    return msgspec.msgpack.encode(fields)

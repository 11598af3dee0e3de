"""The native protocol as an AsyncAPI 3 document, generated from the message definitions.

Tools generate documentation and clients from it. AsyncAPI describes the server's side: it
*receives* the client's messages and *sends* its own.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from streaming.protocol import messages as wire

_CHANNEL = "stream"
#: The name of the binary message.
_FRAME = "audio.frame"
#: The reply to each message, other than ``error``. Other client messages have no reply.
_REPLIES: dict[type[wire.ClientMessage], type[wire.ServerMessage]] = {
    wire.ContextCreate: wire.ContextCreated,
    wire.ContextFlush: wire.FlushDone,
    wire.ContextEnd: wire.ContextDone,
    wire.ContextCancel: wire.ContextCancelled,
    wire.Ping: wire.Pong,
}
_DESCRIPTION = """\
Streaming text-to-speech: the client sends text as it is written and receives audio as it is
generated. One socket carries many contexts; a context is one stream of text and one of audio.
docs/reference/protocol.md describes every field, and how samples are counted. Clients ignore
messages and fields that they do not know."""
_FRAME_LAYOUT = """\
A binary WebSocket message: a header of twelve bytes, little-endian, then audio in the context's
encoding. Byte 0: version (1) in the upper four bits, type (1: audio) in the lower four. Byte 1:
flags (1 first, 2 last, 4 discontinuity). Bytes 2 and 3: the context's handle. Bytes 4 to 7:
sequence number. Bytes 8 to 11: offset of the first sample. `raw` framing omits the header;
`json` framing sends the message `audio` instead."""


def asyncapi() -> dict[str, Any]:
    """The whole document."""
    messages = (*wire.CLIENT_MESSAGES, *wire.SERVER_MESSAGES)
    payloads, schemas = msgspec.json.schema_components(
        messages, ref_template="#/components/schemas/{name}"
    )
    described = {
        _name(message): _message(message, payload)
        for message, payload in zip(messages, payloads, strict=True)
    }
    described[_FRAME] = _frame()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": wire.SUBPROTOCOL,
            "version": "1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"local": {"host": "127.0.0.1:8000", "protocol": "ws"}},
        "channels": {_CHANNEL: _channel(list(described))},
        "operations": _operations(),
        "components": {"messages": described, "schemas": schemas},
    }


def _name(message: type[msgspec.Struct]) -> str:
    return str(message.__struct_config__.tag)


def _message(message: type[msgspec.Struct], payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": _name(message),
        "title": message.__name__,
        "summary": inspect.cleandoc(message.__doc__ or ""),
        "payload": payload,
    }


def _frame() -> dict[str, Any]:
    return {
        "name": _FRAME,
        "title": "AudioFrame",
        "summary": _FRAME_LAYOUT,
        "contentType": "application/octet-stream",
        "payload": {"type": "string", "format": "binary"},
    }


def _channel(names: list[str]) -> dict[str, Any]:
    return {
        "address": "/v1/tts/stream",
        "description": f"A WebSocket; its subprotocol, {wire.SUBPROTOCOL}, may be left out.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _operations() -> dict[str, Any]:
    """One for each client message, with its reply, and one for all unsolicited server messages."""
    unsolicited = [m for m in wire.SERVER_MESSAGES if m not in _REPLIES.values()]
    operations = {message.__name__: _receive(message) for message in wire.CLIENT_MESSAGES}
    operations["Speak"] = {
        "action": "send",
        "channel": {"$ref": f"#/channels/{_CHANNEL}"},
        "messages": [*map(_reference, map(_name, unsolicited)), _reference(_FRAME)],
    }
    return operations


def _receive(message: type[wire.ClientMessage]) -> dict[str, Any]:
    channel = {"$ref": f"#/channels/{_CHANNEL}"}
    operation: dict[str, Any] = {
        "action": "receive",
        "channel": channel,
        "messages": [_reference(_name(message))],
    }
    if answer := _REPLIES.get(message):
        answers = [_reference(_name(answer)), _reference(_name(wire.Error))]
        operation["reply"] = {"channel": channel, "messages": answers}
    return operation


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/{_CHANNEL}/messages/{name}"}

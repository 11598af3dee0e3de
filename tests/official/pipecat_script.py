"""A scripted server of the native protocol, for ``pipecat-talkwire``."""

from __future__ import annotations

import json
import struct
from typing import Any

from websockets.asyncio.server import ServerConnection


def header(handle: int, sample_offset: int) -> bytes:
    """An audio header as in docs/reference/protocol.md."""
    return struct.pack("<BBHII", 0x11, 0, handle, 0, sample_offset)


GREETING: dict[str, Any] = {
    "type": "session.created",
    "session_id": "s",
    "limits": {"max_message_bytes": 2048, "session_idle_s": 300.0},
    "a_field_of_the_future": [1],
}


class Script:
    """A server with scripted answers, which records the messages it receives."""

    def __init__(self, greeting: dict[str, Any] = GREETING) -> None:
        self.greeting = greeting
        self.connections = 0
        self.heard: list[dict[str, Any]] = []

    async def converse(self, socket: ServerConnection) -> None:
        self.connections += 1
        await socket.send(json.dumps(self.greeting))
        await self.after_greeting(socket)
        handle = -1
        async for data in socket:
            message = json.loads(data)
            self.heard.append(message)
            if message["type"] == "context.create":
                handle += 1
                created = {"type": "context.created", "handle": handle}
                await socket.send(json.dumps({**message, **created}))
            elif message["type"] == "context.end":
                await self.speak(socket, message["context_id"], handle)

    async def after_greeting(self, socket: ServerConnection) -> None:
        """A hook for subclasses."""

    async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
        await socket.send(header(handle, 0) + bytes(4800))
        await socket.send(json.dumps({"type": "a.type.of.the.future", "context_id": context_id}))
        done = {"type": "context.done", "context_id": context_id, "reason": "complete"}
        await socket.send(json.dumps(done))

    def texts(self) -> str:
        return "".join(m["text"] for m in self.heard if m["type"] == "text.append")

"""A bare client for Fish Audio's socket and its HTTP API."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from tests.service.memory import MemorySocket, Served

TEXT = "Hello there. And some more of it."
#: Samples that can be compared with the fakes' audio.
PCM = {"format": "pcm", "sample_rate": 24000}


def start(**fields: Any) -> bytes:
    """Return a ``start`` event."""
    return event("start", request={"text": "", **PCM, **fields})


def event(kind: Any, **fields: Any) -> bytes:
    """Return an event."""
    return msgspec.msgpack.encode({"event": kind, **fields})


async def until_finish(socket: MemorySocket) -> tuple[bytes, dict[str, Any]]:
    """Return all audio up to a ``finish``, and that."""
    audio = b""
    while True:
        message = await socket.next()
        assert isinstance(message, bytes), (message, socket.close_code)
        said = msgspec.msgpack.decode(message)
        if said["event"] == "finish":
            return audio, said
        assert said["event"] == "audio"
        audio += said["audio"]


async def post(service: Served, packed: bool = True, **fields: Any) -> httpx.Response:
    """Send ``POST /v1/tts``."""
    body = {"text": TEXT, **PCM, **fields}
    if not packed:
        return await service.http.post("/v1/tts", json=body)
    headers = {"content-type": "application/msgpack", "model": "s2-pro"}
    data = msgspec.msgpack.encode(body)
    return await service.http.post("/v1/tts", content=data, headers=headers)

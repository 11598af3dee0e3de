"""A bare client for sockets with JSON messages and base64 audio, independent of the service."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from streaming.spec import Samples


class VendorTalk:
    """A connected client. ``audio`` and ``context`` name the fields of audio and of the context."""

    def __init__(self, socket: ClientConnection, audio: str, context: str) -> None:
        self.socket, self._audio, self._context = socket, audio, context
        self.sounds: dict[str | None, bytes] = {}
        self.messages: list[dict[str, Any]] = []
        self.patience_s = 60.0

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        """Return the next message, and add its audio to ``sounds``. A binary message is {}."""
        async with asyncio.timeout(self.patience_s):
            data = await self.socket.recv()
        message = {} if isinstance(data, bytes) else dict(json.loads(data))
        self.messages.append(message)
        context = message.get(self._context)
        sound = base64.b64decode(message.get(self._audio) or "", validate=True)
        self.sounds[context] = self.sounds.get(context, b"") + sound
        return message

    async def until(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Read up to a wanted message, and return it."""
        while not wanted(message := await self.next()):
            pass
        return message

    async def rest(self) -> list[dict[str, Any]]:
        """Return all messages up to the close."""
        before = len(self.messages)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.messages[before:]

    def pcm(self, context: str | None = None, kind: str = "<i2") -> Samples:
        """Return a context's samples so far as floats."""
        samples = np.frombuffer(self.sounds.get(context, b""), kind).astype(np.float32)
        return samples / np.float32(32767) if kind == "<i2" else samples


@contextlib.asynccontextmanager
async def vendor(
    url: str, audio: str = "audio", context: str = "contextId", **options: Any
) -> AsyncIterator[VendorTalk]:
    """Connect a client. ``url`` may begin with http."""
    async with connect(url.replace("http://", "ws://"), compression=None, **options) as socket:
        yield VendorTalk(socket, audio, context)


def s16(samples: Samples) -> bytes:
    return np.rint(samples * np.float32(32767)).astype("<i2").tobytes()


def speaking(**more: Any) -> FakeTalker:
    """Return a talker with two frames per character, so that words have predictable times."""
    return FakeTalker(frames_per_character=2.0, spec=TIMED_SPEC, **more)

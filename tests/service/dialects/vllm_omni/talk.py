"""A bare client for vLLM-Omni's socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.service.live import Gateway

TEXTS = ["The first one is short.", "The second one is somewhat longer than that."]
BOTH = " ".join(TEXTS)
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
SLOW: dict[str, Any] = {"row_s": 0.001, "frames_per_character": 20}
STREAM: dict[str, Any] = {"stream_audio": True, "response_format": "pcm"}


class Talk:
    """A connected client. ``frames`` are the binary messages since the last ``sentence``."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.frames = socket, list[bytes]()

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def say(self, *texts: str) -> None:
        for text in texts:
            await self.send("input.text", text=text)
        await self.send("input.done")

    async def next(self) -> dict[str, Any]:
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, str):
                return dict(json.loads(data))
            self.frames.append(data)

    async def sentence(self, flush: int, index: int, text: str) -> tuple[dict[str, Any], bytes]:
        """Return a sentence's ``audio.start`` and its audio."""
        assert not self.frames
        start = await self.next()
        assert start["type"] == "audio.start", start
        assert (start["utterance_index"], start["sentence_index"]) == (flush, index)
        assert start["sentence_text"] == text
        done = await self.next()
        data, self.frames = b"".join(self.frames), []
        assert done == {
            "type": "audio.done",
            "utterance_index": flush,
            "sentence_index": index,
            "total_bytes": len(data),
            "error": False,
        }
        return start, data

    async def done(self, flush: int, sentences: int) -> None:
        assert await self.next() == {
            "type": "session.done",
            "utterance_index": flush,
            "total_sentences": sentences,
        }

    async def hear(self) -> bytes:
        """Return the next audio, skipping messages."""
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, bytes):
                self.frames.append(data)
                return data

    async def closed(self) -> int | None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def speaking(server: Gateway, **config: Any) -> AsyncIterator[Talk]:
    """Connect a client, and send the config if there is one."""
    url = server.http.replace("http", "ws") + "/v1/audio/speech/stream"
    async with connect(url, compression=None) as socket:
        talk = Talk(socket)
        if config:
            await talk.send("session.config", **config)
        yield talk

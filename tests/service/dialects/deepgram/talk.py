"""A bare client for Deepgram's socket and its HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.service.live import Gateway

TEXTS = ["The first one is short.", "The second one is somewhat longer than that."]
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}


class Talk:
    """A connected client. Binary messages are audio, text messages JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.audio = socket, b""

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def next(self) -> dict[str, Any]:
        """Return the next JSON message, and collect the audio before it."""
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, str):
                return dict(json.loads(data))
            self.audio += data

    async def hear(self) -> bytes:
        """Return the next audio."""
        async with asyncio.timeout(60):
            data = await self.socket.recv()
        assert isinstance(data, bytes), data
        self.audio += data
        return data

    async def closed(self) -> int | None:
        """Read until the socket closes, and return the close code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def speaking(server: Gateway, query: str = "", greet: bool = True) -> AsyncIterator[Talk]:
    url = server.http.replace("http", "ws") + "/v1/speak" + (f"?{query}" if query else "")
    headers = {"Authorization": "Token any"}
    async with connect(url, additional_headers=headers, compression=None) as socket:
        talk = Talk(socket)
        if greet:
            assert (await talk.next())["type"] == "Metadata"
        yield talk


SLOW: dict[str, Any] = {"row_s": 0.001, "frames_per_character": 20}


async def post(server: Gateway, query: str = "", **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{server.http}/v1/speak?{query}",
            json=body or {"text": TEXTS[0]},
            headers={"Authorization": "Token any"},
        )

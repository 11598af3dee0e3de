"""A scripted WebSocket server, which checks client messages with the server's own parser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from streaming.protocol.binary import parse_client_message
from talkwire_client import AudioChunk, protocol
from talkwire_client.protocol import AudioFlags, AudioHeader, encode_message

LIMITS = protocol.Limits(8, 4000, 65536, 120_000, 30.0, 300.0)
CREATED = protocol.SessionCreated(
    "s1", protocol.SUBPROTOCOL, "fake", ["narrator"], 24_000, ["pcm_s16le"], LIMITS
)


class Peer:
    """Server side of one socket."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self._position: dict[int, list[int]] = {}

    async def expect(self, kind: type[protocol.ClientMessage]) -> Any:
        """Return the next message, which must be of type ``kind``."""
        message = await self.receive()
        assert type(message) is kind, message
        return message

    async def receive(self) -> protocol.ClientMessage:
        """Return the next message, after checking it with the server's own parser."""
        data = await self.socket.recv()
        parse_client_message(data)
        message = protocol.decode_client_message(data)
        assert message is not None
        return message

    async def say(self, *messages: protocol.ServerMessage) -> None:
        for message in messages:
            await self.socket.send(encode_message(message))

    async def say_raw(self, message: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    async def audio(
        self, handle: int, pcm: bytes, flags: AudioFlags = AudioFlags.NONE, *, skip: int = 0
    ) -> None:
        """Send the context's next frame. ``skip`` is added to its sequence number."""
        at = self._position.setdefault(handle, [0, 0])
        header = AudioHeader(handle, at[0] + skip, at[1], flags)
        await self.socket.send(header.pack() + pcm)
        at[0] += 1
        at[1] += len(pcm) // 2

    async def open_context(self, handle: int = 0) -> protocol.ContextCreate:
        create: protocol.ContextCreate = await self.expect(protocol.ContextCreate)
        await self.say(protocol.ContextCreated(create.context_id, handle))
        return create

    async def finish(self, context_id: str, reason: Any = "complete") -> None:
        await self.say(metrics(context_id), protocol.ContextDone(context_id, reason))


Script = Callable[[Peer], Awaitable[None]]


def metrics(context_id: str) -> protocol.Metrics:
    return protocol.Metrics(context_id, 1.0, 2.0, 0.0, 3.0, 0.5, 0.0)


def cancelled(context_id: str) -> protocol.ContextCancelled:
    return protocol.ContextCancelled(context_id, 80.0, 40.0, 20.0, "Hello", " there.")


@contextlib.asynccontextmanager
async def fake_server(script: Script, *, greet: bool = True) -> AsyncIterator[str]:
    """Run ``script`` for each socket; yield the URL. Exceptions of scripts are raised at the end.

    After its script, a socket stays open until the client closes it.
    """
    failures: list[BaseException] = []

    async def handle(socket: ServerConnection) -> None:
        peer = Peer(socket)
        try:
            if greet:
                await peer.say(CREATED)
            await script(peer)
            await socket.wait_closed()
        except BaseException as error:
            failures.append(error)
            raise

    async with serve(handle, "127.0.0.1", 0, subprotocols=[protocol.SUBPROTOCOL]) as server:  # type: ignore[list-item]
        host, port = next(iter(server.sockets)).getsockname()[:2]
        async with asyncio.timeout(60):
            yield f"ws://{host}:{port}/v1/tts/stream"
    if failures:
        raise failures[0]


async def speak_between(peer: Peer) -> None:
    """Answer the first of two pieces of text before reading the second."""
    create = await peer.open_context()
    assert (await peer.expect(protocol.TextAppend)).text == "Hello "
    await peer.audio(0, b"\1\0")
    assert (await peer.expect(protocol.TextAppend)).text == "there."
    await peer.expect(protocol.ContextEnd)
    await peer.finish(create.context_id)


async def drain(chunks: AsyncIterable[AudioChunk], heard: list[bytes] | None = None) -> list[bytes]:
    """Return the data of all chunks. ``heard``, if given, keeps data that precedes an error."""
    heard = [] if heard is None else heard
    async for chunk in chunks:
        heard.append(chunk.data)
    return heard

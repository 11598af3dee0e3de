"""A gateway with a fake talker and a fake codec on a free port, and a bare client for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from loadtest.fakes.codec import FakeCodecEngine, FakeDecoder
from loadtest.fakes.talker import FakeTalker
from service.build import assemble
from service.contexts.driver import ContextDriver
from service.engines.contracts import Engines, Transcriber
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import Tracing
from streaming.ports import Sampling, SpeechRequest
from streaming.protocol.binary import HEADER_BYTES, AudioHeader
from streaming.spec import CodecSpec, Samples
from tests.service.server import runtime_server
from tests.waiting import until

SPEC = CodecSpec(24_000, 960, (1024,) * 8, 3, 3)
DEFAULTS: dict[str, Any] = {
    "admission": "fixed",
    "default_lead_ms": 120_000,
    "hold_s": 0.0,
    "unknown_model": "error",
    "unknown_voice": "error",
}


class FakeService:
    """A service with fake engines."""

    def __init__(self, runtime: Runtime, talker: FakeTalker, codec: FakeCodecEngine) -> None:
        self.runtime, self.talker, self.codec = runtime, talker, codec

    def whole(self, text: str, seed: int = 0, before: str = "") -> Samples:
        """Return the fakes' audio of one utterance, decoded in one piece.

        ``before``: the earlier text of its conversation, one line per utterance.
        """
        request = SpeechRequest("oracle", text, sampling=Sampling(seed=seed))
        frames = self.talker.frames_of(request, before)
        return FakeDecoder(SPEC).decode([np.ascontiguousarray(frames.T)])[0]

    def contexts(self) -> list[ContextDriver]:
        """The open contexts."""
        every = self.runtime.lifecycle.open_contexts
        return [context for context in every if isinstance(context, ContextDriver)]

    async def until_free(self) -> None:
        """Wait until no talker or codec work is left."""
        await until(lambda: not (self.talker.outstanding or self.runtime.admission.active))


class Gateway(FakeService):
    """A running service; ``url`` is its WebSocket."""

    def __init__(self, runtime: Runtime, talker: FakeTalker, codec: FakeCodecEngine, port: int):
        super().__init__(runtime, talker, codec)
        self.http = f"http://127.0.0.1:{port}"
        self.url = f"ws://127.0.0.1:{port}/v1/tts/stream"


def hold_codec(
    server: FakeService, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Event, asyncio.Event]:
    """Return two events: the codec was asked, and, for the test to set, it may answer."""
    decode, asked, may_answer = server.codec.decode, asyncio.Event(), asyncio.Event()

    async def decode_later(*window: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return await decode(*window)

    monkeypatch.setattr(server.codec, "decode", decode_later)
    return asked, may_answer


def most_rows(lead_s: float, begun_at: float) -> float:
    """Return the most rows that a lead allows an utterance begun at ``begun_at``, at 40 ms a frame.

    They are the lead, the audio that may have been played, a chunk beyond the lead, two more in
    hand with their lookahead, and the rows that the talker makes before it pauses.
    """
    played_s = time.monotonic() - begun_at
    return (lead_s + played_s) * 25 + 75 + 103 + 64 + 8


@contextlib.asynccontextmanager
async def gateway(
    talker: FakeTalker | None = None,
    codec_delay_s: float = 0.0,
    traces: Tracing | None = None,
    transcriber: Transcriber | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """Serve until the block ends. Raises what kept the service from starting or stopping.

    Admission is fixed by default, so that results do not depend on the load of the machine. Audio
    may be sent two minutes ahead of playback, so that a test need not wait while it is played. A
    slow talker is slow after the warm-up, unless admission goes by what that measures.
    Unknown voices and models are refused, as with any model but the embedded one.
    """
    talker = talker or FakeTalker()
    codec = FakeCodecEngine(SPEC, codec_delay_s)
    chosen = Settings(**DEFAULTS | settings)
    runtime = assemble(chosen, Engines(talker, codec, transcriber), tracing=traces)
    talker.source = runtime.voices.library
    row_s = talker.row_s
    if chosen.admission == "fixed":
        talker.row_s = 0.0

    async with runtime_server(runtime) as server:
        await server.until(runtime.lifecycle.ready)
        talker.row_s = row_s
        yield Gateway(runtime, talker, codec, server.port)


class Client:
    """A client of plain websockets and json, which shares no code with the project's own one."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.audio: dict[int, list[tuple[AudioHeader, bytes]]] = {}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def create(self, context_id: str = "c", **fields: Any) -> int:
        fields.setdefault("audio", {"encoding": "pcm_f32le"})
        await self.send("context.create", context_id=context_id, **fields)
        created = await self.until("context.created", context_id)
        return int(created["handle"])

    async def next(self) -> dict[str, Any] | AudioHeader:
        """Return the next message; audio is kept, and its header returned."""
        async with asyncio.timeout(60):
            data = await self.socket.recv()
        if isinstance(data, str):
            return dict(json.loads(data))
        header = AudioHeader.unpack(data)
        self.audio.setdefault(header.handle, []).append((header, data[HEADER_BYTES:]))
        return header

    async def until(self, kind: str, context_id: str | None = None) -> dict[str, Any]:
        """Read until a message of this kind; fail on an error before it."""
        while True:
            message = await self.next()
            if isinstance(message, AudioHeader):
                continue
            if message["type"] == kind and context_id in (None, message.get("context_id")):
                return message
            assert message["type"] != "error", message

    async def error(self) -> dict[str, Any]:
        """Read until an error."""
        while True:
            message = await self.next()
            if isinstance(message, dict) and message["type"] == "error":
                return message

    async def say(self, text: str, context_id: str = "c", **fields: Any) -> Samples:
        """Speak one text in a context of its own and return its samples."""
        handle = await self.create(context_id, **fields)
        await self.send("text.append", context_id=context_id, text=text)
        await self.send("context.end", context_id=context_id)
        await self.until("context.done", context_id)
        return self.samples(handle)

    def samples(self, handle: int) -> Samples:
        """Return a context's audio so far; check sequence numbers and offsets."""
        frames = self.audio.get(handle, [])
        offset = 0
        for number, (header, data) in enumerate(frames):
            assert (header.sequence, header.sample_offset) == (number, offset)
            offset += len(data) // 4
        return np.frombuffer(b"".join(data for _, data in frames), np.float32)


@contextlib.asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    """Connect a client and read its greeting."""
    async with connect(url, compression=None, **options) as socket:
        made = Client(socket)
        greeting = await made.next()
        assert isinstance(greeting, dict)
        assert greeting["type"] == "session.created"
        yield made


def write(c: Client, messages: list[dict[str, Any]]) -> None:
    """Write all messages in one piece of TCP."""
    frames = [Frame(Opcode.TEXT, json.dumps(message).encode()) for message in messages]
    c.socket.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))


def append(text: str) -> dict[str, Any]:
    return {"type": "text.append", "context_id": "c", "text": text}

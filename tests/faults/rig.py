"""A gateway with labelled audio, and clients of three protocols that record what they receive."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from codec.engine import WATCH, CodecWorkerEngine
from ipc.supervisor import Watch
from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.build import assemble
from service.engines.contracts import Engines, RunningCodec
from service.runtime import Runtime
from service.settings import Settings
from streaming.protocol.binary import HEADER_BYTES, AudioHeader
from tests.faults.history import SPEC, Ended, Event, Fault, Heard, Script, faults
from tests.faults.labelled_audio import LabelTalker, LiteralDecoder
from tests.service.server import Server, runtime_server
from tests.waiting import until

#: Timeout that ends a hang; no test waits this long on success.
PATIENCE_S = 240.0
ROOT = str(Path(__file__).parents[2])
#: Every start counts as healthy, so that a dead worker is restarted without backoff.
PATIENT = Watch(WATCH.start_timeout_s, still_timeout_s=WATCH.still_timeout_s, healthy_s=0.0)
#: Disables pacing by the playback clock.
FAR_AHEAD: dict[str, Any] = {"default_lead_ms": 10**8, "max_lead_ms": 10**8}
_DROPPED = (OSError, WebSocketException, httpx.HTTPError)


@dataclass
class Gateway:
    """A running gateway, listening on ``port``."""

    runtime: Runtime
    talker: FakeTalker
    codec: RunningCodec
    port: int
    server: Server

    def is_free(self) -> bool:
        """Whether every gauge of work is zero and no connection is open."""
        contexts, windows = self.runtime.admission.active, self.codec.outstanding
        held = len(self.server.server_state.connections)
        return not any(
            (contexts, windows, self.runtime.lifecycle.connections, held, self.talker.outstanding)
        )

    async def until_free(self) -> None:
        await until(self.is_free, timeout_s=PATIENCE_S)


@contextlib.asynccontextmanager
async def gateway(
    talker: FakeTalker | None = None,
    codec: FakeCodecEngine | CodecWorkerEngine | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """Serve on a free port until the block ends."""
    talker = talker or LabelTalker(row_s=0.0004, capacity=64)
    codec = codec or FakeCodecEngine(SPEC, decoder=LiteralDecoder(SPEC))
    settings.setdefault("admission", "fixed")  # independent of the machine's speed
    runtime = assemble(Settings(**settings), Engines(talker, codec))
    async with runtime_server(runtime) as server:
        await server.until(runtime.lifecycle.ready)
        yield Gateway(runtime, talker, codec, server.port, server)


@dataclass
class Listener:
    """The record of one context. It is cancelled after ``cancel_after`` samples; ``on_audio`` is
    awaited after each audio message.
    """

    script: Script
    cancel_after: int | None = None
    on_audio: Callable[[Listener], Awaitable[None]] | None = None
    history: list[Event] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    samples: int = 0

    @property
    def ended(self) -> str | None:
        """How the context ended; None while it is open."""
        return next((event.reason for event in self.history if isinstance(event, Ended)), None)

    def faults(self) -> list[Fault]:
        return faults(self.script, self.history)

    async def hear(self, data: bytes, header: AudioHeader | None = None) -> None:
        numbers = (header.sequence, header.sample_offset) if header else (None, None)
        self.history.append(Heard(np.frombuffer(data, "<i2"), *numbers))
        self.samples += len(data) // 2
        if self.on_audio is not None:
            await self.on_audio(self)

    def wants_cancel(self) -> bool:
        return self.cancel_after is not None and self.samples >= self.cancel_after

    def end(self, reason: Literal["complete", "cancelled", "broken"]) -> None:
        self.history.append(Ended(reason))


def assert_right(listeners: list[Listener], ended: str | None = None) -> None:
    """Assert that no sample is wrong and all contexts ended as ``ended`` (default: complete)."""
    assert [listener.faults() for listener in listeners] == [[]] * len(listeners)
    for listener in listeners:
        wanted = {ended} if ended else {"complete"}
        if listener.cancel_after is not None:  # the cancel may cross the end
            wanted.add("cancelled")
        assert listener.ended in wanted, listener.errors


async def native(port: int, listeners: list[Listener], **options: Any) -> None:
    """Speak all contexts at once on one native socket.

    Returns when all have ended and late audio, if any, was received too, or when the connection
    breaks; open contexts then end as ``broken``.
    """
    with contextlib.suppress(*_DROPPED):
        async with connect(
            f"ws://127.0.0.1:{port}/v1/tts/stream", compression=None, **options
        ) as wire:
            await _native(wire, {str(n): one for n, one in enumerate(listeners)})
    for listener in listeners:
        if listener.ended is None:
            listener.end("broken")


async def _native(wire: Any, listeners: dict[str, Listener]) -> None:
    async def send(kind: str, **fields: Any) -> None:
        await wire.send(json.dumps({"type": kind, **fields}))

    for context_id, listener in listeners.items():
        await send("context.create", context_id=context_id)
        await send("text.append", context_id=context_id, text=listener.script.text)
        await send("context.end", context_id=context_id)
    handles: dict[int, Listener] = {}
    asked: set[str] = set()
    while True:
        message = await wire.recv()
        if isinstance(message, bytes):
            header = AudioHeader.unpack(message)
            await handles[header.handle].hear(message[HEADER_BYTES:], header)
        else:
            _take_news(json.loads(message), listeners, handles)
        for context_id, listener in listeners.items():
            if listener.wants_cancel() and listener.ended is None and context_id not in asked:
                asked.add(context_id)
                await send("context.cancel", context_id=context_id)
        if all(listener.ended for listener in listeners.values()):
            break
    await send("ping", id="last")  # audio that arrives before the pong is late
    while True:
        message = await wire.recv()
        if isinstance(message, bytes):
            header = AudioHeader.unpack(message)
            await handles[header.handle].hear(message[HEADER_BYTES:], header)
        elif json.loads(message)["type"] == "pong":
            return


def _take_news(
    news: dict[str, Any], listeners: dict[str, Listener], handles: dict[int, Listener]
) -> None:
    listener = listeners.get(news.get("context_id", ""))
    match news["type"]:
        case "context.created":
            assert listener is not None
            handles[news["handle"]] = listener
        case "context.done":
            assert listener is not None
            listener.end("complete" if news["reason"] == "complete" else "broken")
        case "context.cancelled":
            assert listener is not None
            listener.end("cancelled")
        case "error" if news["code"] == "context_closed":
            pass  # the cancel crossed the end
        case "error":
            for one in listeners.values() if listener is None else (listener,):
                one.errors.append(news)
                if listener is not None and news["code"] in ("overloaded", "draining"):
                    one.end("broken")  # refused: nothing follows


async def openai(port: int, listener: Listener) -> None:
    """Stream one request of OpenAI's speech API; to cancel, the client disconnects."""
    body = {"input": listener.script.text, "response_format": "pcm"}
    url = f"http://127.0.0.1:{port}/v1/audio/speech"
    try:
        async with (
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
            http.stream("POST", url, json=body) as answer,
        ):
            if answer.status_code != 200:
                listener.errors.append(json.loads(await answer.aread())["error"])
                return listener.end("broken")
            rest = b""
            async for piece in answer.aiter_raw():
                data = rest + piece
                rest = data[len(data) & ~1 :]
                await listener.hear(data[: len(data) & ~1])
                if listener.wants_cancel():
                    return listener.end("cancelled")
        listener.end("complete")
    except _DROPPED:
        listener.end("broken")


async def cartesia(port: int, listeners: list[Listener]) -> None:
    """Speak all contexts at once on one socket of Cartesia's dialect."""
    url = f"ws://127.0.0.1:{port}/tts/websocket?cartesia_version=2025-04-16"
    contexts = {f"c{number}": one for number, one in enumerate(listeners)}
    with contextlib.suppress(*_DROPPED):
        async with connect(url, compression=None) as wire:
            for context_id, listener in contexts.items():
                await wire.send(json.dumps(_cartesia_request(context_id, listener.script.text)))
            while not all(listener.ended for listener in listeners):
                news = json.loads(await wire.recv())
                listener = contexts[news["context_id"]]
                if news["type"] == "chunk":
                    await listener.hear(base64.b64decode(news["data"]))
                elif news["type"] == "error":
                    listener.errors.append(news)
                    listener.end("broken")
                elif news["type"] == "done":
                    listener.end("complete")
    for listener in listeners:
        if listener.ended is None:
            listener.end("broken")


def _cartesia_request(context_id: str, text: str) -> dict[str, Any]:
    return {
        "context_id": context_id,
        "model_id": "sonic-3",
        "transcript": text,
        "voice": {"mode": "id", "id": "default"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
        "language": "en",
        "continue": False,
    }

"""R3: if a client stops reading, generation stops, its socket is closed, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import connect

from loadtest.fakes.codec import FakeCodecEngine
from streaming.ports import DecodeStats
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.faults.history import SPEC, Script
from tests.faults.labelled_audio import LabelTalker, LiteralDecoder
from tests.faults.proxy import NetworkFault, Plan, proxy
from tests.faults.rig import (
    PATIENCE_S,
    Listener,
    assert_right,
    gateway,
    native,
    openai,
)

LEAD_S, SLOW_S, CHUNK_FRAMES = 1.0, 2.5, 50
#: Limit of unread audio: two seconds, as the lead is less than that, and the chunk that reaches
#: it, which may be half again as large as others.
UNREAD_FRAMES = round(2.0 / SPEC.frame_s) + 2 * CHUNK_FRAMES
#: A minute of audio, generated ten times as fast as it is played.
LONG = (15_000,)
SETTINGS: dict[str, Any] = {
    "default_lead_ms": round(1000 * LEAD_S),
    "slow_consumer_s": SLOW_S,
    "max_chunk_frames": CHUNK_FRAMES,
}


class NotingCodec(FakeCodecEngine):
    """Counts the frames it has decoded for each voice."""

    def __init__(self) -> None:
        super().__init__(SPEC, decoder=LiteralDecoder(SPEC))
        self.frames: Counter[int] = Counter()

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        label = window.codes[:, 0].astype(np.int64)
        self.frames[int(label[0] + 1024 * label[1])] += window.new_frames
        return await super().decode(window, deadline_s, request_id)


def talker() -> LabelTalker:
    return LabelTalker(row_s=0.0004, capacity=64)


async def stall(port: int, script: Script, encoding: str, after: int, over: asyncio.Event) -> None:
    """Read ``after`` audio messages, then nothing until ``over`` is set."""
    async with connect(
        f"ws://127.0.0.1:{port}/v1/tts/stream", compression=None, ping_interval=None
    ) as wire:
        audio = {"encoding": encoding}
        for message in (
            {"type": "context.create", "context_id": "c", "audio": audio},
            {"type": "text.append", "context_id": "c", "text": script.text},
            {"type": "context.end", "context_id": "c"},
        ):
            await wire.send(json.dumps(message))
        while after:
            after -= isinstance(await wire.recv(), bytes)
        wire.transport.pause_reading()
        await over.wait()
        wire.transport.abort()


async def test_stalled_reader_stops_generation_and_is_closed() -> None:
    codec = NotingCodec()
    stalled = [Script(voice, LONG) for voice in range(1, 5)]
    neighbours = [Listener(Script(voice, (300, 400))) for voice in range(100, 106)]
    async with gateway(talker(), codec, **SETTINGS) as server:
        over = asyncio.Event()
        stalling = [
            asyncio.create_task(stall(server.port, script, encoding, 2 * n, over))
            for n, (script, encoding) in enumerate(
                zip(stalled, ("pcm_s16le", "pcm_mulaw", "pcm_f32le", "opus"), strict=True)
            )
        ]
        await asyncio.gather(*(native(server.port, [one]) for one in neighbours))
        assert_right(neighbours, "complete")
        await server.until_free()
        over.set()
        await asyncio.gather(*stalling)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            told = (await http.get(f"http://127.0.0.1:{server.port}/metrics")).text
    assert 'tts_errors_total{code="slow_consumer"} 4.0' in told
    assert 'tts_ws_close_total{code="1008"} 4.0' in told
    heard = {script.voice: codec.frames[script.voice] for script in stalled}
    # Frames read before the stall are added: reader n took 2 * n messages.
    read = {voice: 2 * n * 2 * CHUNK_FRAMES for n, voice in enumerate(heard)}
    assert all(frames <= UNREAD_FRAMES + read[voice] for voice, frames in heard.items()), heard


@contextlib.asynccontextmanager
async def unread(port: int, script: Script) -> AsyncIterator[None]:
    """A request to OpenAI's speech API whose answer is not read."""
    body = json.dumps({"input": script.text, "response_format": "pcm"}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as wire:
        wire.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(wire, ("127.0.0.1", port))
        await loop.sock_sendall(wire, head.encode() + body)
        yield


async def test_stalled_http_reader_stops_generation_and_frees_resources() -> None:
    codec, script = NotingCodec(), Script(3, LONG)
    neighbour = Listener(Script(4, (300, 400)))
    async with gateway(talker(), codec, **{**SETTINGS, "slow_consumer_s": 1.0}) as server:
        async with unread(server.port, script):
            while not codec.frames[3]:
                await asyncio.sleep(0.02)
            await openai(server.port, neighbour)
            await server.until_free()  # the connection is closed too
        assert_right([neighbour], "complete")
    # Two seconds wait in the gateway; the socket buffers of both kernels are bounded.
    assert codec.frames[3] * SPEC.frame_s < 30


async def test_reader_that_resumes_in_time_loses_no_sample() -> None:
    codec = NotingCodec()
    listener = Listener(Script(7, (2000,)))
    plan = Plan(down=NetworkFault("stall", 30_000))
    async with (
        gateway(talker(), codec, **{**SETTINGS, "slow_consumer_s": PATIENCE_S}) as server,
        proxy(server.port, lambda number: plan) as between,
    ):
        hearing = asyncio.create_task(native(between.port, [listener]))
        held, same = -1, 0
        async with asyncio.timeout(PATIENCE_S):
            while same < 40:
                await asyncio.sleep(0.05)
                same = same + 1 if codec.frames[7] == held > 0 else 0
                held = codec.frames[7]
        read = listener.samples // SPEC.hop_length
        assert held <= read + UNREAD_FRAMES
        between.resume()
        await hearing
        await server.until_free()
    assert_right([listener], "complete")


async def test_unsolicited_pongs_are_ignored() -> None:
    script = Script(9, (500,))
    async with (
        gateway(talker(), **SETTINGS) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/tts/stream", compression=None) as wire,
    ):
        for count in range(3):
            await wire.pong(count.to_bytes(8, "big"))
        await wire.send('{"type":"context.create","context_id":"c"}')
        text = json.dumps({"type": "text.append", "context_id": "c", "text": script.text})
        await wire.send(text)
        await wire.send('{"type":"context.end","context_id":"c"}')
        while True:
            await wire.pong((1 << 60).to_bytes(8, "big"))
            message = await wire.recv()
            if isinstance(message, str) and (said := json.loads(message))["type"] == "context.done":
                break
        assert said["reason"] == "complete"

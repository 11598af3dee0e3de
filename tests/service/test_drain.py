from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from loadtest.fakes.talker import FakeTalker
from service.admin import create_admin_app
from service.audio.pump import EncoderPump
from service.contexts import driver
from service.dialects.native import NativeDialect
from service.transport import websocket as socket
from streaming.ports import EncodedClip
from streaming.protocol.binary import HEADER_BYTES
from streaming.spec import Samples
from talkwire_client import AudioChunk, Client, ServerError, Speech
from tests.service.dialects.native.texts import SENTENCES
from tests.service.live import SPEC, client, gateway, hold_codec
from tests.service.memory import served
from tests.service.voices import voice_server

EXACT: dict[str, Any] = {"lookahead_frames": SPEC.right_frames}


async def test_drain_finishes_open_context_and_refuses_new_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway() as server, client(server.url) as talk:
        asked, may_answer = hold_codec(server, monkeypatch)
        handle = await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text="One sentence to finish.")
        await talk.send("context.end", context_id="c")
        await asked.wait()
        draining = asyncio.create_task(server.runtime.lifecycle.drain())
        assert (await talk.until("going_away"))["deadline_ms"] == 150_000
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{server.http}/health/ready")).status_code == 503
            assert (await http.get(f"{server.http}/health/live")).status_code == 200
        await talk.send("context.create", context_id="d")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("draining", "d")
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url)
        assert refused.value.response.status_code == 503
        may_answer.set()
        await talk.until("context.done")
        assert np.array_equal(talk.samples(handle), server.whole("One sentence to finish."))
        with pytest.raises(ConnectionClosed) as closed:
            await talk.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        await draining
        assert server.runtime.lifecycle.connections == 0


async def test_drain_closes_idle_clients_at_once() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create()
        await talk.say("One sentence.", "d")
        await server.runtime.lifecycle.drain()
        await talk.until("going_away")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("draining", "c")
        assert (await talk.until("context.done"))["reason"] == "error"
        with pytest.raises(ConnectionClosed) as closed:
            await talk.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert server.runtime.admission.active == 0
        # a longer drain would not have helped it
        assert server.runtime.metrics.cut_by_drain._value.get() == 0


async def hear(speech: Speech, heard: list[AudioChunk]) -> None:
    """Add all audio of ``speech`` to ``heard``."""
    async for chunk in speech:
        heard.append(chunk)


async def test_drain_leaves_audio_that_waiting_client_has_not_heard() -> None:
    text = "One sentence of a longer reply. "
    async with gateway(**EXACT) as server, Client(server.url) as peer, peer.speak() as speech:
        await speech.append(text)
        await server.runtime.lifecycle.drain()  # while the client waits for more text
        heard: list[AudioChunk] = []
        with pytest.raises(ServerError, match="draining"):
            await hear(speech, heard)
        assert sum(chunk.samples for chunk in heard) == len(server.whole(text.strip()))


@pytest.mark.long
async def test_drain_deadline_ends_unfinished_context() -> None:
    talker = FakeTalker(row_s=0.05, frames_per_character=50)
    async with gateway(talker, drain_s=0.2) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="This takes much too long.")
        await talk.send("context.end", context_id="c")
        await talk.until("audio.started")
        await server.runtime.lifecycle.drain()
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("draining", "c")
        assert (await talk.until("context.done"))["reason"] == "error"
        with pytest.raises(ConnectionClosed):
            await talk.until("never")
        assert talk.socket.close_code == 1001
        assert "tts_contexts_cut_by_drain_total 1.0" in server.runtime.metrics.render().decode()
        await server.until_free()


async def test_drain_waits_for_rest_of_half_sentence() -> None:
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text="One sentence. And half of")
        await talk.until("audio.started")
        draining = asyncio.create_task(server.runtime.lifecycle.drain())
        await talk.until("going_away")
        await asyncio.sleep(1.5)
        await talk.send("text.append", context_id="c", text=" another one.")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        spoken = [server.whole(text) for text in ("One sentence.", "And half of another one.")]
        assert np.array_equal(talk.samples(handle), np.concatenate(spoken))
        await draining


async def test_drain_does_not_wait_after_empty_text() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create()
        (context,) = server.contexts()
        for text, is_settled in (("", True), (" ", False)):
            await talk.send("text.append", context_id="c", text=text)
            await talk.send("ping")
            await talk.until("pong")
            assert context.is_settled(context.touched_at) is is_settled


async def test_drain_waits_for_text_that_arrives_sentence_by_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_WRITING_S", 60.0)  # however late the next sentence is
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        draining: asyncio.Task[None] | None = None
        for text in SENTENCES:
            await talk.send("text.append", context_id="c", text=text + " ")
            if draining is None:
                await talk.until("audio.started")
                draining = asyncio.create_task(server.runtime.lifecycle.drain())
            await asyncio.sleep(0.1)
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        whole = np.concatenate([server.whole(text) for text in SENTENCES])
        assert np.array_equal(talk.samples(handle), whole)
        assert draining is not None
        await draining


async def test_drain_waits_for_audio_in_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = EncoderPump._encode
    heard: dict[bool, int] = {}

    def slow(pump: EncoderPump, job: Any) -> Any:
        time.sleep(0.1)
        return encode(pump, job)

    monkeypatch.setattr(EncoderPump, "_encode", slow)
    for is_ending in (False, True):
        async with gateway() as server, client(server.url) as talk:
            await talk.create(audio={"encoding": "opus"}, chunking=EXACT)
            await talk.send("text.append", context_id="c", text="One sentence to finish. " * 2)
            await talk.send("context.end", context_id="c")
            await talk.until("audio.started")
            draining = asyncio.create_task(server.runtime.lifecycle.drain()) if is_ending else None
            await talk.until("context.done")
            heard[is_ending] = len(talk.audio[0])
            if draining is not None:
                await draining
    assert heard[True] == heard[False] > 50


async def test_drain_waits_for_voice_being_added() -> None:
    async with voice_server.server() as server:
        runtime, codec = server.live.runtime, server.live.codec
        encode, begun, may_end = codec.encode, asyncio.Event(), asyncio.Event()

        async def held(samples: Samples) -> EncodedClip:
            begun.set()
            await may_end.wait()
            return await encode(samples)

        codec.encode = held  # type: ignore[method-assign]
        adding = asyncio.create_task(server.add())
        await begun.wait()
        draining = asyncio.create_task(runtime.lifecycle.drain())
        await runtime.lifecycle.draining.wait()
        await asyncio.sleep(0)
        assert not draining.done()
        may_end.set()
        await draining
        assert (await adding).status_code == 201


async def test_end_drain_cancels_deadline_and_keeps_context() -> None:
    async with gateway(drain_s=30) as server, client(server.url) as talk:
        await talk.create()
        server.runtime.lifecycle.begin_drain()
        (deadline,) = (t for t in asyncio.all_tasks() if "_cut_at_deadline" in repr(t.get_coro()))
        assert server.runtime.lifecycle.end_drain()
        await asyncio.wait([deadline])
        assert deadline.cancelled()
        await talk.send("text.append", context_id="c", text="It goes on.")
        await talk.send("context.end", context_id="c")
        assert (await talk.until("context.done"))["reason"] == "complete"
        assert server.runtime.metrics.cut_by_drain._value.get() == 0


async def test_end_drain_lifts_deadline_of_socket_that_announced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talker, on_drain = FakeTalker(row_s=0.02, frames_per_character=4), NativeDialect.on_drain
    async with gateway(talker, drain_s=0.1) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="It takes two seconds. ")

        def end_at_once(dialect: NativeDialect, deadline_ms: int) -> None:
            on_drain(dialect, deadline_ms)
            assert server.runtime.lifecycle.end_drain()

        monkeypatch.setattr(NativeDialect, "on_drain", end_at_once)
        server.runtime.lifecycle.begin_drain()
        await talk.send("context.end", context_id="c")
        assert (await talk.until("context.done"))["reason"] == "complete"
        with pytest.raises(ConnectionClosed):
            await talk.until("never")
        assert talk.socket.close_code == 1001


async def test_second_drain_announces_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, on_tick = asyncio.Event(), NativeDialect.on_tick

    def tick(dialect: NativeDialect, now: float) -> None:
        on_tick(dialect, now)
        looked.set()

    talker = FakeTalker(row_s=0.05, frames_per_character=50)
    async with gateway(talker, drain_s=30) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="This takes much too long. ")
        for _ in range(2):
            server.runtime.lifecycle.begin_drain()
            await talk.until("going_away")
            assert server.runtime.lifecycle.end_drain()
            monkeypatch.setattr(NativeDialect, "on_tick", tick)
            looked.clear()
            await asyncio.wait_for(looked.wait(), 60)
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")


async def test_drain_waits_for_client_that_reads_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "_FLUSH_S", 0.1)
    text, ticked, on_tick = "One sentence to finish.", asyncio.Event(), NativeDialect.on_tick

    def tick(dialect: NativeDialect, now: float) -> None:
        on_tick(dialect, now)
        ticked.set()

    async with served() as server, server.socket("/v1/tts/stream") as talk:
        await talk.next()
        options = {"audio": {"encoding": "pcm_f32le"}, "chunking": EXACT}
        talk.send({"type": "context.create", "context_id": "c", **options})
        await talk.next()
        talk.reading.clear()
        talk.send({"type": "text.append", "context_id": "c", "text": text})
        talk.send({"type": "context.end", "context_id": "c"})
        await server.until_free()
        monkeypatch.setattr(NativeDialect, "on_tick", tick)
        server.runtime.lifecycle.begin_drain()
        async with asyncio.timeout(20):
            await ticked.wait()
        talk.reading.set()
        heard, kinds = b"", list[str]()
        while (message := await talk.next()) is not None:
            if isinstance(message, bytes):
                heard += message[HEADER_BYTES:]
            else:
                kinds.append(message["type"])
        assert kinds == ["audio.started", "metrics", "context.done", "going_away"]
        assert np.array_equal(np.frombuffer(heard, np.float32), server.whole(text))
        assert talk.close_code == 1001


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/admin/drain?exit=maybe", 400, "exit must be true or false"),
        ("GET", "/admin/nothing", 404, "nothing at this address"),
        ("PUT", "/admin/drain", 405, "does not take that method"),
    ],
)
async def test_admin_refuses_bad_request_in_form_of_other_errors(
    method: str, path: str, status: int, message: str
) -> None:
    async with gateway() as server:
        transport = httpx.ASGITransport(create_admin_app(server.runtime, lambda: None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            answer = await http.request(method, path)
        assert not server.runtime.lifecycle.is_draining
    told = answer.json()["error"]
    assert answer.status_code == status
    assert message in told["message"]
    assert told["code"]
    assert answer.headers["x-request-id"]

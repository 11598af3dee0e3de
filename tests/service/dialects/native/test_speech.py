"""The native protocol against a live gateway with a fake talker and a fake codec."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect

from loadtest.fakes.talker import FakeTalker
from streaming.protocol.binary import AudioFlags, AudioHeader
from tests.service.dialects.native.texts import EXACT, SENTENCES, TEXT, get, is_done
from tests.service.live import SPEC, Client, client, gateway, most_rows
from tests.waiting import until


@pytest.mark.parametrize("mode", ["chunked", "whole"])
async def test_streamed_audio_equals_whole_audio(mode: str) -> None:
    async with gateway() as server, client(server.url) as talk:
        got = await talk.say(TEXT, mode=mode, chunking=EXACT, sampling={"seed": 5})
        want = np.concatenate([server.whole(sentence, 5) for sentence in SENTENCES])
        assert np.array_equal(got, want)


async def test_text_may_arrive_in_single_characters() -> None:
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        for character in TEXT:
            await talk.send("text.append", context_id="c", text=character)
        await talk.send("text.append", context_id="c", text="")
        await talk.send("context.end", context_id="c")
        metrics = await talk.until("metrics")
        await talk.until("context.done")
        want = np.concatenate([server.whole(sentence) for sentence in SENTENCES])
        assert np.array_equal(talk.samples(handle), want)
        assert metrics["audio_ms"] == pytest.approx(1000 * len(want) / 24_000)
        headers = [header for header, _ in talk.audio[handle]]
        assert headers[0].flags & AudioFlags.FIRST
        assert headers[-1].flags & AudioFlags.LAST


async def test_frame_ms_sets_message_length() -> None:
    audio = {"encoding": "pcm_f32le", "frame_ms": 20}
    async with gateway() as server, client(server.url) as talk:
        got = await talk.say("One sentence.", audio=audio, chunking=EXACT)
        assert np.array_equal(got, server.whole("One sentence."))
        lengths = {len(data) // 4 for _, data in talk.audio[0][:-1]}
        assert lengths == {480}


async def test_pcm_s16le_is_rounded_float() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create(audio={"encoding": "pcm_s16le"}, chunking=EXACT)
        await talk.send("text.append", context_id="c", text="One sentence.")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        data = b"".join(data for _, data in talk.audio[0])
        want = np.rint(server.whole("One sentence.") * np.float32(32767))
        assert np.array_equal(np.frombuffer(data, "<i2"), want.astype(np.int16))


async def test_raw_framing_sends_audio_without_headers() -> None:
    async with gateway() as server, connect(server.url) as socket:
        talk = Client(socket)
        await talk.next()
        await talk.send("session.configure", framing="raw")
        await talk.create(chunking=EXACT)
        await talk.send("context.create", context_id="second")
        error = await talk.error()
        assert error["code"] == "too_many_contexts"
        assert error["message"] == "A socket may hold 1 open context."
        await talk.send("text.append", context_id="c", text="One sentence.")
        await talk.send("context.end", context_id="c")
        data = b""
        while b'"context.done"' not in (message := as_bytes(await socket.recv())):
            data += b"" if message.startswith(b"{") else message
        assert np.array_equal(np.frombuffer(data, np.float32), server.whole("One sentence."))


async def test_json_framing_carries_same_audio_as_binary() -> None:
    async with gateway() as server, connect(server.url) as socket, client(server.url) as binary:
        talk = Client(socket)
        await talk.next()
        await talk.send("session.configure", framing="json")
        for name in ("a", "b"):
            await talk.create(name, chunking=EXACT, sampling={"seed": ord(name)})
            await talk.send("text.append", context_id=name, text=TEXT)
            await talk.send("context.end", context_id=name)
        frames: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        done = 0
        while done < 2:
            message = json.loads(as_bytes(await socket.recv()))
            assert message["type"] != "error"
            done += message["type"] == "context.done"
            if message["type"] == "audio":
                frames[message["context_id"]].append(message)
        for handle, name in enumerate("ab"):
            data = [base64.b64decode(frame["audio"], validate=True) for frame in frames[name]]
            want = await binary.say(TEXT, name, chunking=EXACT, sampling={"seed": ord(name)})
            assert b"".join(data) == want.tobytes()
            assert [frame["sequence"] for frame in frames[name]] == list(range(len(data)))
            offsets = [sum(len(x) for x in data[:n]) // 4 for n in range(len(data))]
            assert [frame["sample_offset"] for frame in frames[name]] == offsets
            assert {frame["handle"] for frame in frames[name]} == {handle}
            flags = [frame["flags"] & 3 for frame in frames[name]]
            assert (flags[0] & 1, flags[-1] & 2) == (1, 2)
            assert not any(flags[1:-1])


async def test_cancel_stops_json_audio() -> None:
    talker = FakeTalker(row_s=0.0005, frames_per_character=20)
    async with gateway(talker) as server, connect(server.url) as socket:
        talk = Client(socket)
        await talk.next()
        await talk.send("session.configure", framing="json")
        await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        await talk.until("audio")
        await talk.send("context.cancel", context_id="c")
        cancelled = await talk.until("context.cancelled")
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == TEXT
        report = await talk.next()
        assert isinstance(report, dict)
        assert report["type"] == "metrics", "audio after context.cancelled"
        await talk.send("ping", id="p")
        pong = await talk.next()
        assert isinstance(pong, dict)
        assert pong["type"] == "pong"
        await server.until_free()


def as_bytes(message: str | bytes) -> bytes:
    return message.encode() if isinstance(message, str) else message


async def test_contexts_on_one_socket_do_not_mix() -> None:
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, codec_delay_s=0.002) as server, client(server.url) as talk:
        handles = {}
        for name in ("a", "b", "c", "d"):
            handles[name] = await talk.create(name, chunking=EXACT, sampling={"seed": ord(name)})
            await talk.send("text.append", context_id=name, text=TEXT)
            await talk.send("context.end", context_id=name)
        done = set()
        while len(done) < 4:
            done.add((await talk.until("context.done"))["context_id"])
        for name, handle in handles.items():
            want = [server.whole(sentence, ord(name)) for sentence in SENTENCES]
            assert np.array_equal(talk.samples(handle), np.concatenate(want))


async def test_context_continues_after_flush() -> None:
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text="Half a sen")
        await talk.send("context.flush", context_id="c", flush_id="f1")
        assert (await talk.until("flush.done"))["flush_id"] == "f1"
        assert np.array_equal(talk.samples(handle), server.whole("Half a sen"))
        await talk.send("text.append", context_id="c", text="tence.")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        want = np.concatenate([server.whole("Half a sen"), server.whole("tence.")])
        assert np.array_equal(talk.samples(handle), want)


async def test_cancel_stops_audio_and_frees_slot() -> None:
    talker = FakeTalker(row_s=0.002, frames_per_character=20)
    async with gateway(talker) as server, client(server.url) as talk:
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        while not isinstance(await talk.next(), AudioHeader):
            pass
        await talk.send("context.cancel", context_id="c", played_ms=40)
        cancelled = await talk.until("context.cancelled")
        frames = len(talk.audio[handle])
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == TEXT
        assert cancelled["played_ms"] == pytest.approx(40, abs=0.1)
        await server.until_free()
        other = await talk.say("Another one.", "d", chunking=EXACT)
        assert len(talk.audio[handle]) == frames
        assert len(other)
        await talk.send("context.cancel", context_id="c")
        assert (await talk.error())["code"] == "context_closed"


@pytest.mark.parametrize(
    ("wish", "limits"), [({"max_lead_ms": 500}, {}), ({}, {"max_lead_ms": 500})]
)
async def test_talker_is_limited_by_lead(wish: Any, limits: Any) -> None:
    """The client's ``max_lead_ms``, or the server's if it is below the default lead."""
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, **limits) as server, client(server.url) as talk:
        made, begun_at = server.talker.rows_made, time.monotonic()
        handle = await talk.create(chunking=EXACT, **wish)
        await talk.send("text.append", context_id="c", text="Twenty characters!! ")
        await talk.until("audio.started")
        await asyncio.sleep(0.5)
        assert server.talker.rows_made - made < most_rows(0.5, begun_at)  # the text has 475 rows
        assert server.talker.outstanding == 1
        await talk.send("context.end", context_id="c")
        while not is_done(message := await talk.next()):
            if isinstance(message, AudioHeader):  # a listener that plays without delay
                played = message.sample_offset + len(talk.audio[handle][-1][1]) // 4
                await talk.send("playback", context_id="c", played_samples=played)
        assert np.array_equal(talk.samples(handle), server.whole("Twenty characters!!"))


async def test_disconnect_frees_talker_and_codec() -> None:
    talker = FakeTalker(row_s=0.002, frames_per_character=50)
    async with gateway(talker) as server:
        server.codec.delay_s = 3600.0
        async with client(server.url) as talk:
            await talk.create()
            await talk.send("text.append", context_id="c", text=TEXT)
            await until(lambda: server.codec.outstanding)
            assert server.talker.outstanding == 1
            talk.socket.transport.abort()
        await server.until_free()
        assert server.codec.cancelled == 1
        text = (await get(server.http + "/metrics")).text
        assert 'tts_contexts_total{outcome="cancelled",protocol="native"} 1.0' in text
        assert "tts_connections_active 0.0" in text


@pytest.mark.parametrize("most", [1, 3, 20])
async def test_max_frames_limits_utterance_exactly(most: int) -> None:
    async with gateway() as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT, sampling={"max_frames": most, "seed": 3})
        await talk.send("text.append", context_id="c", text="A sentence that goes on.")
        await talk.send("context.end", context_id="c")
        assert (await talk.until("context.done"))["reason"] == "length"
        assert len(talk.samples(handle)) == most * SPEC.hop_length

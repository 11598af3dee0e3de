"""Encodings, sample rates and counts of samples in the native protocol."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from typing import Any

import av
import numpy as np
import pytest
from websockets.asyncio.client import connect

import talkwire_client
from loadtest.fakes.talker import FakeTalker
from service.audio.filters import Resampler
from service.audio.formats import MEDIA_TYPES, SAMPLE_RATES
from service.audio.pump import EncoderPump
from streaming.protocol.binary import AudioHeader
from tests.service.live import SPEC, Client, Gateway, client, gateway
from tests.waiting import until

RATE = SPEC.sample_rate
EXACT = {"lookahead_frames": SPEC.right_frames}
TEXTS = ["The first one is short. ", "The second one is somewhat longer than that."]


async def hear(talk: Client, context_id: str, audio: dict[str, Any]) -> list[Any]:
    """Speak TEXTS with a flush between them. Return the messages, and "audio" for each packet."""
    await talk.create(context_id, audio=audio, chunking=EXACT)
    await talk.send("text.append", context_id=context_id, text=TEXTS[0])
    await talk.send("context.flush", context_id=context_id, flush_id="f")
    await talk.send("text.append", context_id=context_id, text=TEXTS[1])
    await talk.send("context.end", context_id=context_id)
    came: list[Any] = []
    while not came or came[-1] == "audio" or came[-1]["type"] != "context.done":
        message = await talk.next()
        assert isinstance(message, AudioHeader) or message["type"] != "error", message
        came.append("audio" if isinstance(message, AudioHeader) else message)
    return came


def utterances(server: Gateway) -> list[np.ndarray]:
    return [server.whole(text.strip()) for text in TEXTS]


async def test_session_created_lists_encodings_and_sample_rates() -> None:
    async with gateway() as server, connect(server.url) as socket:
        greeting = json.loads(await socket.recv())
    assert greeting["encodings"] == ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw", "opus"]
    assert set(greeting["encodings"]) < set(MEDIA_TYPES)
    assert greeting["sample_rates"] == list(SAMPLE_RATES)


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
async def test_each_utterance_is_resampled_to_its_end(rate: int) -> None:
    async with gateway() as server, client(server.url) as talk:
        await hear(talk, "c", {"encoding": "pcm_f32le", "sample_rate": rate})
        resampler, wanted = Resampler(RATE, rate), list[np.ndarray]()
        for one in utterances(server):
            wanted += [resampler.push(one), resampler.finish()]
        assert np.array_equal(talk.samples(0), np.concatenate(wanted))


@pytest.mark.parametrize("encoding", ["pcm_mulaw", "pcm_alaw"])
async def test_telephony_audio_is_8000_hz_in_frames_of_20_ms(encoding: str) -> None:
    async with gateway() as server, client(server.url) as talk:
        came = await hear(talk, "c", {"encoding": encoding, "frame_ms": 20})
        started = next(message for message in came if message["type"] == "audio.started")
        assert (started["sample_rate"], started["delay_samples"]) == (8000, 0)
        lengths = [len(data) for _, data in talk.audio[0]]
        assert set(lengths) - {160} <= {len(one) // 3 % 160 for one in utterances(server)}
        assert sum(lengths) == sum(len(one) // 3 for one in utterances(server))


@pytest.mark.parametrize(("rate", "frame_ms"), [(None, 0), (48_000, 60), (8_000, 10)])
async def test_opus_packets_and_messages_arrive_in_order(rate: int | None, frame_ms: int) -> None:
    audio: dict[str, Any] = {"encoding": "opus", "frame_ms": frame_ms}
    async with gateway() as server, client(server.url) as talk:
        came = await hear(talk, "c", audio | ({"sample_rate": rate} if rate else {}))
        whole = utterances(server)
    rate, frame_ms = rate or RATE, frame_ms or 20
    frame, delay = rate * frame_ms // 1000, rate * 312 // 48_000
    lengths = [round(len(one) * rate / RATE) for one in whole]
    packets = [-(-(length + delay) // frame) for length in lengths]
    kinds = [message if message == "audio" else message["type"] for message in came]
    assert kinds == [
        "audio.started",
        *["audio"] * packets[0],
        "flush.done",
        *["audio"] * packets[1],
        "metrics",
        "context.done",
    ]
    assert (came[0]["sample_rate"], came[0]["delay_samples"]) == (rate, delay)
    assert came[-2]["audio_ms"] == pytest.approx(sum(map(len, whole)) * 1000 / RATE, abs=0.1)
    headers = [header for header, _ in talk.audio[0]]
    assert [header.sequence for header in headers] == list(range(sum(packets)))
    assert [header.sample_offset for header in headers] == list(
        range(0, frame * len(headers), frame)
    )
    assert headers[-1].flags.name == "LAST"
    decoder = av.AudioCodecContext.create("opus", "r")
    decoder.sample_rate, decoder.layout = 48_000, "mono"
    decoder.extradata = struct.pack("<8sBBHIHB", b"OpusHead", 1, 1, 0, 48_000, 0, 0)
    frames = [f for _, data in talk.audio[0] for f in decoder.decode(av.Packet(data))]
    assert sum(one.samples for one in frames) == 48 * frame_ms * len(headers)


async def test_python_client_counts_samples_of_opus() -> None:
    async with gateway() as server, talkwire_client.Client(server.url) as talk:
        options: dict[str, Any] = {"encoding": "opus", "sample_rate": 16_000, "frame_ms": 40}
        async with talk.speak(TEXTS[0], **options) as speech:
            chunks = [chunk async for chunk in speech]
        assert speech.started is not None
        assert (speech.started.sample_rate, speech.started.delay_samples) == (16_000, 104)
        assert {chunk.samples for chunk in chunks} == {640}


async def test_cancel_stops_opus_packets() -> None:
    talker = FakeTalker(row_s=0.0005, frames_per_character=20)
    async with gateway(talker) as server, client(server.url) as talk:
        for number in range(8):
            name = f"c{number}"
            handle = await talk.create(name, audio={"encoding": "opus", "frame_ms": 10})
            await talk.send("text.append", context_id=name, text=TEXTS[1] * 3)
            await talk.send("context.flush", context_id=name, flush_id="f")
            for _ in range(3 * number + 1):
                while not isinstance(await talk.next(), AudioHeader):
                    pass
            await talk.send("context.cancel", context_id=name)
            cancelled = await talk.until("context.cancelled", name)
            packets = len(talk.audio[handle])
            assert cancelled["sent_ms"] <= 10 * packets
            assert cancelled["sent_ms"] >= 10 * packets - 20
            assert cancelled["text_spoken"] + cancelled["text_remaining"] == TEXTS[1] * 3
            report = await talk.next()
            assert isinstance(report, dict), "audio after context.cancelled"
            assert (report["type"], report["context_id"]) == ("metrics", name)
            await asyncio.sleep(0.05)
            await talk.send("ping", id=name)
            pong = await talk.next()
            assert isinstance(pong, dict), "audio after context.cancelled"
            assert pong["type"] == "pong"
        await server.until_free()


@pytest.mark.parametrize(
    "end", [{"type": "context.cancel", "context_id": "c"}, {"type": "session.close"}]
)
async def test_cancel_stops_spoken_context_whose_audio_is_in_encoder(
    end: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, may_encode = EncoderPump._encode, threading.Event()

    def encode_later(pump: EncoderPump, job: Any) -> Any:
        assert may_encode.wait(60)
        return encode(pump, job)

    monkeypatch.setattr(EncoderPump, "_encode", encode_later)
    async with gateway() as server, client(server.url) as talk:
        try:
            await talk.create(audio={"encoding": "opus"})
            await talk.send("text.append", context_id="c", text=TEXTS[1])
            await talk.send("context.end", context_id="c")
            await until(lambda: not server.runtime.lifecycle.open_contexts)  # all is spoken
            await talk.socket.send(json.dumps(end))
            cancelled = await talk.until("context.cancelled")
            assert (cancelled["text_spoken"], cancelled["text_remaining"]) == ("", TEXTS[1])
            assert not server.runtime.admission.active
        finally:
            may_encode.set()
        await talk.until("metrics")
        if end["type"] == "context.cancel":
            await talk.say("It goes on.", "c")
        assert 0 not in talk.audio


async def test_playback_reports_count_samples_at_output_rate() -> None:
    async with gateway() as server, client(server.url) as talk:
        audio = {"encoding": "pcm_f32le", "sample_rate": 8000}
        handle = await talk.create(audio=audio)
        await talk.send("text.append", context_id="c", text=TEXTS[1])
        await talk.send("context.flush", context_id="c", flush_id="f")
        await talk.until("flush.done")
        sent = sum(len(data) // 4 for _, data in talk.audio[handle])
        await talk.send("playback", context_id="c", played_samples=sent)
        await talk.send("context.cancel", context_id="c")
        cancelled = await talk.until("context.cancelled")
        assert cancelled["played_ms"] == cancelled["sent_ms"]
        assert cancelled["played_ms"] == pytest.approx(sent / 8, abs=0.2)
        assert cancelled["text_spoken"].strip() == TEXTS[1]

"""Encodings and rates over the native protocol, and how their samples are counted there."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import av
import numpy as np
import pytest
from websockets.asyncio.client import connect

from clients.native import NativeClient
from service.audio.factory import MEDIA_TYPES, SAMPLE_RATES
from service.audio.files import FLAC, FileEncoder
from service.audio.pump import EncoderPump
from service.audio.resample import Resampler
from service.audio.timeline import Timeline
from service.metrics import Metrics
from service.outbox import Outbox
from service.protocols.native_context import NativeContext, make_context_encoder
from streaming import wire
from streaming.errors import TalkwireError
from streaming.events import Done, SendAudio
from streaming.report import ContextReport
from streaming.spec import Encoding
from streaming.wire_format import AudioHeader
from talker.fake import FakeTalker
from tests.service.audio_signal import voice
from tests.service.live import SPEC, Client, Gateway, client, gateway

RATE = SPEC.sample_rate
EXACT = {"lookahead_frames": SPEC.receptive_field_frames}
TEXTS = ["The first one is short. ", "The second one is somewhat longer than that."]


async def hear(talk: Client, context_id: str, audio: dict[str, Any]) -> list[Any]:
    """Speak TEXTS with a flush between; the messages and headers in the order they came."""
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


async def test_the_greeting_tells_encodings_and_rates() -> None:
    async with gateway() as server, connect(server.url) as socket:
        greeting = json.loads(await socket.recv())
    assert greeting["encodings"] == ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw", "opus"]
    assert set(greeting["encodings"]) < set(MEDIA_TYPES)
    assert greeting["sample_rates"] == list(SAMPLE_RATES)


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
async def test_each_utterance_is_resampled_whole(rate: int) -> None:
    async with gateway() as server, client(server.url) as talk:
        await hear(talk, "c", {"encoding": "pcm_f32le", "sample_rate": rate})
        resampler, wanted = Resampler(RATE, rate), list[np.ndarray]()
        for one in utterances(server):
            wanted += [resampler.push(one), resampler.finish()]
        assert np.array_equal(talk.samples(0), np.concatenate(wanted))


@pytest.mark.parametrize("encoding", ["pcm_mulaw", "pcm_alaw"])
async def test_telephony(encoding: str) -> None:
    async with gateway() as server, client(server.url) as talk:
        came = await hear(talk, "c", {"encoding": encoding, "frame_ms": 20})
        started = next(message for message in came if message["type"] == "audio.started")
        assert (started["sample_rate"], started["delay_samples"]) == (8000, 0)
        lengths = [len(data) for _, data in talk.audio[0]]
        assert set(lengths) - {160} <= {len(one) // 3 % 160 for one in utterances(server)}
        assert sum(lengths) == sum(len(one) // 3 for one in utterances(server))


@pytest.mark.parametrize(("rate", "frame_ms"), [(None, 0), (48_000, 60), (8_000, 10)])
async def test_opus_keeps_audio_and_messages_in_order(rate: int | None, frame_ms: int) -> None:
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


async def test_the_projects_client_counts_opus() -> None:
    async with gateway() as server, NativeClient.connect(server.url) as talk:
        async with talk.context(audio=wire.AudioOptions(Encoding.OPUS, 16_000, 40)) as context:
            await context.feed(TEXTS[0])
            chunks = [chunk async for chunk in context]
        assert context.started is not None
        assert (context.started.sample_rate, context.started.delay_samples) == (16_000, 104)
        assert {chunk.samples for chunk in chunks} == {640}


async def test_after_a_cancel_not_one_packet_comes() -> None:
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
            await talk.until("metrics", name)
            await asyncio.sleep(0.05)
            await talk.send("ping", id=name)
            pong = await talk.next()
            assert isinstance(pong, dict), "audio after context.cancelled"
            assert pong["type"] == "pong"
        await server.until_free()


async def test_reports_count_at_the_rate_of_the_audio() -> None:
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


class Rig:
    """A NativeContext alone, with an outbox that nobody reads."""

    def __init__(self, tasks: asyncio.TaskGroup, audio: wire.AudioOptions) -> None:
        self.errors: list[TalkwireError] = []
        self.closed: list[str] = []
        self.outbox = Outbox(10**8)
        create = wire.ContextCreate("c", audio=audio)
        self.encoder = make_context_encoder(audio, RATE)
        self.timeline = Timeline(RATE, self.encoder.sample_rate, self.encoder.delay_samples)
        self.pump = EncoderPump(self.encoder, tasks, self.errors.append)
        self.context = NativeContext(
            create,
            7,
            self.encoder,
            self.pump,
            self.timeline,
            self.outbox,
            Metrics("test", "fake"),
            framing="header",
            tell=lambda error, _: self.errors.append(error),
            closed=self.closed.append,
        )

    def audio(self, samples: int, *, first: bool = False, ends: bool = False) -> None:
        self.context.on_audio(SendAudio(voice(samples), 0, first, ends, ends, False))

    async def take(self) -> str | bytes:
        item = await asyncio.wait_for(self.outbox.get(), 60)
        assert item is not None
        return item.data


REPORT = ContextReport(None, None, None, 0.0, 0.0, None, 0.0, 0, 0)


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
async def test_what_a_cancel_takes_back_is_counted_in_the_codecs_samples(rate: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, rate, 20))
        for number in range(10):
            rig.audio(2400, first=not number)
        await rig.take()  # audio.started
        written = [await rig.take() for _ in range(7)]
        assert {len(data) for data in written} == {12 + 2 * rate * 20 // 1000}
        assert rig.context.revoke() == 10 * 2400 - 7 * 480
        rig.audio(2400)
        assert rig.outbox.queued_bytes == 0


async def test_an_opus_packet_that_is_only_half_audio_counts_as_that() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        rig.audio(4800, first=True)
        await rig.take()
        await rig.take()
        while rig.timeline.sent_samples < 4800:
            await asyncio.sleep(0)
        assert rig.context.revoke() == 4800 - (480 - 156)


async def test_an_encoder_that_breaks_at_the_end_is_no_success() -> None:
    """The session is over when the encoder fails: the client must hear of it all the same."""
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        over = FileEncoder(FLAC, RATE)
        over.flush()  # a file that has ended refuses what follows
        rig.pump._encoder = over
        rig.audio(4800, first=True, ends=True)
        rig.context.on_done(Done("complete", REPORT))
        assert rig.closed == []
    assert rig.closed == ["c"]
    assert {error.code.value for error in rig.errors} == {"internal"}
    kinds = [json.loads(await rig.take()) for _ in range(3)]
    assert [kind["type"] for kind in kinds] == ["audio.started", "metrics", "context.done"]
    assert kinds[-1]["reason"] == "error"


async def test_a_socket_that_goes_leaves_no_context_open() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        rig.audio(48_000, first=True, ends=True)
        rig.context.on_done(Done("complete", REPORT))
        rig.context.abandon()
        assert rig.closed == ["c"]
        rig.context.abandon()
    assert rig.closed == ["c"]

"""SpeechContext from samples to messages, with a driver that only records its events."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.audio.containers import FLAC, FileEncoder
from service.build import assemble
from service.contexts.driver import ContextDriver
from service.contexts.options import (
    FlushEncoder,
    SpeechOptions,
    SpeechPlan,
    session_settings,
    speech_request,
)
from service.contexts.outbox import Outbox
from service.contexts.socket_output import SocketOutput
from service.contexts.speech_context import Audio, OutputSink, SpeechContext, Started, Words
from service.dialects.native import NativeRenderer, audio_format
from service.engines.contracts import Engines
from service.engines.pace import EnginePace
from service.settings import Settings
from service.transport.http_response import OutputQueue
from streaming.errors import TalkwireError, internal_error
from streaming.events import (
    Cancelled,
    CancelRequested,
    Decode,
    Done,
    Event,
    Flushed,
    SendAudio,
    UtteranceEnded,
    WordsSent,
)
from streaming.protocol import messages as wire
from streaming.protocol.binary import AudioFlags, AudioHeader
from streaming.report import ContextReport
from streaming.session import Session
from streaming.spec import Encoding, Samples
from streaming.window import DecodeWindow
from streaming.word_timing import WordTiming
from tests.service.live import SPEC

RATE = SPEC.sample_rate
REPORT = ContextReport(None, None, None, 0.0, 0.0, None, 0.0, 0, 0)
ONE, TWO = WordTiming("One", 0, 3, 0.0, 40.0), WordTiming("two", 4, 7, 40.0, 80.0)


def tone(samples: int) -> Samples:
    return np.sin(np.arange(samples) * np.float32(0.05)).astype(np.float32)


class Rig:
    """A SpeechContext of the native protocol, with an outbox that no socket reads."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        audio: wire.AudioOptions,
        sink: OutputSink | None = None,
        flush_encoder: FlushEncoder = FlushEncoder.EACH_UTTERANCE,
        *,
        is_whole: bool = False,
        own_chunk_frames: int | None = None,
    ) -> None:
        runtime = assemble(Settings(), Engines(FakeTalker(), FakeCodecEngine(SPEC)))
        create = wire.ContextCreate("c", audio=audio)
        options = SpeechOptions(
            format=audio_format(audio, RATE), flush_encoder=flush_encoder, is_lenient=False
        )
        plan = SpeechPlan(
            "native",
            Session(session_settings(runtime, options)),
            speech_request(runtime, options, "c"),
            options.format.encoder(RATE),
            options,
            own_chunk_frames=own_chunk_frames,
        )
        self.runtime, self.outbox = runtime, Outbox(10**8)
        self.errors: list[TalkwireError] = []
        self.ends = 0
        renderer = NativeRenderer(create, "header", self.render_error)
        renderer.opened(7, "c")
        sink = sink or SocketOutput(self.outbox, 7, renderer, SPEC.sample_rate, is_whole=is_whole)
        lease = runtime.admission.acquire()
        self.context = SpeechContext(runtime, tasks, plan, lease, sink, self.closed)
        self.posted: list[Event] = []
        vars(self.context.driver)["post"] = self.posted.append

    def render_error(self, error: TalkwireError, context_id: str, request_id: str) -> str:
        self.errors.append(error)
        return json.dumps({"type": "error", "context_id": context_id})

    def closed(self) -> None:
        self.ends += 1

    def audio(
        self, samples: int, *words: WordTiming, first: bool = False, ends: bool = False
    ) -> None:
        audio = SendAudio(tone(samples), 0, first, ends, ends, False, words=words)
        self.context.emit(audio)

    async def take(self) -> str | bytes:
        item = await asyncio.wait_for(self.outbox.get(), 60)
        assert item is not None
        return item.data


@pytest.mark.parametrize("own_chunk_frames", [None, 1])
async def test_what_client_chose_is_charged_to_its_slot_and_not_held_against_others(
    monkeypatch: pytest.MonkeyPatch, own_chunk_frames: int | None
) -> None:
    monkeypatch.setattr(EnginePace, "weight", lambda self, frames: 5.0 * frames)
    sent: list[tuple[float, float]] = []
    monkeypatch.setattr(EnginePace, "on_sent", lambda self, _, *audio: sent.append(audio[:2]))
    decoded: list[object] = []
    monkeypatch.setattr(EnginePace, "on_decoded", lambda self, stats: decoded.append(stats))
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(), own_chunk_frames=own_chunk_frames)
        codes = np.zeros((SPEC.num_codebooks, 1), np.int16)
        await rig.context.driver._decode(Decode(0, DecodeWindow(codes, 0, 1, 0), 0.0))
        rig.audio(2400, first=True)
        rig.audio(2400)
        assert (len(sent), len(decoded)) == ((2, 1) if own_chunk_frames is None else (0, 0))
        assert rig.context._lease.weight == (1.0 if own_chunk_frames is None else 5.0)
        rig.context.close()


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
async def test_cancel_counts_unsent_audio_in_codec_samples(rate: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, rate, 20))
        for number in range(10):
            rig.audio(2400, first=not number)
        await rig.take()  # audio.started
        written = [await rig.take() for _ in range(7)]
        assert {len(data) for data in written} == {12 + 2 * rate * 20 // 1000}
        rig.context.cancel()
        assert rig.posted == [CancelRequested(None, 10 * 2400 - 7 * 480)]
        rig.audio(2400)
        assert rig.outbox.queued_bytes == 0


async def test_cancel_does_not_count_delay_in_opus_packet() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        rig.audio(4800, first=True)
        await rig.take()
        await rig.take()
        while rig.context._timeline.sent_samples < 4800:
            await asyncio.sleep(0)
        rig.context.cancel()
        assert rig.posted == [CancelRequested(None, 4800 - (480 - 156))]


@pytest.mark.parametrize(("played_ms", "played"), [(100.0, 2400), (1e9, 4800)])
async def test_cancel_limits_played_ms_to_audio_of_context(played_ms: float, played: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20))
        rig.audio(4800, first=True)
        rig.context.cancel(played_ms)
        assert rig.posted == [CancelRequested(played, 4800)]


async def test_cancel_is_timed_until_its_answer_is_written() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20))
        times = list[float]()
        metric = rig.runtime.metrics.cancel.labels("native")
        vars(metric)["observe"] = times.append
        rig.context.cancel()
        rig.context.emit(Cancelled(0.0, 0.0, 0.0, "", "", REPORT))
        rig.outbox.close()
        told = []
        while (item := await rig.outbox.get()) is not None:
            assert not times
            told.append(json.loads(item.data)["type"])
            if item.on_written is not None:
                item.on_written()
        assert told == ["context.cancelled", "metrics"]
        assert len(times) == 1


async def test_encoder_failure_after_session_end_is_reported() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        over = FileEncoder(FLAC, RATE)
        over.flush()  # an ended file refuses more samples
        rig.context._pump._encoder = over
        rig.audio(4800, first=True, ends=True)
        rig.context.emit(Done("complete", REPORT))
        assert not rig.ends
    assert rig.ends == 1
    assert {error.code.value for error in rig.errors} == {"internal"}
    kinds = [json.loads(await rig.take()) for _ in range(4)]
    assert [kind["type"] for kind in kinds] == ["audio.started", "error", "metrics", "context.done"]
    assert kinds[-1]["reason"] == "error"
    assert rig.runtime.admission.active == 0


@pytest.mark.parametrize("encoding", [Encoding.PCM_S16LE, Encoding.OPUS])
async def test_no_flush_or_word_is_reported_after_dropped_audio(encoding: Encoding) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(encoding), is_whole=True)
        rig.outbox._max_bytes = 1000
        if encoding is Encoding.OPUS:
            over = FileEncoder(FLAC, RATE)
            over.flush()  # an ended file refuses more samples
            rig.context._pump._encoder = over
        rig.audio(4800, ends=True)
        rig.context.emit(WordsSent((ONE,)))
        rig.context.emit(Flushed("f"))
        while rig.context._pump.is_busy:
            await asyncio.sleep(0)
        assert rig.outbox.is_empty
        rig.context.emit(Done("complete", REPORT))
    assert rig.ends == 1


async def test_cancel_after_last_sample_counts_revoked_audio_as_unsent() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        report = replace(REPORT, generated_s=2.0, audio_s=2.0)
        rig.audio(48_000, first=True, ends=True)
        rig.context.emit(Done("complete", report))
        rig.context.cancel()
    metrics = rig.runtime.metrics
    assert metrics.audio.labels("native")._value.get() == 0
    assert metrics.wasted.labels("native", "unsent")._value.get() == 2.0


async def test_close_ends_context_with_audio_in_encoder() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.OPUS))
        rig.audio(48_000, first=True, ends=True)
        rig.context.emit(Done("complete", REPORT))
        rig.context.close()
        assert rig.ends == 1
        assert rig.runtime.admission.active == 0
        rig.context.close()
    assert rig.ends == 1


@pytest.mark.parametrize("encoding", [Encoding.PCM_S16LE, Encoding.OPUS])
async def test_words_come_with_audio_or_after_audio(encoding: Encoding) -> None:
    outputs = OutputQueue(RATE)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        rig = Rig(tasks, wire.AudioOptions(encoding), outputs)
        rig.audio(4800, ONE, first=True)
        rig.audio(4800)
        rig.context.emit(WordsSent((TWO,)))
        assert isinstance(await outputs.get(), Started)
        first, second, late = [await outputs.get() for _ in range(3)]
        assert isinstance(first, Audio)
        assert first.words.timings == (ONE,)
        assert isinstance(second, Audio)
        assert second.words.timings == ()
        assert isinstance(late, Words)
        assert late.timings == (TWO,)
        delay_ms = 6.5 if encoding is Encoding.OPUS else 0.0
        assert [word.start_ms for word in late.heard()] == [40.0 + delay_ms]
        rig.context.close()


@pytest.mark.parametrize(
    ("when", "is_idle", "packets"),
    [
        (FlushEncoder.EACH_UTTERANCE, False, [2, 1, 0, 0]),
        (FlushEncoder.EACH_PAUSE, False, [2, 0, 0, 1]),
        (FlushEncoder.EACH_PAUSE, True, [2, 1, 0, 0]),
        (FlushEncoder.EACH_FLUSH, True, [2, 0, 1, 0]),
        (FlushEncoder.AT_END, True, [2, 0, 0, 1]),
    ],
)
async def test_encoder_is_flushed_according_to_plan(
    when: FlushEncoder, is_idle: bool, packets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts packets of 20 ms after 50 ms of audio, its utterance, a flush and the end."""
    outputs = OutputQueue(RATE)
    monkeypatch.setattr(ContextDriver, "is_idle", is_idle)
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20), outputs, when)
        counts = []
        for step in (
            lambda: rig.audio(RATE // 20, first=True),
            lambda: rig.audio(0, ends=True),
            lambda: rig.context.emit(Flushed("f")),
            lambda: rig.context.emit(Done("complete", REPORT)),
        ):
            step()
            taken = [outputs._outputs.get_nowait() for _ in range(outputs._outputs.qsize())]
            counts.append(sum(len(out.packets) for out in taken if isinstance(out, Audio)))
    assert counts == packets


@pytest.mark.parametrize(
    ("when", "is_idle", "packets"),
    [
        (FlushEncoder.EACH_UTTERANCE, False, 3),
        (FlushEncoder.EACH_PAUSE, False, 2),
        (FlushEncoder.EACH_PAUSE, True, 3),
        (FlushEncoder.AT_END, True, 2),
    ],
)
async def test_flush_of_utterance_that_ended_after_its_audio_sends_all_of_it(
    when: FlushEncoder, is_idle: bool, packets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = OutputQueue(RATE)
    monkeypatch.setattr(ContextDriver, "is_idle", is_idle)
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20), outputs, when)
        rig.audio(RATE // 20, first=True)
        rig.context.emit(Flushed("f"))
        assert isinstance(await outputs.get(), Started)
        count = 0
        while isinstance(output := await outputs.get(), Audio):
            count += len(output.packets)
        assert output == Flushed("f")
        assert count == packets
        rig.context.close()


@pytest.mark.parametrize(
    ("when", "is_idle", "packets"),
    [
        (FlushEncoder.EACH_UTTERANCE, False, 3),
        (FlushEncoder.EACH_PAUSE, False, 2),
        (FlushEncoder.EACH_PAUSE, True, 3),
        (FlushEncoder.EACH_FLUSH, True, 2),
        (FlushEncoder.AT_END, True, 2),
    ],
)
async def test_utterance_that_ended_after_its_audio_is_sent_without_a_flush(
    when: FlushEncoder, is_idle: bool, packets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = OutputQueue(RATE)
    monkeypatch.setattr(ContextDriver, "is_idle", is_idle)
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20), outputs, when)
        rig.audio(RATE // 20, first=True)
        rig.context.driver._execute(UtteranceEnded(0))
        taken = [outputs._outputs.get_nowait() for _ in range(outputs._outputs.qsize())]
        assert sum(len(out.packets) for out in taken if isinstance(out, Audio)) == packets
        rig.context.close()


@pytest.mark.parametrize(("error", "packets"), [(None, 3), (internal_error(), 2)])
async def test_encoder_is_not_flushed_after_an_error(
    error: TalkwireError | None, packets: int
) -> None:
    """Else a file that broke off would look complete."""
    outputs = OutputQueue(RATE)
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, RATE, 20), outputs)
        rig.audio(RATE // 20, first=True)
        rig.context.emit(Done("error" if error else "complete", REPORT, error))
        taken = [outputs._outputs.get_nowait() for _ in range(outputs._outputs.qsize())]
    assert sum(len(out.packets) for out in taken if isinstance(out, Audio)) == packets
    assert taken[-1] == Done("error" if error else "complete", REPORT, error)


async def test_output_queue_room_includes_audio_in_encoder() -> None:
    outputs = OutputQueue(1000)
    assert await outputs.room(999) is None
    waiting = asyncio.create_task(outputs.room(1500))
    await asyncio.sleep(0)
    assert not waiting.done()
    for samples in (400, 200):
        outputs.put(Audio((), samples, Words((), 0.0)))
        assert not waiting.done()
        await outputs.get()
        await asyncio.sleep(0)
    assert await asyncio.wait_for(waiting, 60) == 600


async def test_native_frames_flag_late_audio_once() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, None, 20))
        rig.audio(960, first=True)
        rig.context.emit(SendAudio(tone(960), 960, False, False, False, True))
        await rig.take()  # audio.started
        packed = [await rig.take() for _ in range(4)]
        flags = [AudioHeader.unpack(frame).flags for frame in packed if isinstance(frame, bytes)]
        none = AudioFlags.NONE
        assert flags == [AudioFlags.FIRST, none, AudioFlags.DISCONTINUITY, none]


async def test_native_frames_flag_late_audio_that_encoder_held_back() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, None, 20))
        rig.audio(480, first=True)
        rig.audio(480)
        for late in (True, False, False, False):  # each fills half a message of 20 ms
            rig.context.emit(SendAudio(tone(240), 960, False, False, False, late))
        await rig.take()  # audio.started
        packed = [await rig.take() for _ in range(4)]
        flags = [AudioHeader.unpack(frame).flags for frame in packed if isinstance(frame, bytes)]
        none = AudioFlags.NONE
        assert flags == [AudioFlags.FIRST, none, AudioFlags.DISCONTINUITY, none]


async def test_cancel_revokes_words_with_audio() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE))
        rig.audio(960, first=True)
        await rig.take()  # audio.started
        rig.context.emit(WordsSent((ONE,)))
        assert not rig.outbox.is_empty
        rig.context.cancel()
        assert rig.outbox.is_empty


async def test_cancel_revokes_report_of_flush_with_audio() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE))
        rig.audio(960, first=True)
        rig.context.emit(Flushed("f"))
        await rig.take()  # audio.started
        rig.context.cancel()
        assert rig.outbox.is_empty


async def test_silence_begins_once_all_audio_is_played_and_no_work_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ContextDriver, "is_idle", True)
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE))
        context = rig.context
        assert context.silent_s(time.monotonic() + 100.0) == 0.0  # nothing was said yet
        rig.audio(2 * RATE, first=True)
        dry_at = context._clock.dry_at
        assert context.audio_s == 2.0
        assert context.unplayed_s(dry_at - 0.5) == pytest.approx(0.5)
        assert context.unplayed_s(dry_at + 0.5) == 0.0
        assert context.silent_s(dry_at - 0.5) == 0.0
        assert context.silent_s(dry_at + 3.0) == pytest.approx(3.0)
        context.touch(dry_at + 1.0)
        assert context.silent_s(dry_at + 3.0) == pytest.approx(2.0)
        monkeypatch.setattr(ContextDriver, "is_idle", False)
        assert context.silent_s(dry_at + 3.0) == 0.0
        context.close()

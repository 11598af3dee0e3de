"""Backpressure: a client without room for audio holds back its own context."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise

import pytest

from codec.fake import FakeCodecEngine
from service.audio.factory import make_stream_encoder
from service.contexts.driver import ContextDriver, Room
from service.contexts.options import plan_speech
from service.metrics import Metrics
from service.runtime import Runtime
from service.settings import Settings
from streaming.errors import internal_error
from streaming.events import Cancelled, Done, EndAsked, Failed, Flushed, SendAudio, TextAppended
from streaming.ports import RowDemand, RowGenerator, SpeechRequest
from streaming.protocol import messages as wire
from streaming.window import DecodeWindow
from streaming.word_timing import WordTiming
from talker.fake import FakeTalker
from tests.service.live import SPEC

SIZES = wire.ChunkingOptions(first_chunk_frames=5, max_chunk_frames=5)


class Listener:
    """A sink that records its calls."""

    def __init__(self) -> None:
        self.audio: list[SendAudio] = []
        self.done: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def on_audio(self, audio: SendAudio, words: Sequence[WordTiming]) -> None:
        self.audio.append(audio)

    def on_word_timings(self, timings: Sequence[WordTiming]) -> None:
        raise AssertionError("no words were asked for")

    def on_utterance_ended(self) -> None:
        raise AssertionError("this talker ends with its last audio")

    def on_flushed(self, flushed: Flushed) -> None:
        raise AssertionError("no flush was asked for")

    def on_cancelled(self, cancelled: Cancelled) -> None:
        raise AssertionError("no cancel was asked for")

    def on_done(self, done: Done) -> None:
        self.done.set_result(done)


class NotingCodec(FakeCodecEngine):
    """Records the time left until the deadline of each window, negative if too late."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.left_s: list[float] = []

    async def decode(  # type: ignore[no-untyped-def]
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ):
        self.left_s.append(deadline_s - time.monotonic())
        return await super().decode(window, deadline_s, request_id)


class NotingTalker(FakeTalker):
    """Records with which demand each batch but the last request's first is taken."""

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        self.demands: list[RowDemand | None] = []
        async with aclosing(super().generate(request)) as batches:
            async for batch in batches:
                self.demands.append((yield batch))


async def speak(
    codec: FakeCodecEngine, listener: Listener, room: Room | None, talker: FakeTalker | None = None
) -> Done:
    runtime = Runtime(Settings(), talker or FakeTalker(), codec, Metrics("test", "fake"))
    await runtime.start()
    create = wire.ContextCreate("c", chunking=SIZES)
    encoder = make_stream_encoder("pcm_s16le", SPEC.sample_rate)
    plan = plan_speech(runtime, "native", "c", create, encoder)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        driver = ContextDriver(runtime, plan, listener, tasks, room)
        driver.post(TextAppended("A sentence."))
        driver.post(EndAsked())
        done = await listener.done
    await runtime.stop()
    return done


@pytest.mark.parametrize("reports", [True, False])
async def test_wait_for_client_is_underrun_only_without_reports(reports: bool) -> None:
    codec, listener = NotingCodec(), Listener()
    held_at: list[int] = []

    async def room() -> int | None:
        if len(listener.audio) != 1 or held_at:
            return None
        held_at.append(codec.decoded)
        await asyncio.sleep(3.0 * len(listener.audio[0].samples) / SPEC.sample_rate)
        assert codec.decoded == held_at[0]  # nothing is decoded meanwhile
        return 0 if reports else None

    done = await speak(codec, listener, room)
    assert done.reason == "complete"
    assert held_at
    assert (done.report.underruns == 0) is reports
    left_s = codec.left_s[held_at[0]]
    # By the clock alone the window is two chunks late; by the client's report, less than one.
    assert (left_s > -len(listener.audio[0].samples) / SPEC.sample_rate) is reports
    assert sum(len(audio.samples) for audio in listener.audio) == 22 * SPEC.hop_length


async def test_rows_are_taken_as_session_demands() -> None:
    talker = NotingTalker()
    await speak(FakeCodecEngine(SPEC), Listener(), None, talker)
    assert talker.demands[0] == RowDemand(delay_s=0.0, at_once=1)


async def test_paused_talker_makes_no_more_rows() -> None:
    listener, talker = Listener(), FakeTalker(frames_per_character=280, max_frames=10_000)
    runtime = Runtime(Settings(), talker, FakeCodecEngine(SPEC), Metrics("test", "fake"))
    await runtime.start()
    create = wire.ContextCreate("c", chunking=SIZES, max_lead_ms=1000)
    encoder = make_stream_encoder("pcm_s16le", SPEC.sample_rate)
    plan = plan_speech(runtime, "native", "c", create, encoder)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        before, made = talker.rows_made, -1
        driver = ContextDriver(runtime, plan, listener, tasks)
        driver.post(TextAppended("A sentence."))
        driver.post(EndAsked())
        while not listener.audio or made < talker.rows_made:
            made = talker.rows_made
            for _ in range(1000):
                await asyncio.sleep(0)
        driver.post(Failed(internal_error()))
        await listener.done
    await runtime.stop()
    assert made - before < 1000, "it would have made 3080"


async def test_contexts_that_open_together_begin_in_different_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile others are refused without delay."""
    talker, begun, counts = FakeTalker(), set[str](), [0]
    runtime = Runtime(Settings(), talker, FakeCodecEngine(SPEC), Metrics("test", "fake"))
    await runtime.start()
    monkeypatch.setattr(talker, "check", lambda request: begun.add(request.request_id))
    encoder = make_stream_encoder("pcm_s16le", SPEC.sample_rate)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        listeners = [Listener() for _ in range(4)]
        for number, listener in enumerate(listeners):
            create = wire.ContextCreate(str(number))
            plan = plan_speech(runtime, "native", str(number), create, encoder)
            driver = ContextDriver(runtime, plan, listener, tasks)
            driver.post(TextAppended("A sentence."))
            driver.post(EndAsked())
        while counts[-1] < len(listeners):
            await asyncio.sleep(0)
            counts.append(len(begun))
        await asyncio.gather(*(listener.done for listener in listeners))
    await runtime.stop()
    assert all(after - before <= 1 for before, after in pairwise(counts))

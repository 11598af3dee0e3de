"""Backpressure: a client without room for audio holds back its own context."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.audio.formats import AudioFormat
from service.build import assemble
from service.contexts.driver import ContextDriver, Room
from service.contexts.options import SpeechOptions, plan_speech
from service.engines.contracts import Engines
from service.settings import Settings
from streaming.errors import internal_error
from streaming.events import Done, EndRequested, Failed, OutputCommand, SendAudio, TextAppended
from streaming.ports import RowDemand, RowGenerator, SpeechRequest
from streaming.protocol import messages as wire
from streaming.window import DecodeWindow
from tests.service.live import SPEC

SIZES = wire.ChunkingOptions(first_chunk_frames=5, max_chunk_frames=5)


class Listener:
    """Records a session's outputs."""

    def __init__(self) -> None:
        self.audio: list[SendAudio] = []
        self.done: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def emit(self, command: OutputCommand) -> None:
        match command:
            case SendAudio():
                self.audio.append(command)
            case Done():
                self.done.set_result(command)
            case _:
                raise AssertionError(f"nobody asked for {command}")


class NotingCodec(FakeCodecEngine):
    """Records the time left until the deadline of each window, negative if too late."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.left_s: list[float] = []

    async def decode(self, window: DecodeWindow, deadline_s: float, request_id: str = ""):
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
    codec: FakeCodecEngine,
    listener: Listener,
    room: Room | None,
    talker: FakeTalker | None = None,
    text: str = "A sentence.",
) -> Done:
    runtime = assemble(Settings(), Engines(talker or FakeTalker(), codec))
    await runtime.start()
    options = SpeechOptions(format=AudioFormat("pcm_s16le"), chunking=SIZES)
    plan = plan_speech(runtime, "native", "c", options)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        driver = ContextDriver(runtime, plan, listener.emit, tasks, room)
        driver.post(TextAppended(text))
        driver.post(EndRequested())
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


async def test_each_part_of_a_pause_waits_for_the_client() -> None:
    """Otherwise a small body of pauses would become audio without bounds in the server's memory."""
    listener, waits = Listener(), list[int]()

    async def room() -> int | None:
        waits.append(len(listener.audio))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(listener.audio) == waits[-1]
        return None

    text = "[pause:2s]A sentence.[pause:2s]"
    done = await speak(FakeCodecEngine(SPEC), listener, room, text=text)
    assert done.reason == "complete"
    assert waits == list(range(len(listener.audio)))
    assert sum(len(audio.samples) for audio in listener.audio) > 4 * SPEC.sample_rate


async def test_rows_are_taken_as_session_demands() -> None:
    talker = NotingTalker()
    await speak(FakeCodecEngine(SPEC), Listener(), None, talker)
    assert talker.demands[0] == RowDemand(delay_s=0.0, at_once=1)


async def test_paused_talker_makes_no_more_rows() -> None:
    listener, spec = Listener(), replace(FAKE_SPEC, max_frames=10_000)
    talker = FakeTalker(frames_per_character=280, spec=spec)
    runtime = assemble(Settings(), Engines(talker, FakeCodecEngine(SPEC)))
    await runtime.start()
    options = SpeechOptions(format=AudioFormat("pcm_s16le"), chunking=SIZES, max_lead_ms=1000)
    plan = plan_speech(runtime, "native", "c", options)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        before, made = talker.rows_made, -1
        driver = ContextDriver(runtime, plan, listener.emit, tasks)
        driver.post(TextAppended("A sentence."))
        driver.post(EndRequested())
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
    runtime = assemble(Settings(), Engines(talker, FakeCodecEngine(SPEC)))
    await runtime.start()
    monkeypatch.setattr(talker, "check", lambda request: begun.add(request.request_id))
    options = SpeechOptions(format=AudioFormat("pcm_s16le"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        listeners = [Listener() for _ in range(4)]
        for number, listener in enumerate(listeners):
            plan = plan_speech(runtime, "native", str(number), options)
            driver = ContextDriver(runtime, plan, listener.emit, tasks)
            driver.post(TextAppended("A sentence."))
            driver.post(EndRequested())
        while counts[-1] < len(listeners):
            await asyncio.sleep(0)
            counts.append(len(begun))
        await asyncio.gather(*(listener.done for listener in listeners))
    await runtime.stop()
    assert all(after - before <= 1 for before, after in pairwise(counts))

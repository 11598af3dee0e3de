from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from service.audio.encoder import Packet
from service.audio.pcm import PcmEncoder, pack_f32
from service.audio.pump import EncoderPump
from streaming.errors import ErrorCode, TalkwireError
from streaming.spec import Samples


class StalledEncoder(PcmEncoder):
    """A PCM encoder that waits for a permit at each call and records the threads it runs in."""

    def __init__(self, *, inline: bool = False) -> None:
        super().__init__(pack_f32, 24_000)
        self.inline = inline
        self.gate, self.entered = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def encode(self, samples: Samples) -> list[Packet]:
        self.threads.add(threading.get_ident())
        self.entered.release()
        if not self.inline:
            assert self.gate.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        return super().encode(samples)

    def flush(self) -> list[Packet]:
        return [*super().flush(), Packet(b"end", 0)]


class Desk:
    """A pump, and its output in order."""

    def __init__(self, tasks: asyncio.TaskGroup, encoder: StalledEncoder, limit: int = 100) -> None:
        self.encoder, self.came = encoder, list[str]()
        self.errors: list[TalkwireError] = []
        self.pump = EncoderPump(encoder, tasks, self.errors.append, limit)

    def audio(self, value: int, *, samples: int = 1, flush: bool = False) -> None:
        data = np.full(samples, value, np.float32)
        self.pump.encode(data, self._note(f"audio {value}"), flush=flush)

    def _note(self, name: str) -> Callable[[list[Packet]], None]:
        return lambda packets: self.came.append(name + " end" * (packets[-1].data == b"end"))

    def say(self, text: str) -> None:
        self.pump.after(lambda: self.came.append(text))


async def test_pump_runs_inline_encoder_at_once_in_same_thread() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder(inline=True))
        desk.audio(1)
        desk.audio(2, flush=True)
        desk.say("done")
        assert desk.came == ["audio 1", "audio 2 end", "done"]
        assert desk.encoder.threads == {threading.get_ident()}


async def test_pump_keeps_messages_behind_earlier_audio() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder())
        desk.say("first")
        assert desk.came == ["first"]
        desk.audio(1)
        desk.say("middle")
        desk.audio(2, flush=True)
        desk.say("last")
        await asyncio.sleep(0)
        assert desk.came == ["first"]
        desk.encoder.gate.release(2)
    assert desk.came == ["first", "audio 1", "middle", "audio 2 end", "last"]
    assert threading.get_ident() not in desk.encoder.threads


async def test_pump_drop_discards_waiting_and_running_jobs() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder())
        for value in range(3):
            desk.audio(value)
            desk.say("message")
        await asyncio.to_thread(desk.encoder.entered.acquire)  # the first job is in the thread
        desk.pump.drop()
        desk.audio(4)
        desk.encoder.gate.release(3)
    assert desk.came == []
    assert desk.errors == []
    assert not desk.encoder.entered.acquire(blocking=False), "it encoded for nobody"


async def test_pump_room_waits_until_half_of_limit_is_free() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder(), limit=10)
        await desk.pump.room()
        for value in range(4):
            desk.audio(value, samples=2)
        room = tasks.create_task(desk.pump.room())
        desk.encoder.gate.release()
        while len(desk.came) < 1:
            await asyncio.sleep(0.01)
        assert not room.done()
        desk.encoder.gate.release()
        await room
        assert len(desk.came) == 2
        desk.encoder.gate.release(2)


async def test_pump_over_limit_fails_once_and_still_passes_messages() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder(), limit=10)
        desk.audio(1, samples=10)
        desk.say("flushed")
        desk.audio(2)
        desk.audio(3)
        desk.say("done")
        assert desk.errors == [], "told from within a call"
        desk.encoder.gate.release(5)
    assert desk.came == ["flushed", "done"]
    assert [error.code for error in desk.errors] == [ErrorCode.OVERLOADED]


async def test_pump_encodes_one_chunk_longer_than_limit() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder(), limit=10)
        desk.audio(1, samples=4)
        desk.audio(2, samples=25)
        desk.encoder.gate.release(2)
    assert desk.came == ["audio 1", "audio 2"]
    assert desk.errors == []


async def test_pump_limit_does_not_count_encoded_audio() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder(), limit=10)
        desk.encoder.gate.release(5)
        for value in range(5):
            desk.audio(value, samples=10)
            while len(desk.came) <= value:
                await asyncio.sleep(0)
    assert desk.errors == []


async def test_pump_ends_audio_after_encoder_error() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder())
        desk.encoder.error = RuntimeError("of the library's")
        desk.audio(1)
        desk.audio(2)
        desk.say("done")
        desk.encoder.gate.release(2)
    assert desk.came == ["done"]
    assert [error.code for error in desk.errors] == [ErrorCode.INTERNAL]
    assert "library" not in desk.errors[0].message
    assert desk.pump.failure is desk.errors[0]


async def test_traceback_of_encoder_error_names_request(caplog: pytest.LogCaptureFixture) -> None:
    encoder = StalledEncoder()
    encoder.error = RuntimeError("of the library's")
    encoder.gate.release()
    errors: list[TalkwireError] = []
    async with asyncio.TaskGroup() as tasks:
        pump = EncoderPump(encoder, tasks, errors.append, request_id="r1")
        pump.encode(np.zeros(1, np.float32), lambda packets: None, flush=True)
    assert errors[0].code is ErrorCode.INTERNAL
    (record,) = [one for one in caplog.records if one.exc_info]
    assert vars(record)["request_id"] == "r1"


async def test_pump_reports_no_failure_after_drop() -> None:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, StalledEncoder())
        desk.encoder.error = RuntimeError()
        desk.audio(1)
        await asyncio.to_thread(desk.encoder.entered.acquire)
        desk.pump.drop()
        desk.encoder.gate.release()
    assert desk.errors == []

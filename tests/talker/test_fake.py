"""``FakeTalker``, and ``RowStream``, the buffer between the real talker and its consumer."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import Arrival, Sampling, SpeechRequest, TalkerEngine, TalkerRows
from talker.engine import TalkerProcessEngine
from talker.messages import NewRows
from talker.pending_requests import RowStream


def as_ports(engine: TalkerProcessEngine, fake: FakeTalker) -> tuple[TalkerEngine, TalkerEngine]:
    """Let the type checker verify that both satisfy the gateway's protocol."""
    return engine, fake


async def collect(fake: FakeTalker, request: SpeechRequest) -> list[TalkerRows]:
    return [piece async for piece in fake.generate(request)]


async def test_rows_are_frames_in_delay_pattern() -> None:
    fake = FakeTalker()
    request = SpeechRequest("r", "hello", sampling=Sampling(seed=3))
    frames, rows = fake.frames_of(request), fake.rows_of(request)
    pieces = await collect(fake, request)
    assert np.array_equal(np.concatenate([p.rows for p in pieces]), rows)
    for book in range(8):
        assert np.array_equal(rows[book : book + len(frames), book], frames[:, book])
        assert (rows[:book, book] == 1024).all()
        assert (rows[book + len(frames) :, book] == 1025).all()
    assert [p.finish for p in pieces] == [None] * (len(pieces) - 1) + ["stop"]


async def test_text_and_seed_determine_rows() -> None:
    fake = FakeTalker()
    made = {
        fake.rows_of(SpeechRequest("r", text, sampling=Sampling(seed=seed))).tobytes()
        for text in ("hello", "world")
        for seed in (1, 2, 1)
    }
    assert len(made) == 4


async def test_max_frames_truncates_rows() -> None:
    pieces = await collect(FakeTalker(), SpeechRequest("r", "hello", max_frames=4))
    assert sum(len(p.rows) for p in pieces) == 4
    assert pieces[-1].finish == "length"


async def test_fake_talker_gives_late_rows_together() -> None:
    fake = FakeTalker(row_s=0.001)
    pieces = []
    async for piece in fake.generate(SpeechRequest("r", "hello world")):
        pieces.append(piece)
        await asyncio.sleep(0.01)
    rows = fake.rows_of(SpeechRequest("r", "hello world"))
    assert np.array_equal(np.concatenate([p.rows for p in pieces]), rows)
    assert len(pieces) < len(rows)


async def test_fake_talker_fails_on_demand_and_counts_requests() -> None:
    fake = FakeTalker()
    stream = fake.generate(SpeechRequest("r", "hello"))
    await anext(stream)
    assert fake.outstanding == 1
    await stream.aclose()
    assert fake.outstanding == 0
    with pytest.raises(BackendError):
        await collect(fake, SpeechRequest("r", "now !fail"))
    assert fake.outstanding == 0


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (SpeechRequest("r", " ... "), ErrorCode.INVALID_TEXT),
        (SpeechRequest("r", "hello", voice="nobody"), ErrorCode.UNKNOWN_VOICE),
    ],
)
async def test_fake_talker_refuses_unspeakable_text_and_unknown_voice(
    request_: SpeechRequest, code: ErrorCode
) -> None:
    with pytest.raises(RequestError) as error:
        await collect(FakeTalker(), request_)
    assert error.value.code is code


def put(stream: RowStream, *codes: int, finish: Literal["", "stop", "length"] = "") -> None:
    """Add rows of two equal codes."""
    rows = np.repeat(np.array(codes, np.int16), 2).tobytes()
    stream.put(NewRows(1, rows, finish), time.monotonic())


async def test_row_stream_joins_waiting_rows_with_end() -> None:
    stream = RowStream(2, 4)
    put(stream, 1)
    put(stream, 2, 3, finish="length")
    put(stream, 9)  # ignored after the end
    piece = await stream.next()
    assert piece.rows.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert piece.finish == "length"
    assert stream.is_over


async def test_row_stream_marks_rows_put_together_as_evenly_made() -> None:
    stream = RowStream(2, 64)
    put(stream, 1)
    put(stream, 2, 3, 4, 5, finish="stop")
    came = (await stream.next()).came
    assert [(arrival.rows, arrival.evenly) for arrival in came] == [(1, False), (4, True)]


async def test_row_stream_yields_rows_before_failure() -> None:
    stream = RowStream(2, 4)
    put(stream, 1)
    stream.fail(BackendError(ErrorCode.ENGINE_FAILED, "gone"))
    assert (await stream.next()).rows.tolist() == [[1, 1]]
    for _ in range(2):
        with pytest.raises(BackendError):
            await stream.next()


async def test_row_stream_wakes_waiting_consumer() -> None:
    stream = RowStream(2, 4)
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    put(stream, 5, finish="stop")
    assert (await waiting).finish == "stop"


async def test_row_stream_marks_pause_in_arrivals() -> None:
    stream = RowStream(2, 1)
    put(stream, 1)
    put(stream, 2)
    assert stream.is_full
    stream.resume()
    before = await stream.next()
    put(stream, 3, finish="stop")
    came = before.came + (await stream.next()).came
    assert [arrival.rows for arrival in came] == [1, 1, 0, 1]
    assert [arrival.at for arrival in came] == sorted(arrival.at for arrival in came)


async def test_fake_talker_marks_pauses_in_arrivals() -> None:
    fake = FakeTalker(row_s=0.001, hold_rows=2)
    came: list[Arrival] = []
    async for piece in fake.generate(SpeechRequest("r", "hello world")):
        came += piece.came
        await asyncio.sleep(0.01)  # long enough for a pause on any machine
    counts = [arrival.rows for arrival in came]
    assert sum(counts) == len(fake.rows_of(SpeechRequest("r", "hello world")))
    assert 0 in counts
    assert [arrival.at for arrival in came] == sorted(arrival.at for arrival in came)

"""``PendingRequests``: messages to a talker process about its requests, and its answers."""

from __future__ import annotations

import asyncio
import time
from typing import Literal, get_args

import numpy as np
import pytest
from msgspec.structs import replace

from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import RowDemand, RowGenerator
from talker.conversation import Gone
from talker.messages import (
    Abort,
    Failed,
    FailureReason,
    FromGateway,
    Generate,
    NewRows,
    Pause,
    Resume,
    Step,
    StreamInterval,
)
from talker.pending_requests import RETRY_AFTER_MS, PendingRequests

Finish = Literal["", "stop", "length"]
BOOKS, HOLD, MOST = 2, 3, 2
DUE_S = 12.5


def no_engine() -> BackendError:
    return BackendError(ErrorCode.ENGINE_RESTARTING, "down")


class Process:
    """A fake talker process that records messages and makes rows on demand."""

    def __init__(self) -> None:
        self.got: list[FromGateway] = []
        self.is_down = False
        self.flight = PendingRequests(self.send, MOST, HOLD)

    def send(self, message: FromGateway) -> None:
        if self.is_down:
            raise no_engine()
        self.got.append(message)

    def make(
        self,
        handle: int,
        count: int,
        finish: Finish = "",
        spoken: bytes = b"",
    ) -> None:
        new = NewRows(handle, bytes(2 * BOOKS * count), finish, spoken)
        self.flight.on_message(Step(1, [new]))

    def die(self) -> None:
        self.is_down = True
        self.flight.on_down(no_engine)


@pytest.fixture
def process() -> Process:
    return Process()


def asking(handle: int) -> Generate:
    return Generate(handle, (1, 2), 50, 1.0, 0.9, 5, 3, deadline_s=DUE_S)


def speak(process: Process, handle: int = 1) -> RowGenerator:
    message = replace(asking(handle), deadline_s=0.0)
    return process.flight.speak(message, BOOKS, f"r-{handle}", deadline=lambda: DUE_S)


async def begin(process: Process, handle: int = 1) -> RowGenerator:
    """A stream whose first row has been taken."""
    stream = speak(process, handle)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    process.make(handle, 1)
    assert len((await first).rows) == 1
    return stream


async def test_closed_stream_is_aborted_but_finished_stream_is_not(
    process: Process,
) -> None:
    ending, closed = await begin(process, 1), await begin(process, 2)
    assert len(process.flight) == 2
    process.make(1, 2, "stop")
    assert (await anext(ending)).finish == "stop"
    await ending.aclose()
    await closed.aclose()
    assert process.got == [asking(1), asking(2), Abort(2)]
    assert len(process.flight) == 0
    process.make(2, 1)  # too late: the stream is closed


async def test_request_beyond_limit_is_refused_until_slot_is_free(process: Process) -> None:
    streams = [await begin(process, handle) for handle in (1, 2)]
    with pytest.raises(CapacityError) as error:
        await anext(speak(process, 3))
    assert error.value.retry_after_ms == RETRY_AFTER_MS
    assert process.got == [asking(1), asking(2)]
    await streams[0].aclose()
    await (await begin(process, 3)).aclose()
    await streams[1].aclose()


async def test_stream_with_waiting_rows_is_paused_until_consumed(
    process: Process,
) -> None:
    stream = await begin(process)
    for _ in range(2):
        said = len(process.got)
        process.make(1, 1)
        process.make(1, HOLD - 1)
        assert len(process.got) == said  # up to HOLD rows may wait
        process.make(1, 1)
        process.make(1, 1)  # already under way
        assert process.got[said:] == [Pause(1)]
        piece = await anext(stream)
        assert len(piece.rows) == HOLD + 2
        assert process.got[said:] == [Pause(1), Resume(1, DUE_S)]
        assert [arrival.rows for arrival in piece.came][-1] == 0  # held back until now
    await stream.aclose()


async def test_request_without_deadline_yields_only_for_a_time(process: Process) -> None:
    """Requests of later deadlines, such as those that come after a minute, wait for it."""
    before_s = time.monotonic()
    stream = process.flight.speak(asking(1), BOOKS)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    (message,) = process.got
    assert isinstance(message, Generate)
    assert before_s < message.deadline_s < before_s + 60
    process.make(1, 1, "stop")
    await waiting
    await stream.aclose()


async def test_final_rows_cause_no_pause(process: Process) -> None:
    stream = await begin(process)
    process.make(1, HOLD + 5, "length")
    assert (await anext(stream)).finish == "length"
    await stream.aclose()
    assert process.got == [asking(1)]


@pytest.mark.parametrize("count", [1, HOLD + 1])
async def test_rows_before_process_death_are_delivered_even_if_paused(
    process: Process, count: int
) -> None:
    stream = await begin(process)
    process.make(1, count)
    process.die()
    assert len((await anext(stream)).rows) == count
    with pytest.raises(BackendError) as error:
        await anext(stream)
    assert error.value.code is ErrorCode.ENGINE_RESTARTING
    assert len(process.flight) == 0


async def test_paused_rows_are_delivered_before_process_death_is_reported(
    process: Process,
) -> None:
    stream = await begin(process)
    process.make(1, HOLD + 1)
    process.is_down = True  # its connection closes before ``on_down`` is called
    assert len((await anext(stream)).rows) == HOLD + 1
    process.die()
    with pytest.raises(BackendError):
        await anext(stream)


async def test_process_death_fails_all_streams(process: Process) -> None:
    streams = [await begin(process, handle) for handle in (1, 2)]
    process.die()
    for stream in streams:
        with pytest.raises(BackendError):
            await anext(stream)
    with pytest.raises(BackendError):
        await anext(speak(process, 3))
    assert len(process.flight) == 0


async def test_waiting_consumer_is_woken_by_failure(process: Process) -> None:
    stream = await begin(process)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    process.flight.on_message(Failed(1, "broken", 0))
    process.die()  # the stream has already failed with another error
    with pytest.raises(BackendError) as error:
        await asyncio.wait_for(waiting, 60)
    assert error.value.code is ErrorCode.ENGINE_FAILED


async def test_failed_control_message_fails_no_stream(process: Process) -> None:
    """A message that cannot be sent must not fail a stream whose rows still arrive."""
    stream = speak(process)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    process.is_down = True
    process.make(1, 1)
    await first
    process.make(1, 1)
    await stream.asend(RowDemand(at_once=8))
    process.make(1, HOLD + 1)
    await stream.aclose()
    assert process.got == [asking(1)]


async def test_stream_interval_is_sent_only_when_changed(process: Process) -> None:
    stream = await begin(process)
    for at_once in (1, 4, 4, 8, 1):
        process.make(1, 1)
        await stream.asend(RowDemand(at_once=at_once))
    assert process.got[1:] == [StreamInterval(1, 4), StreamInterval(1, 8), StreamInterval(1, 1)]
    process.make(1, 1)
    await anext(stream)  # unchanged
    process.make(1, 1, "stop")
    await stream.asend(RowDemand(at_once=4))  # no rows follow
    await stream.aclose()
    assert process.got[-1] == StreamInterval(1, 1)


@pytest.mark.parametrize("finish", ["", "stop"])
async def test_stream_waits_for_demand_delay_and_returns_all_rows(
    process: Process, monkeypatch: pytest.MonkeyPatch, finish: Finish
) -> None:
    stream, delays, is_over = await begin(process), list[float](), asyncio.Event()
    sleep = asyncio.sleep

    async def wait(delay_s: float) -> None:
        delays.append(delay_s)
        await is_over.wait()

    monkeypatch.setattr("talker.pending_requests.asyncio.sleep", wait)
    taking = asyncio.ensure_future(stream.asend(RowDemand(delay_s=0.2, at_once=4)))
    await sleep(0)
    assert process.got[-1] == StreamInterval(1, 4), "told before the delay, not after it"
    for last in ("", "", "", finish):
        process.make(1, 1, last)
        await sleep(0)
        assert not taking.done()
    assert delays == [0.2]
    is_over.set()
    rows = await asyncio.wait_for(taking, 60)
    assert (len(rows.rows), len(rows.came), rows.finish) == (4, 4, finish or None)
    await stream.aclose()


async def test_failed_request_gets_error_of_reason(process: Process) -> None:
    one, other = await begin(process, 1), await begin(process, 2)
    process.flight.on_message(Failed(1, "gone", 1))
    with pytest.raises(Gone):
        await anext(one)
    process.flight.on_message(Failed(2, "lost", 0))
    with pytest.raises(BackendError) as error:
        await anext(other)
    assert error.value.code is ErrorCode.ENGINE_FAILED
    assert process.got == [asking(1), asking(2)]


async def test_failures_of_model_are_told_apart_in_error_and_count(process: Process) -> None:
    told = {}
    for handle, reason in enumerate(get_args(FailureReason), 1):
        stream = await begin(process, handle)
        process.flight.on_message(Failed(handle, reason, 0))
        with pytest.raises((BackendError, Gone)) as error:
            await anext(stream)
        told[reason] = getattr(error.value, "message", "")
    assert "not finite" in told["logits"]
    assert "codebook" in told["code"]
    assert len({told[reason] for reason in ("refused", "lost", "broken")}) == 1
    assert process.flight.failures == {reason: 1 for reason in told if reason != "gone"}


async def test_log_joins_failed_request_of_process_to_client_request_id(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    streams = [await begin(process, handle) for handle in (1, 2)]
    process.flight.on_message(Failed(1, "gone", 1))  # not a failure: it is sent again
    process.flight.on_message(Failed(2, "refused", 0))
    process.flight.on_message(Failed(9, "broken", 0))  # nobody waits for it
    told = [vars(record) for record in caplog.records]
    assert [(one["handle"], one["reason"], one["request_id"]) for one in told] == [
        (2, "refused", "r-2")
    ]
    for stream in streams:
        await stream.aclose()


async def test_last_step_follows_messages_and_resets_on_ready(process: Process) -> None:
    flight = process.flight
    flight.on_message(Step(4, [], 7, 30))
    flight.on_message(Failed(9, "broken", 3))
    assert flight.last_step == Step(3, [], 7, 30)
    process.die()
    flight.on_ready()
    assert flight.last_step == Step(0, [])


async def test_rows_carry_text_places(process: Process) -> None:
    stream = await begin(process)
    process.make(1, 1)
    assert (await anext(stream)).spoken is None
    for places in ([1.0, 1.5], [4.0]):
        spoken = np.array(places, np.float32)
        process.make(1, len(places), spoken=spoken.tobytes())
        heard = (await anext(stream)).spoken
        assert heard is not None
        assert heard.tolist() == places
    await stream.aclose()

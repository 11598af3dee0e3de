"""What the gateway says to a talker process about its requests, and makes of the answers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import RowDemand, RowGenerator
from talker.conversation import Gone
from talker.messages import (
    Abort,
    Failed,
    FromGateway,
    Generate,
    NewRows,
    Pause,
    Resume,
    Step,
    StreamInterval,
)
from talker.pending_requests import RETRY_AFTER_MS, PendingRequests

BOOKS, HOLD, MOST = 2, 3, 2


def no_engine() -> BackendError:
    return BackendError(ErrorCode.ENGINE_RESTARTING, "down")


class Process:
    """Keeps what it is sent, and speaks when it is told to."""

    def __init__(self) -> None:
        self.got: list[FromGateway] = []
        self.is_down = False
        self.flight = PendingRequests(self.send, MOST, HOLD)

    def send(self, message: FromGateway) -> None:
        if self.is_down:
            raise no_engine()
        self.got.append(message)

    def make(self, handle: int, count: int, finish: str = "", spoken: bytes = b"") -> None:
        new = NewRows(handle, bytes(2 * BOOKS * count), finish, spoken)
        self.flight.on_message(Step(1, [new]))

    def die(self) -> None:
        self.is_down = True
        self.flight.on_down(no_engine)


@pytest.fixture
def process() -> Process:
    return Process()


def asking(handle: int) -> Generate:
    return Generate(handle, (1, 2), 50, 1.0, 0.9, 5, 3)


def speak(process: Process, handle: int = 1) -> RowGenerator:
    return process.flight.speak(asking(handle), BOOKS)


async def begin(process: Process, handle: int = 1) -> RowGenerator:
    """A stream whose first row has been taken."""
    stream = speak(process, handle)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    process.make(handle, 1)
    assert len((await first).rows) == 1
    return stream


async def test_a_stream_that_ends_says_no_more_and_one_that_is_closed_is_aborted(
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
    process.make(2, 1)  # too late: nobody is left to hear it


async def test_beyond_the_bound_nothing_is_sent_and_a_freed_slot_is_used(process: Process) -> None:
    streams = [await begin(process, handle) for handle in (1, 2)]
    with pytest.raises(CapacityError) as error:
        await anext(speak(process, 3))
    assert error.value.retry_after_ms == RETRY_AFTER_MS
    assert process.got == [asking(1), asking(2)]
    await streams[0].aclose()
    await (await begin(process, 3)).aclose()
    await streams[1].aclose()


async def test_what_waits_too_long_is_paused_once_and_resumed_by_its_consumer(
    process: Process,
) -> None:
    stream = await begin(process)
    for _ in range(2):
        said = len(process.got)
        process.make(1, 1)
        process.make(1, HOLD - 1)
        assert len(process.got) == said  # so many may wait
        process.make(1, 1)
        process.make(1, 1)  # it was under way
        assert process.got[said:] == [Pause(1)]
        piece = await anext(stream)
        assert len(piece.rows) == HOLD + 2
        assert process.got[said:] == [Pause(1), Resume(1)]
        assert [arrival.rows for arrival in piece.came][-1] == 0  # it was held back until now
    await stream.aclose()


async def test_rows_that_come_with_the_end_pause_nothing(process: Process) -> None:
    stream = await begin(process)
    process.make(1, HOLD + 5, "length")
    assert (await anext(stream)).finish == "length"
    await stream.aclose()
    assert process.got == [asking(1)]


@pytest.mark.parametrize("count", [1, HOLD + 1])
async def test_rows_that_came_before_the_process_died_are_heard_though_paused(
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


async def test_all_streams_hear_of_the_death(process: Process) -> None:
    streams = [await begin(process, handle) for handle in (1, 2)]
    process.die()
    for stream in streams:
        with pytest.raises(BackendError):
            await anext(stream)
    with pytest.raises(BackendError):
        await anext(speak(process, 3))
    assert len(process.flight) == 0


async def test_who_waits_for_rows_is_woken_by_a_failure(process: Process) -> None:
    stream = await begin(process)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    process.flight.on_message(Failed(1, "broken", 0))
    process.die()  # it has been told something else
    with pytest.raises(BackendError) as error:
        await asyncio.wait_for(waiting, 60)
    assert error.value.code is ErrorCode.ENGINE_FAILED


async def test_the_link_may_break_before_that_is_known(process: Process) -> None:
    """Nothing that is sent on the side fails a stream whose rows are still to be had."""
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


async def test_rows_together_are_asked_for_when_the_number_changes(process: Process) -> None:
    stream = await begin(process)
    for at_once in (1, 4, 4, 8, 1):
        process.make(1, 1)
        await stream.asend(RowDemand(at_once=at_once))
    assert process.got[1:] == [StreamInterval(1, 4), StreamInterval(1, 8), StreamInterval(1, 1)]
    process.make(1, 1)
    await anext(stream)  # as before
    process.make(1, 1, "stop")
    await stream.asend(RowDemand(at_once=4))  # there are no later rows
    await stream.aclose()
    assert process.got[-1] == StreamInterval(1, 1)


async def test_stream_waits_as_long_as_its_consumer_wants_and_gives_all_that_came(
    process: Process,
) -> None:
    stream = await begin(process)
    taking = asyncio.ensure_future(stream.asend(RowDemand(delay_s=0.2, at_once=4)))
    await asyncio.sleep(0)
    assert process.got[-1] == StreamInterval(1, 4), "told before the delay, not after it"
    for _ in range(3):
        process.make(1, 1)
        await asyncio.sleep(0)
        assert not taking.done()
    process.make(1, 1, "stop")
    rows = await asyncio.wait_for(taking, 60)
    assert (len(rows.rows), len(rows.came), rows.finish) == (4, 4, "stop")


async def test_a_request_that_failed_alone_is_told_why(process: Process) -> None:
    one, other = await begin(process, 1), await begin(process, 2)
    process.flight.on_message(Failed(1, "gone", 1))
    with pytest.raises(Gone):
        await anext(one)
    process.flight.on_message(Failed(2, "lost", 0))
    with pytest.raises(BackendError) as error:
        await anext(other)
    assert error.value.code is ErrorCode.ENGINE_FAILED
    assert process.got == [asking(1), asking(2)]


async def test_what_the_engine_works_on_is_what_it_said_last(process: Process) -> None:
    flight = process.flight
    flight.on_message(Step(4, [], 7, 30))
    flight.on_message(Failed(9, "broken", 3))
    assert flight.last_step == Step(3, [], 7, 30)
    process.die()
    flight.on_ready()
    assert flight.last_step == Step(0, [])


async def test_where_rows_are_in_the_text_comes_with_them(process: Process) -> None:
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

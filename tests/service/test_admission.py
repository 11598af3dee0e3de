from __future__ import annotations

import pytest

from service.admission import Admission
from streaming.capacity import Capacity, CapacitySettings
from streaming.errors import CapacityError, ErrorCode
from talker.fake import FakeTalker
from tests.service.live import client, gateway


def test_places_are_counted_and_the_hint_follows_how_long_contexts_last() -> None:
    admission = Admission(2)
    admission.enter()
    admission.enter()
    with pytest.raises(CapacityError) as caught:
        admission.enter()
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retryable
    first_hint = caught.value.retry_after_ms
    admission.leave(60.0)
    admission.enter()
    with pytest.raises(CapacityError) as caught:
        admission.enter()
    assert first_hint is not None
    assert caught.value.retry_after_ms is not None
    assert caught.value.retry_after_ms > first_hint


def test_leaving_more_often_than_entering_is_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError):
        Admission(1).leave(1.0)


def test_the_measured_capacity_holds_under_the_ceiling() -> None:
    admission, capacity = Admission(6), Capacity(CapacitySettings(0.04, 6))
    admission.measured = capacity
    assert admission.capacity == 6, "nothing is known yet"
    capacity.codec.observe(100, 100 * 0.0068, 0.0)  # nearly six streams, four with room to spare
    assert admission.capacity == 4
    for _ in range(4):
        admission.enter()
    with pytest.raises(CapacityError) as caught:
        admission.enter()
    assert caught.value.code is ErrorCode.OVERLOADED
    admission.ceiling = 2
    assert admission.capacity == 2


def test_fast_speech_counts_for_as_much_as_it_takes() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(100, 100 * 0.0068, 0.0)
    admission.enter(2.0)
    admission.enter(2.0)
    with pytest.raises(CapacityError):
        admission.enter(2.0)
    admission.leave(0.0, 2.0)
    admission.leave(0.0, 2.0)
    assert admission.active == 0
    for _ in range(4):
        admission.enter(0.5)  # slow speech is not made more slowly


def test_the_first_is_always_admitted() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(10, 10.0, 0.0)
    admission.enter(4.0)
    with pytest.raises(CapacityError):
        admission.enter()


async def test_a_service_admits_what_its_talker_was_measured_to_carry() -> None:
    # A row takes 8 ms alone, and 40 ms, which is real time, where nine streams run.
    talker = FakeTalker(row_s=0.008, stream_s=0.004, frames_per_character=4, capacity=64)
    async with gateway(talker, admission="measured") as server, client(server.url) as talk:
        admission = server.runtime.admission
        assert 1 <= admission.capacity <= 9
        refused = None
        for number in range(8):
            await talk.send("context.create", context_id=f"c{number}")
            await talk.send("text.append", context_id=f"c{number}", text=80 * "long " + ". ")
        talks = server.url  # another socket: one may hold eight contexts at most
        async with client(talks) as other:
            for number in range(8):
                await other.send("context.create", context_id=f"d{number}")
            for _ in range(8):
                answer = await other.next()
                if isinstance(answer, dict) and answer["type"] == "error":
                    refused = answer
                    break
        assert refused is not None
        assert refused["code"] == "overloaded"
        assert refused["retryable"]
        assert refused["retry_after_ms"] >= 50
        assert 1 <= admission.active <= 9
    await server.until_free()

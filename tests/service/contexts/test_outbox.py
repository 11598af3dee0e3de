from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contexts.outbox import Item, Outbox
from streaming.errors import ErrorCode, TalkwireError
from streaming.protocol.binary import HEADER_BYTES
from tests.service.live import client, gateway


async def test_outbox_keeps_order_and_reports_end() -> None:
    box = Outbox(100)
    waiting = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put(Item("a"))
    box.put(Item(b"bb", 1, 5))
    assert await waiting == Item("a")
    box.close(Item("last"))
    box.put(Item("too late"))
    assert [await box.get() for _ in range(3)] == [Item(b"bb", 1, 5), Item("last"), None]
    assert box.queued_bytes == 0


async def test_drop_audio_removes_audio_of_one_context() -> None:
    box = Outbox(100)
    for item in (Item("x"), Item(b"11", 1, 3), Item(b"22", 2, 4), Item(b"11", 1, 5)):
        box.put(item)
    assert box.drop_audio(1) == 8
    assert box.queued_bytes == 3
    assert [await box.get(), await box.get()] == [Item("x"), Item(b"22", 2, 4)]
    assert box.drop_audio(1) == 0


async def test_drop_audio_removes_audio_of_all_contexts() -> None:
    box = Outbox(100)
    for item in (Item(b"00", 0, 2), Item("x"), Item(b"11", 1, 3)):
        box.put(item)
    assert box.drop_audio() == 5
    assert box.queued_bytes == 1
    assert await box.get() == Item("x")


async def test_drop_audio_removes_audio_of_all_contexts_with_same_id() -> None:
    box = Outbox(100)
    for handle, context_id in enumerate(("a", "b", "a")):
        box.put(Item(b"11", handle, 3, context_id=context_id))
    assert box.drop_audio(context_id="a") == 6
    assert box.queued_bytes == 2
    assert await box.get() == Item(b"11", 1, 3, context_id="b")


async def test_outbox_limit_does_not_count_taken_items() -> None:
    box = Outbox(10)
    for number in range(5):
        box.put(Item(b"x" * 10, 1, number))
        assert not box.overflowed.is_set()
        assert await box.get() == Item(b"x" * 10, 1, number)


async def test_outbox_over_limit_drops_all_items_and_sets_overflowed() -> None:
    box = Outbox(10)
    box.put(Item(b"x" * 10, 1, 1))
    assert not box.overflowed.is_set()
    box.put(Item("y"))
    assert box.overflowed.is_set()
    assert box.queued_bytes == 0
    box.put(Item("z"))
    box.close(Item("why"))
    assert [await box.get(), await box.get()] == [Item("why"), None]


@given(st.integers(0, 20_000), st.integers(1, 20_000))
def test_audio_that_fits_does_not_overflow_outbox(queued: int, size: int) -> None:
    """Other audio is refused: for now, or for ever if even an empty outbox would not hold it."""
    box = Outbox(20_000)
    box.put(Item(bytes(queued)))
    refusal: ErrorCode | None = None
    try:
        box.require_fit(size)
    except TalkwireError as error:
        refusal = error.code
    if refusal is ErrorCode.OVERLOADED:
        assert queued + size > 17_000, "there is room"
        Outbox(20_000).require_fit(size)
    elif refusal is ErrorCode.TEXT_TOO_LONG:
        assert size > 15_000
    else:
        box.put(Item(bytes(size), 1, size))
        box.put(Item("the end of its context"))
        assert (refusal, box.overflowed.is_set()) == (None, False)


async def test_whole_audio_leaves_room_for_messages_after_it() -> None:
    """Without it, the end of the context would close its client as slow, with its audio unsent."""
    text = "A sentence that is long enough to need more than the least limit of an outbox."
    async with gateway() as server:
        samples = server.whole(text)
    size = HEADER_BYTES + samples.nbytes
    for most, fits in ((size + 200, False), (size + (4 << 10), True)):
        async with gateway(max_outbox_bytes=most) as server, client(server.url) as talk:
            handle = await talk.create(mode="whole")
            await talk.send("text.append", context_id="c", text=text)
            await talk.send("context.end", context_id="c")
            if not fits:
                error = await talk.error()
                assert (error["code"], error["param"]) == ("text_too_long", "text")
            await talk.until("context.done")
            assert np.array_equal(talk.samples(handle), samples if fits else samples[:0])


@pytest.mark.parametrize("by", ["get", "cancel", "overflow"])
async def test_writer_waits_until_quarter_of_outbox_is_queued(by: str) -> None:
    box = Outbox(100)
    for size in (10, 30, 30, 25):
        box.put(Item(b"x" * size, 1, 1))
    await box.get()
    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0)
    await box.get()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    match by:
        case "get":
            await box.get()
        case "cancel":
            box.drop_audio(1)
        case _:
            box.put(Item(b"x" * 100))
    await asyncio.wait_for(waiting, 10)
